// SPDX-License-Identifier: Apache-2.0
//! Files that the user asked for: written wholly or not at all.

use crate::io::entry::{Entry, is_trusted};
use crate::io::open::not_regular;
use crate::io::temporary::Temporary;
use hugelift_core::printable::Untrusted;
use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, Mode, fstat};
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long to wait for the reader of a FIFO.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a file was not written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}: {source}")]
pub struct OutputError {
    /// The file.
    path: Untrusted,
    source: io::Error,
}

/// Why a file is not written to.
#[derive(Debug, thiserror::Error)]
enum Refused {
    /// That user may never read it, or may read what is not meant for them.
    #[error("it is a FIFO or socket of user {0}; name another file")]
    OtherUser(u32),
    /// The file may be another user's, who has linked it here.
    #[error("it has {0} names (hard links), and other users can write to its directory; name another file")]
    Links(u64),
    /// open(2) would wait.
    #[error("it is a FIFO that nobody reads; start its reader first")]
    NoReader,
}

/// Writes `bytes` to `path`: a new file replaces the old one, if any, once all bytes are written. A symbolic
/// link stays a link, and a file of ours keeps its permissions. What exists and is not a regular file (a
/// terminal, a pipe) is opened and written to. Links, FIFOs and sockets of other users are refused.
///
/// # Errors
/// [`OutputError`], with the path: a directory, no permission, no room...
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), OutputError> {
    replace_or_write_to(path, bytes).map_err(|source| OutputError { path: path.into(), source })
}

/// Opens `path`, empty, to be written to later, when the process has other rights. A missing file is made.
/// Links, FIFOs and sockets of other users are refused.
///
/// # Errors
/// [`OutputError`], as for [`write()`].
pub fn open(path: &Path) -> Result<File, OutputError> {
    open_checked(path).map_err(|source| OutputError { path: path.into(), source })
}

/// The file at a place to write to.
enum There {
    Nothing,
    Regular(FileStat),
    /// To be opened, not replaced: a terminal, /dev/null.
    Special,
}

/// Returns which file is at a place.
///
/// # Errors
/// It cannot be written to.
fn file_at(place: &Entry) -> io::Result<There> {
    if place.is_magic() {
        return Ok(There::Special);
    }
    match place.stat() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(There::Nothing),
        Err(e) => Err(e),
        Ok(stat) => match stat.st_mode & libc::S_IFMT {
            libc::S_IFREG => Ok(There::Regular(stat)),
            libc::S_IFDIR => Err(io::ErrorKind::IsADirectory.into()),
            libc::S_IFIFO | libc::S_IFSOCK if !is_trusted(stat.st_uid) => {
                Err(io::Error::other(Refused::OtherUser(stat.st_uid)))
            }
            _ => Ok(There::Special),
        },
    }
}

fn replace_or_write_to(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let place = Entry::find(path)?;
    let mode = match file_at(&place)? {
        There::Special => return open_special(&place)?.write_all(bytes),
        There::Regular(old) => Some(old).filter(|old| old.st_uid == nix::unistd::geteuid().as_raw()),
        There::Nothing => None,
    };
    let new = Temporary::beside(&place, mode_while_written(mode.as_ref()))?;
    new.file().write_all(bytes)?;
    if let Some(old) = mode {
        // Never set-uid: those rights were given to other bytes.
        new.file().set_permissions(Permissions::from_mode(old.st_mode & 0o777))?;
    }
    new.publish(&place)
}

/// Returns the mode of a file until it is complete. Until it has the permissions of the file that it
/// replaces, no other user may open it.
fn mode_while_written(replaces: Option<&FileStat>) -> u32 {
    if replaces.is_some() { 0o600 } else { 0o666 }
}

fn open_checked(path: &Path) -> io::Result<File> {
    let place = Entry::find(path)?;
    match file_at(&place)? {
        There::Special => open_special(&place),
        There::Nothing => place.create(0o666),
        There::Regular(_) => {
            let file = place.open_with(flags() | OFlag::O_NOFOLLOW, Mode::empty())?;
            let stat = fstat(&file)?;
            if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
                return Err(not_regular());
            }
            #[allow(clippy::unnecessary_cast, reason = "its type differs by architecture")]
            let names = stat.st_nlink as u64;
            if names > 1 && !place.is_ours_alone() {
                return Err(io::Error::other(Refused::Links(names)));
            }
            // The file is emptied only now, so that a file that is refused keeps its bytes.
            file.set_len(0)?;
            Ok(file)
        }
    }
}

fn flags() -> OFlag {
    OFlag::O_WRONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC
}

/// Opens a device, a FIFO or an open file of ours (`/dev/stdout`).
fn open_special(place: &Entry) -> io::Result<File> {
    let no_follow = if place.is_magic() { OFlag::empty() } else { OFlag::O_NOFOLLOW };
    let is_fifo = place.stat().is_ok_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFIFO);
    let deadline = Instant::now() + PATIENCE;
    let file = loop {
        match place.open_with(flags() | no_follow, Mode::empty()) {
            Err(e) if is_fifo && e.raw_os_error() == Some(libc::ENXIO) => {
                if Instant::now() > deadline {
                    return Err(io::Error::other(Refused::NoReader));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            opened => break opened?,
        }
    };
    // A link of procfs may lead to a regular file of ours: it is emptied, as by a shell's `>`.
    match fstat(&file)?.st_mode & libc::S_IFMT {
        libc::S_IFREG if place.is_magic() => file.set_len(0)?,
        libc::S_IFREG => return Err(not_regular()),
        _ => {}
    }
    // SAFETY: fcntl(2) with numbers alone, of a descriptor of ours. A slow reader is waited for.
    unsafe {
        let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
        libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & !libc::O_NONBLOCK);
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Returns the names in a directory, which show what was left behind.
    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn issue_13_a6_a_private_file_is_private_while_it_is_written() {
        let dir = tempfile::TempDir::new().unwrap();
        let mode = |name: &str, replaces: Option<&FileStat>| {
            let place = Entry::find(&dir.path().join(name)).unwrap();
            let file = place.create(mode_while_written(replaces)).unwrap();
            file.metadata().unwrap().permissions().mode() & 0o777
        };
        let usual = mode("usual", None);
        assert_ne!(usual & 0o044, 0, "a umask of {:o} shows nothing", 0o666 ^ usual);
        let old = fstat(File::open(dir.path().join("usual")).unwrap()).unwrap();
        assert_eq!(mode("another", Some(&old)), 0o600);
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
