// SPDX-License-Identifier: Apache-2.0
//! The file that is copied, and its re-laid copy.

use super::error::RelayError;
use crate::align::{self, Layout};
use hugelift_core::addr::PageSize;
use hugelift_core::elf::{self, Headers};
use hugelift_linux::io::entry::Entry;
use hugelift_linux::io::holes::data;
use hugelift_linux::io::open;
use hugelift_linux::io::temporary::Temporary;
use hugelift_linux::machine::memory_left_here;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use xattr::FileExt as _;

/// Gives a program rights beyond its caller's (capabilities(7)).
pub(crate) const CAPABILITIES: &str = "security.capability";

/// An ELF file in memory, with its metadata at the time when it was read.
#[derive(Debug)]
pub struct Original {
    /// Its path, as it was given.
    pub path: PathBuf,
    /// The metadata of the file that was read.
    pub meta: Metadata,
    /// Its name, if it is to be replaced; a file that is only read may be behind any link.
    entry: Option<Entry>,
    file: File,
    pub(super) bytes: Vec<u8>,
}

impl Original {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// [`RelayError`]
    pub fn read(path: &Path) -> Result<Original, RelayError> {
        Original::from_opened(path.to_owned(), None, open::regular(path))
    }

    /// Reads the file that has the name `entry`.
    ///
    /// # Errors
    /// [`RelayError`]
    pub fn of_entry(entry: &Entry) -> Result<Original, RelayError> {
        Original::from_opened(entry.path(), Some(entry.clone()), entry.open())
    }

    fn from_opened(
        path: PathBuf,
        entry: Option<Entry>,
        opened: io::Result<(File, Metadata)>,
    ) -> Result<Original, RelayError> {
        let (mut file, meta) = match opened {
            Err(e) if open::is_not_regular(&e) => return Err(RelayError::NotRegular { path: path.into() }),
            opened => opened.map_err(RelayError::io("read", &path))?,
        };
        let left = memory_left_here();
        if meta.len() > left {
            return Err(RelayError::TooLarge { path: path.into(), bytes: meta.len(), left });
        }
        // A store through a mapping moves the time only if the page is clean, so all pages are made clean. Where
        // that fails (a read-only file system), no process can write.
        if let Err(error) = file.sync_all() {
            tracing::debug!(%error, ?path, "fsync");
        }
        let meta = file.metadata().map_err(RelayError::io("read", &path))?;
        let bytes = read_all(&mut file, &meta).map_err(RelayError::io("read", &path))?;
        let original = Original { path, meta, entry, file, bytes };
        original.unchanged().map(|()| original)
    }

    /// Checks that the name is still this file's, and that no process has written to it.
    ///
    /// # Errors
    /// [`RelayError::Changed`]
    pub fn unchanged(&self) -> Result<(), RelayError> {
        let state = |m: &Metadata| (m.dev(), m.ino(), m.len(), m.mtime(), m.mtime_nsec());
        let failed = || RelayError::io("read", &self.path);
        let is_named = match &self.entry {
            Some(entry) => entry.is(&self.meta),
            None => state(&std::fs::metadata(&self.path).map_err(failed())?) == state(&self.meta),
        };
        let now = self.file.metadata().map_err(failed())?;
        if is_named && state(&now) == state(&self.meta) && self.bytes.len() as u64 == now.len() {
            Ok(())
        } else {
            Err(RelayError::Changed { path: self.path.clone().into() })
        }
    }

    /// Returns the file, open for reading.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Returns whether executing the file gives rights (capabilities(7)), which a copy does not have.
    pub fn has_capabilities(&self) -> bool {
        self.file.get_xattr(CAPABILITIES).is_ok_and(|value| value.is_some())
    }

    /// Returns the build-id, if the file has one.
    pub fn build_id(&self) -> Option<String> {
        let headers = Headers::parse(&self.bytes).ok()?;
        headers.notes.iter().find_map(|note| {
            let start = usize::try_from(note.offset).ok()?;
            let size = usize::try_from(note.size).ok()?;
            elf::build_id(self.bytes.get(start..start.checked_add(size)?)?)
        })
    }

    /// Returns the layout for huge pages of size `page`.
    ///
    /// # Errors
    /// [`RelayError::Refused`]
    pub fn layout(&self, page: PageSize) -> Result<Layout, RelayError> {
        align::layout(&self.bytes, page)
            .map_err(|source| RelayError::Refused { path: self.path.clone().into(), source })
    }

