// SPDX-License-Identifier: Apache-2.0
//! Opening files at paths that other users may change.
//!
//! Opening a FIFO waits for a writer, and opening a device may do anything. So a file is first
//! opened with `O_PATH`, which does nothing to it. Only if it is regular is it opened for reading, through
//! that descriptor: it is the same file, whatever its path has become meanwhile.

use hugelift_core::maps::FileId;
use nix::NixPath;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The error for a directory, a FIFO, a socket, a device or a symbolic link.
#[derive(Debug, thiserror::Error)]
#[error("it is not a regular file")]
struct NotRegular;

/// Returns the error for a file that is not regular.
pub fn not_regular() -> io::Error {
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

/// Opens a file with these flags and `O_CLOEXEC`. A new file is its owner's alone.
///
/// The flags reach the kernel as they are. [`std::os::unix::fs::OpenOptionsExt::custom_flags`] would remove the bits of
/// `O_ACCMODE`, which include `O_PATH` in musl. Then a file that was only to be held would be opened.
///
/// The call is openat(2) alone, with each C library. open(3) of musl makes open(2) and fcntl(2), which a seccomp filter may
/// answer with death where no other program makes them.
///
/// # Errors
/// open(2)
pub fn with(path: &Path, flags: OFlag) -> io::Result<File> {
    let flags = (flags | OFlag::O_CLOEXEC).bits();
    let mode: libc::mode_t = libc::S_IRUSR | libc::S_IWUSR;
    loop {
        let opened = path.with_nix_path(|path| {
            // SAFETY: openat(2) with a string that ends in NUL.
            unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, mode) }
        })?;
        match Errno::result(opened) {
            Err(Errno::EINTR) => {}
            // SAFETY: a new descriptor of ours, which nothing else closes. Descriptors are small numbers.
            opened => return Ok(unsafe { File::from_raw_fd(opened? as RawFd) }),
        }
    }
}

/// Opens what is at `path` with `O_PATH`: a FIFO or a device does nothing. Symbolic links are followed.
///
/// # Errors
/// open(2)
pub fn path_only(path: &Path) -> io::Result<File> {
    with(path, OFlag::O_PATH)
}

/// Returns which file this is, by what the kernel knows already: a file system in user space is not asked.
///
/// # Errors
/// statx(2)
pub fn id_without_waiting(file: &File) -> io::Result<FileId> {
    let mut stat = MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: statx(2) reads an empty name and writes to a live structure of that type.
    let done = unsafe {
        libc::syscall(
            libc::SYS_statx,
            file.as_raw_fd(),
            c"".as_ptr(),
            flags,
            libc::STATX_INO,
            stat.as_mut_ptr(),
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all its bytes are zero or what the kernel wrote: it has only numbers.
    let stat = unsafe { stat.assume_init() };
    Ok(FileId { major: stat.stx_dev_major, minor: stat.stx_dev_minor, inode: stat.stx_ino })
}

/// Opens the regular file at `path` for reading, without waiting; symbolic links are followed.
///
/// # Errors
/// open(2); for a file that is not regular, an error for which [`is_not_regular`] returns true.
pub fn regular(path: &Path) -> io::Result<(File, Metadata)> {
    regular_at(&path_only(path)?, |flags| with(path, flags))
}

/// Opens a regular file for reading by a descriptor of it, which may be one of `O_PATH`.
///
/// # Errors
/// open(2)
pub fn again(held: &File) -> io::Result<File> {
    with(&own_path(held), READ)
}

/// The bits of a file's flags that say whether it is read, written, or both. `O_ACCMODE` of musl has one more, `O_PATH`.
pub const ACCESS: libc::c_int = libc::O_RDONLY | libc::O_WRONLY | libc::O_RDWR;

/// `O_NONBLOCK`: do not wait for another process that holds a lease on the file.
const READ: OFlag = OFlag::O_RDONLY.union(OFlag::O_NONBLOCK).union(OFlag::O_NOCTTY);

/// Opens the file of which `seen` is an `O_PATH` descriptor. `by_name` opens it with these flags by
/// its name; it is used where there is no /proc.
pub fn regular_at(
    seen: &File,
    by_name: impl FnOnce(OFlag) -> io::Result<File>,
) -> io::Result<(File, Metadata)> {
    let meta = seen.metadata()?;
    if !meta.is_file() {
        return Err(not_regular());
    }
    let file = match again(seen) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => by_name(READ)?,
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

/// Returns a path that leads to an open file, whatever its name is, for as long as this process has it open.
pub fn own_path(file: &File) -> PathBuf {
    Path::new("/proc/self/fd").join(file.as_raw_fd().to_string())
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
        let held = path_only(&at("a")).unwrap();
        std::fs::rename(at("b"), at("a")).unwrap();
        let (file, _) = regular_at(&held, |_| File::open(at("a"))).unwrap();
        assert_eq!(std::io::read_to_string(file).unwrap(), "a");
    }
}
