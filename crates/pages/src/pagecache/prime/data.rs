// SPDX-License-Identifier: Apache-2.0
//! Data files: what programs map that is not code, as databases, indexes and models.

use hugelift_core::maps::FileId;
use hugelift_linux::io::holes::data;
use hugelift_linux::io::open;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// At most so many stretches of a file with holes are told apart. The last one goes as far as the rest may reach.
const STRETCHES: usize = 10_000;

/// A regular file that is open for reading.
#[derive(Debug)]
pub struct DataFile {
    /// The path by which it was found.
    pub path: PathBuf,
    /// Device and inode.
    pub id: FileId,
    /// Its length in bytes when it was opened.
    pub len: u64,
    file: File,
}

impl DataFile {
    /// Opens `path`.
    ///
    /// # Errors
    /// See [`open::regular`].
    pub fn open(path: &Path) -> io::Result<DataFile> {
        let (file, meta) = open::regular(path)?;
        Ok(DataFile { path: path.to_path_buf(), id: open::id(&meta), len: meta.size(), file })
    }

    /// Opens an open file once more, which may have no name (any more), and calls it `path`.
    ///
    /// # Errors
    /// See [`open::regular`].
    pub fn of_open(file: &File, path: &Path) -> io::Result<DataFile> {
        Ok(DataFile { path: path.to_path_buf(), ..DataFile::open(&open::own_path(file))? })
    }

    /// Returns the open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the stretches that are not holes, as offsets of start and end: reading a hole would fill memory with zeros.
    pub fn stretches(&self) -> Vec<(u64, u64)> {
        let found = data(&self.file, 0..self.len).take(STRETCHES);
        let mut all: Vec<(u64, u64)> = found.map(|data| (data.start, data.end)).collect();
        if all.len() == STRETCHES
            && let Some((start, end)) = all.last_mut()
        {
            // A file may be any length. What follows has no more bytes than the file system has of all of it.
            let bytes = self.file.metadata().map_or(0, |meta| meta.blocks().saturating_mul(512));
            *end = self.len.min(start.saturating_add(bytes)).max(*end);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt as _;

    #[test]
    fn issue_32_1_holes_are_left_out() {
        const MB: u64 = 1 << 20;
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(64 * MB).unwrap();
        file.as_file().write_all_at(&[1; 1 << 20], 8 * MB).unwrap();
        file.as_file().write_all_at(&[1; 1 << 20], 32 * MB).unwrap();
        let data = DataFile::open(file.path()).unwrap();
        assert_eq!((data.len, data.stretches()), (64 * MB, vec![(8 * MB, 9 * MB), (32 * MB, 33 * MB)]));
        // What follows very many stretches is as long as it can be, not as long as the file says.
        let many = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        let bytes = (STRETCHES as u64 + 8) * 4096;
        for n in 0..STRETCHES as u64 + 8 {
            many.as_file().write_all_at(&[1], 2 * n * 4096 + 1).unwrap();
        }
        many.as_file().set_len(1 << 50).unwrap();
        let stretches = DataFile::open(many.path()).unwrap().stretches();
        let (start, end) = *stretches.last().unwrap();
        assert_eq!(stretches.len(), STRETCHES);
        assert!(end - start >= 16 * 4096 && end - start <= 2 * bytes, "{start} {end}");
        let empty = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(DataFile::open(empty.path()).unwrap().stretches(), []);
        assert!(open::is_not_regular(&DataFile::open(Path::new("/dev/null")).unwrap_err()));
        assert!(open::is_not_regular(&DataFile::open(Path::new("/")).unwrap_err()));
    }
}
