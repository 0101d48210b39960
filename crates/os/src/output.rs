// SPDX-License-Identifier: Apache-2.0
//! Files that the user asked for: whole or not at all.

use hugelift_core::printable::Untrusted;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Why a file was not written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}: {source}")]
pub struct OutputError {
    /// The file.
    path: Untrusted,
    source: io::Error,
}

/// Writes `bytes` to `path`: a new file in its place when all is written, and the old one,
/// if any, until then. A symbolic link stays, as do the permissions of an old file. What
/// is neither there nor a regular file (a terminal, a pipe) is written to as it is.
///
/// # Errors
/// [`OutputError`], with the path: a directory, no permission, no room...
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), OutputError> {
    try_write(path, bytes).map_err(|source| OutputError { path: path.into(), source })
}

fn try_write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (place, mode) = match fs::metadata(path) {
        Ok(old) if old.is_file() => (path.canonicalize()?, Some(old.permissions())),
        Ok(old) if old.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        // To be opened, not replaced: think of /dev/null.
        Ok(_) => return OpenOptions::new().write(true).open(path)?.write_all(bytes),
        Err(e) if e.kind() == io::ErrorKind::NotFound => (end_of_links(path)?, None),
        Err(e) => return Err(e),
    };
    // A name that nobody else has, nor an earlier process of our number that was killed.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
    let new = place.with_file_name(format!(".hugelift-{}-{now}", std::process::id()));
    let done = write_new(&new, bytes, mode).and_then(|()| fs::rename(&new, &place));
    if done.is_err() {
        // There is nothing more to be done if it cannot be removed.
        let _ = fs::remove_file(&new);
    }
    done
}

/// Writes a file that must not be there yet, with the permissions given or those of any new file.
fn write_new(path: &Path, bytes: &[u8], mode: Option<Permissions>) -> io::Result<()> {
    let mut file = create(path, mode.as_ref())?;
    file.write_all(bytes)?;
    match mode {
        Some(mode) => file.set_permissions(mode),
        None => Ok(()),
    }
}

/// Until a file has the permissions of the one that it replaces, nobody else may open it.
fn create(path: &Path, later: Option<&Permissions>) -> io::Result<fs::File> {
    let mode = if later.is_some() { 0o600 } else { 0o666 };
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
}

/// Where a file that is not there yet is to be: behind links, where `path` is one that dangles.
fn end_of_links(path: &Path) -> io::Result<PathBuf> {
    let mut place = path.to_path_buf();
    // As many as the kernel follows (path_resolution(7)).
    for _ in 0..40 {
        match fs::read_link(&place) {
            Ok(next) => place = place.parent().unwrap_or(Path::new("")).join(next),
            Err(_) => return Ok(place),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// The names in a directory, and so what was left behind.
    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn issue_13_a6_a_private_file_is_private_while_it_is_written() {
        let dir = tempfile::TempDir::new().unwrap();
        let mode = |name: &str, later: Option<u32>| {
            let later = later.map(Permissions::from_mode);
            let file = create(&dir.path().join(name), later.as_ref()).unwrap();
            file.metadata().unwrap().permissions().mode() & 0o777
        };
        let usual = mode("usual", None);
        assert_ne!(usual & 0o044, 0, "a umask of {:o} shows nothing", 0o666 ^ usual);
        assert_eq!(mode("like a private one", Some(0o600)), 0o600);
        assert_eq!(mode("like one for a group", Some(0o640)), 0o600);
    }

    #[test]
    fn new_old_and_linked_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        write(&file, b"one").unwrap();
        let plain = dir.path().join("plain");
        fs::write(&plain, "").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&file), mode(&plain), "as any new file");
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        let link = dir.path().join("link");
        symlink("file", &link).unwrap();
        write(&link, b"two").unwrap();
        assert_eq!((fs::read(&file).unwrap(), mode(&file) & 0o777), (b"two".to_vec(), 0o640));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let dangling = dir.path().join("dangling");
        symlink("new", &dangling).unwrap();
        write(&dangling, b"three").unwrap();
        assert_eq!(fs::read(dir.path().join("new")).unwrap(), b"three");
        assert_eq!(names(dir.path()), ["dangling", "file", "link", "new", "plain"]);
    }

    #[test]
    fn what_cannot_be_written_is_named_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let error = write(dir.path(), b"x").unwrap_err().to_string();
        assert!(error.contains(&dir.path().display().to_string()) && error.contains("directory"), "{error}");
        let error = write(&dir.path().join("no/file"), b"x").unwrap_err().to_string();
        assert!(error.ends_with("no/file: No such file or directory (os error 2)"), "{error}");
        let round = dir.path().join("round");
        symlink("round", &round).unwrap();
        assert!(write(&round, b"x").is_err());
        assert_eq!(names(dir.path()), ["round"]);
        write(Path::new("/dev/null"), b"x").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
