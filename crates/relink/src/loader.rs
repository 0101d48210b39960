// SPDX-License-Identifier: Apache-2.0
//! The loader of a file, and whether it may be run.

use hugelift_core::printable::Escape;
use hugelift_linux::elf::elf_file::ElfFile;
use hugelift_linux::io::entry::Entry;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A program that names a loader, for objects that name none.
pub(crate) const SHELL: &str = "/bin/sh";

/// The user and group `nobody` of most distributions, who own no files.
pub(crate) const NOBODY: u32 = 65534;

/// Returns the loader that the object names, or that programs of this machine have.
pub(crate) fn loader_of(object: &ElfFile) -> Option<PathBuf> {
    if let Some(own) = object.interp() {
        return Some(own);
    }
    if object.headers.dynamic.is_none() || !object.headers.relocatable {
        return None;
    }
    let shell = ElfFile::open(Path::new(SHELL)).ok()?;
    shell.interp().filter(|_| shell.headers.machine == object.headers.machine)
}

/// Returns the real path of a loader that only root and the caller can change.
///
/// # Errors
/// Why it is not trusted.
pub(crate) fn trusted(named: &Path) -> Result<PathBuf, String> {
    if !named.has_root() {
        return Err("it has no absolute path".to_string());
    }
    let entry = Entry::find(named).map_err(|e| e.to_string())?;
    let path = entry.path();
    let name = entry.name().as_bytes();
    // Only a loader is known to run nothing with `--verify`, even among root's programs.
    if ![&b"ld-"[..], b"ld.so", b"ld64.so"].iter().any(|start| name.starts_with(start)) {
        return Err(format!("{} has no loader's name (ld-*, ld.so*)", path.escaped()));
    }
    if !entry.is_ours_alone() {
        return Err(
            "users other than root and you can change it, or a directory on the way to it".to_string()
        );
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_loader_of_root_is_run() {
        let loader = loader_of(&ElfFile::open(Path::new(SHELL)).unwrap()).unwrap();
        assert_eq!(trusted(&loader), Ok(loader.canonicalize().unwrap()));
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        let planted = dir.path().join("ld-planted.so");
        std::fs::copy(&loader, &planted).unwrap();
        assert!(trusted(&planted).unwrap_err().contains("can change it"), "/tmp is everybody's");
        assert!(trusted(Path::new("/bin/sh")).unwrap_err().contains("no loader's name"));
        assert!(trusted(Path::new("ld-linux.so")).unwrap_err().contains("absolute"));
    }
}
