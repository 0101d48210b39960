// SPDX-License-Identifier: Apache-2.0
//! Data files: what programs map that is not code, as databases, indexes and models.

use hugelift_core::maps::FileId;
use hugelift_linux::io::open;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// At most so many stretches of a file with holes are told apart. The last one goes to the end.
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
        let mut all = Vec::new();
        let mut end = 0;
        while let Some(start) = self.seek(end, libc::SEEK_DATA).filter(|start| *start < self.len) {
            // A file that shrinks has its end where it was.
            end = self.seek(start, libc::SEEK_HOLE).unwrap_or(self.len).clamp(start + 1, self.len);
            if all.len() + 1 == STRETCHES {
                end = self.len;
            }
            all.push((start, end));
        }
        all
    }

    /// Returns the next offset of data or of a hole; `None` at the end. A file system that knows no holes says that all is
    /// data (lseek(2)).
    fn seek(&self, from: u64, what: libc::c_int) -> Option<u64> {
        let from = libc::off_t::try_from(from).ok()?;
        // SAFETY: lseek(2) with numbers alone; nothing reads the file by its offset.
        let found = unsafe { libc::lseek(self.file.as_raw_fd(), from, what) };
        u64::try_from(found).ok()
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
        let empty = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(DataFile::open(empty.path()).unwrap().stretches(), []);
        assert!(open::is_not_regular(&DataFile::open(Path::new("/dev/null")).unwrap_err()));
        assert!(open::is_not_regular(&DataFile::open(Path::new("/")).unwrap_err()));
    }
}