    /// Makes a copy laid out as `layout` says, in the directory of `place`,
    /// written to disk and compared with the original. It is removed when dropped.
    ///
    /// # Errors
    /// [`RelayError`]
    pub fn copy_beside(&self, layout: &Layout, place: &Entry) -> Result<Temporary, RelayError> {
        let check = |again: &[u8]| {
            align::verify(&self.bytes, again)
                .map_err(|source| RelayError::Wrong { path: self.path.clone().into(), source })
        };
        self.written_beside(place, |out| self.write(layout, out), check)
    }

    /// Makes a file in the directory of `place`, by `write`. What the disk has of it then
    /// must pass `check`.
    pub(super) fn written_beside(
        &self,
        place: &Entry,
        write: impl FnOnce(&File) -> io::Result<()>,
        check: impl FnOnce(&[u8]) -> Result<(), RelayError>,
    ) -> Result<Temporary, RelayError> {
        let path = place.path();
        let directory = path.parent().unwrap_or(Path::new("/"));
        let copy = Temporary::beside(place, 0o600).map_err(RelayError::io("make a file in", directory))?;
        let written = write(copy.file()).and_then(|()| copy.file().sync_all());
        written.map_err(RelayError::io("write a copy beside", &path))?;
        let mut file = copy.file();
        let again = file.rewind().and_then(|()| file.metadata()).and_then(|meta| read_all(&mut file, &meta));
        let again = again.map_err(RelayError::io("read the copy beside", &path))?;
        check(&again)?;
        self.unchanged()?;
        copy.check().map_err(RelayError::io("go on with the copy beside", &path))?;
        // Writing and comparing have left small pages in the page cache. They are dropped, so that the first
        // run reads the copy in anew. (This is advice, and its failure does not matter.)
        let _ = posix_fadvise(copy.file(), 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        Ok(copy)
    }

    fn write(&self, layout: &Layout, out: &File) -> io::Result<()> {
        for m in &layout.moves {
            // Holes stay holes.
            for data in data(&self.file, m.from..m.from + m.len) {
                // A file that fits into memory has offsets that do.
                let bytes = &self.bytes[data.start as usize..data.end as usize];
                out.write_all_at(bytes, data.start - m.from + m.to)?;
            }
        }
        out.set_len(layout.bytes)?;
        layout.edits.iter().try_for_each(|edit| out.write_all_at(&edit.bytes, edit.at))
    }
}

/// Reads a file of this length to its end.
fn read_all(file: &mut impl Read, meta: &Metadata) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let room = usize::try_from(meta.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
    bytes.try_reserve_exact(room).map_err(|_| io::ErrorKind::OutOfMemory)?;
    // No more is read, even if the file grows: the length is compared afterwards.
    file.take(meta.len()).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
    use std::os::fd::AsRawFd;

    /// The first store to a page moves the time; the second one only if the page was written to the
    /// disk in between.
    #[test]
    fn issue_13_a5_a_store_through_a_mapping_is_a_change() {
        let file = tempfile::NamedTempFile::new().unwrap();
        if fstatfs(file.as_file()).unwrap().filesystem_type() == TMPFS_MAGIC {
            return println!("SKIP: temporary files are on tmpfs here, whose times do not show stores");
        }
        file.as_file().set_len(4096).unwrap();
        let (both, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: mmap(2) at an address of the kernel's choice.
        let map =
            unsafe { libc::mmap(std::ptr::null_mut(), 4096, both, shared, file.as_file().as_raw_fd(), 0) };
        assert_ne!(map, libc::MAP_FAILED);
        // SAFETY: the first byte of a mapping of ours that is writable.
        let store = |byte: u8| unsafe { map.cast::<u8>().write_volatile(byte) };
        store(1);
        // This is longer than a clock tick of any file system that is likely here.
        std::thread::sleep(std::time::Duration::from_millis(50));
        let original = Original::read(file.path()).unwrap();
        original.unchanged().unwrap();
        store(2);
        assert!(matches!(original.unchanged(), Err(RelayError::Changed { .. })));
        // SAFETY: munmap(2) of what was mapped above.
        unsafe { libc::munmap(map, 4096) };
    }
}
