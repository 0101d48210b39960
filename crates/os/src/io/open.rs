// SPDX-License-Identifier: Apache-2.0
//! Opening files at paths that other users may change.
//!
//! Opening a FIFO waits for a writer, and opening a device may do anything. So a file is first
//! opened with `O_PATH`, which does nothing to it. Only if it is regular is it opened for reading, through
//! that descriptor: it is the same file, whatever its path has become meanwhile.

use hugelift_core::maps::FileId;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The error for a directory, a FIFO, a socket, a device or a symbolic link.
#[derive(Debug, thiserror::Error)]
#[error("it is not a regular file")]
struct NotRegular;

/// Returns the error for a file that is not regular.
pub(crate) fn not_regular() -> io::Error {
    io::Error::other(NotRegular)
}

/// Returns which file this is, as `/proc/PID/maps` names it on most file systems: on btrfs and overlayfs that shows another
/// device.
pub fn id(meta: &Metadata) -> FileId {
    FileId { major: libc::major(meta.dev()), minor: libc::minor(meta.dev()), inode: meta.ino() }
}

/// Returns whether a file was not opened because it is not regular.
pub fn is_not_regular(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<NotRegular>())
}

/// Opens the regular file at `path` for reading, without waiting; symbolic links are followed.
///
/// # Errors
/// open(2); for a file that is not regular, an error for which [`is_not_regular`] returns true.
pub fn regular(path: &Path) -> io::Result<(File, Metadata)> {
    let open = |flags| File::options().read(true).custom_flags(flags).open(path);
    regular_at(&open(libc::O_PATH)?, open)
}

/// Opens the file of which `seen` is an `O_PATH` descriptor. `by_name` opens it with more flags by
/// its name; it is used where there is no /proc.
pub(crate) fn regular_at(
    seen: &File,
    by_name: impl FnOnce(libc::c_int) -> io::Result<File>,
) -> io::Result<(File, Metadata)> {
    let meta = seen.metadata()?;
    if !meta.is_file() {
        return Err(not_regular());
    }
    // O_NONBLOCK: do not wait for another process that holds a lease on the file.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let own = format!("/proc/self/fd/{}", seen.as_raw_fd());
    let file = match File::options().read(true).custom_flags(flags).open(own) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => by_name(flags)?,
        opened => opened?,
    };
    let meta_now = file.metadata()?;
    if (meta_now.dev(), meta_now.ino()) != (meta.dev(), meta.ino()) {
        // Without /proc the path was opened twice, and another file has taken it in between.
        return Err(io::Error::from_raw_os_error(libc::ESTALE));
    }
    Ok((file, meta_now))
}

/// Reads a text file of at most `limit` bytes.
///
/// # Errors
/// See [`regular`]; a file that is larger, or not UTF-8, is `InvalidData`.
pub fn text(path: &Path, limit: u64) -> io::Result<String> {
    let (file, _) = regular(path)?;
    let mut text = String::new();
    let read = file.take(limit.saturating_add(1)).read_to_string(&mut text)?;
    if read as u64 > limit { Err(io::ErrorKind::InvalidData.into()) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::time::{Duration, Instant};

    #[test]
    fn only_a_regular_file_is_opened_and_nothing_waits() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "text").unwrap();
        nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        std::os::unix::fs::symlink("fifo", at("link")).unwrap();
        let before = Instant::now();
        for path in [at("fifo"), at("socket"), at("link"), dir.path().into(), "/dev/zero".into()] {
            assert!(is_not_regular(&regular(&path).unwrap_err()), "{path:?}");
            assert!(is_not_regular(&text(&path, 10).unwrap_err()), "{path:?}");
        }
        assert!(before.elapsed() < Duration::from_secs(20));
        assert_eq!(text(&at("file"), 4).unwrap(), "text");
        assert_eq!(text(&at("file"), 3).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(regular(&at("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn the_file_that_was_held_is_opened_whatever_has_its_name_now() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("a"), "a").unwrap();
        std::fs::write(at("b"), "b").unwrap();
        let held = File::options().read(true).custom_flags(libc::O_PATH).open(at("a")).unwrap();
        std::fs::rename(at("b"), at("a")).unwrap();
        let (file, _) = regular_at(&held, |_| File::open(at("a"))).unwrap();
        assert_eq!(std::io::read_to_string(file).unwrap(), "a");
    }
}
