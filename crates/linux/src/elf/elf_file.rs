// SPDX-License-Identifier: Apache-2.0
//! An ELF file on disk: its headers, and those entries of its dynamic section by which the loader
//! finds the objects that it needs.

use crate::io::open;
use crate::io::open::own_path;
use hugelift_core::elf::{self, Dynamic, ElfError, HEAD_BYTES, Headers, Stretch};
use hugelift_core::maps::FileId;
use hugelift_core::printable::Untrusted;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The most that is read of a note or a dynamic section: a longer one is damaged, as no linker writes it.
pub(super) const MAX_STRETCH: u64 = 64 << 10;
/// PATH_MAX: names and search paths that linkers write are shorter.
const MAX_STRING: usize = 4096;

/// An open ELF file.
#[derive(Debug)]
pub struct ElfFile {
    /// The path by which it was found.
    pub path: PathBuf,
    /// Device and inode.
    pub id: FileId,
    /// Its program headers.
    pub headers: Headers,
    file: File,
}

/// Why a file cannot be inspected.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// open(2) or read(2) failed.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: Untrusted,
        /// Why.
        source: io::Error,
    },
    /// A directory, a device, a socket.
    #[error("{path} is not a regular file")]
    NotRegular {
        /// The file.
        path: Untrusted,
    },
    /// Its length is 0.
    #[error("{path} is empty")]
    Empty {
        /// The file.
        path: Untrusted,
    },
    /// It is not an ELF file that hugelift reads.
    #[error("{path}: {source}")]
    Elf {
        /// The file.
        path: Untrusted,
        /// Why.
        source: ElfError,
    },
    /// A script whose interpreter is a script in turn, more often than the kernel allows.
    #[error("{path}: its interpreter is itself a script, and so on, more often than the kernel allows")]
    Scripts {
        /// The first of them.
        path: Untrusted,
    },
    /// The objects do not fit into an address space.
    #[error("{path}: its segments do not fit into the address space")]
    NoRoom {
        /// The object.
        path: Untrusted,
    },
}

impl FileError {
    /// Returns whether there is no such file.
    pub fn is_not_found(&self) -> bool {
        matches!(self, FileError::Io { source, .. }
            if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory))
    }
}

impl ElfFile {
    /// Opens `path` and parses its headers.
    ///
    /// # Errors
    /// [`FileError`]
    pub fn open(path: &Path) -> Result<ElfFile, FileError> {
        let (file, head, id) = open_head(path)?;
        let deeper = |offset, size| read_up_to(&file, offset, size).ok().filter(|b| b.len() == size);
        let headers = Headers::parse_with(&head, deeper)
            .map_err(|source| FileError::Elf { path: path.into(), source })?;
        Ok(ElfFile { path: path.to_path_buf(), id, headers, file })
    }

    /// Opens an open file once more, which may have no name (any more), and parses its headers. Its path is the one
    /// that the kernel shows in `/proc/PID/maps`.
    ///
    /// # Errors
    /// [`FileError`]
    pub fn of_open(file: &File) -> Result<ElfFile, FileError> {
        let own = own_path(file);
        let shown =
            std::fs::read_link(&own).map_err(|source| FileError::Io { path: (&own).into(), source })?;
        let shown = shown.into_os_string().into_vec();
        let path = shown.strip_suffix(b" (deleted)").unwrap_or(&shown);
        Ok(ElfFile { path: PathBuf::from(OsStr::from_bytes(path)), ..ElfFile::open(&own)? })
    }

    /// Returns the open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Reads a stretch, up to the end of the file.
    pub fn read(&self, stretch: Stretch) -> Option<Vec<u8>> {
        read_up_to(&self.file, stretch.offset, usize::try_from(stretch.size.min(MAX_STRETCH)).ok()?).ok()
    }

    /// Returns the loader of a dynamic program.
    pub fn interp(&self) -> Option<PathBuf> {
        self.headers.interp.and_then(|at| self.read(at)).and_then(|bytes| path_of(&bytes))
    }

    /// Reads its dynamic section; returns an empty one if it has none.
    pub fn dynamic(&self) -> Dynamic {
        self.headers.dynamic.and_then(|at| self.read(at)).map_or_else(Dynamic::default, |b| elf::dynamic(&b))
    }

    /// Reads the string at `index` of the string table that `dynamic` names.
    pub fn string(&self, dynamic: &Dynamic, index: u64) -> Option<OsString> {
        let room = usize::try_from(dynamic.strsz.checked_sub(index)?).ok()?;
        let vaddr = dynamic.strtab.checked_add(index)?;
        let segment = self.headers.segments.iter().find(|s| {
            s.vaddr <= vaddr && vaddr.checked_sub(s.vaddr).is_some_and(|inside| inside < s.filesz)
        })?;
        let offset = segment.offset.checked_add(vaddr - segment.vaddr)?;
        let bytes = read_up_to(&self.file, offset, room.min(MAX_STRING)).ok()?;
        let end = bytes.iter().position(|&b| b == 0)?;
        Some(OsString::from_vec(bytes[..end].to_vec()))
    }
}

/// Opens a file; returns it with its first [`HEAD_BYTES`] bytes and its device and inode.
pub fn open_head(path: &Path) -> Result<(File, Vec<u8>, FileId), FileError> {
    let failed = |source| FileError::Io { path: path.into(), source };
    let (file, meta) = match open::regular(path) {
        Err(e) if open::is_not_regular(&e) => return Err(FileError::NotRegular { path: path.into() }),
        opened => opened.map_err(failed)?,
    };
    let head = read_up_to(&file, 0, HEAD_BYTES).map_err(failed)?;
    if head.is_empty() {
        return Err(FileError::Empty { path: path.into() });
    }
    Ok((file, head, open::id(&meta)))
}

/// Reads `len` bytes from `offset` on, or up to the end of the file.
fn read_up_to(file: &File, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut filled = 0;
    while filled < len {
        match file.read_at(&mut bytes[filled..], offset.saturating_add(filled as u64)) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Returns the path in `bytes`, which ends in NUL.
fn path_of(bytes: &[u8]) -> Option<PathBuf> {
    let end = bytes.iter().position(|&b| b == 0)?;
    (end > 0).then(|| PathBuf::from(OsString::from_vec(bytes[..end].to_vec())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_names_its_loader_and_libc() {
        let shell = ElfFile::open(&std::env::current_exe().unwrap()).unwrap();
        let loader = shell.interp().unwrap();
        assert!(loader.to_string_lossy().contains("/ld-"), "{loader:?}");
        let dynamic = shell.dynamic();
        let needed: Vec<_> = dynamic.needed.iter().filter_map(|&n| shell.string(&dynamic, n)).collect();
        assert!(needed.iter().any(|n| n.to_string_lossy().starts_with("libc.")), "{needed:?}");
        assert_eq!(shell.string(&dynamic, dynamic.strsz), None);
        assert_eq!(shell.string(&dynamic, u64::MAX), None);
    }

    #[test]
    fn what_is_no_program() {
        let error = |path: &str| ElfFile::open(Path::new(path)).unwrap_err();
        assert!(matches!(error("/"), FileError::NotRegular { .. }));
        assert!(matches!(error("/dev/null"), FileError::NotRegular { .. }));
        assert!(matches!(error("/etc/passwd"), FileError::Elf { source: ElfError::NotElf(_), .. }));
        assert!(error("/no/such/file").is_not_found() && error("/etc/passwd/x").is_not_found());
    }
}
