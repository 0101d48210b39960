// SPDX-License-Identifier: Apache-2.0
//! `/tmp/perf-PID.map`: what perf(1) names code by that was copied, for such code is anonymous
//! memory.
//!
//! A watcher writes the file and removes it at the program's end: a process of its own, for the
//! helper must end before the program begins. It is no child of the program, and holds none of its
//! files.

use crate::procfs::Process;
use hugelift_core::addr::Range;
use hugelift_core::snapshot::Object;
use hugelift_core::symbols::{functions, perf_map};
use object::read::ReadCache;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// An object with copied code.
#[derive(Debug)]
pub struct Copied {
    file: File,
    bias: u64,
    spans: Vec<Range>,
}

impl Copied {
    /// The spans of `object` in process `pid`; `None` if its file is no longer there.
    pub fn open(pid: u32, object: &Object, spans: Vec<Range>) -> Option<Copied> {
        let process = Process::new(pid);
        let path = match object.executable {
            true => process.path("exe"),
            false => process.path("root").join(object.path.strip_prefix("/").ok()?),
        };
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
        Some(Copied { file, bias: object.bias, spans })
    }

    fn lines(&self) -> String {
        let cache = ReadCache::new(&self.file);
        match functions(&cache) {
            Ok(functions) => perf_map(&functions, self.bias, &self.spans),
            Err(error) => {
                tracing::debug!(%error, "no symbols");
                String::new()
            }
        }
    }
}

/// Writes the map of process `pid` and leaves it there.
///
/// # Errors
/// open(2), write(2); EEXIST if somebody else's is there.
pub fn write(pid: u32, objects: &[Copied]) -> io::Result<PathBuf> {
    let path = PathBuf::from(format!("/tmp/perf-{pid}.map"));
    let mut file = create(&path)?;
    for object in objects {
        file.write_all(object.lines().as_bytes())?;
    }
    Ok(path)
}

/// A new file of our own, whatever lies in wait there: perf(1) believes only its own user's.
fn create(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let open = || OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(flags).open(path);
    match open() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // What an earlier process of this number has left.
            let there = std::fs::symlink_metadata(path)?;
            if !there.is_file() || there.uid() != nix::unistd::geteuid().as_raw() {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            open()
        }
        other => other,
    }
}

/// Starts the watcher for process `pid`, which is stopped. Returns at once.
///
/// # Errors
/// pidfd_open(2), fork(2).
pub fn watch(pid: u32, objects: &[Copied]) -> io::Result<()> {
    // SAFETY: pidfd_open(2) takes two numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor, nobody else's.
    let program = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
    // SAFETY: fork(2) of a process with one thread: the child may go on as usual.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let mut keep: Vec<RawFd> = objects.iter().map(|o| o.file.as_raw_fd()).collect();
            keep.push(program.as_raw_fd());
            crate::launch::close_all_but(&keep);
            // It holds no file system in use.
            let _ = std::env::set_current_dir("/");
            if let Ok(path) = write(pid, objects) {
                wait_for_end(&program);
                let _ = std::fs::remove_file(path);
            }
            // SAFETY: _exit(2) ends the process without running what the launcher has registered.
            unsafe { libc::_exit(0) }
        }
        _ => Ok(()),
    }
}

fn wait_for_end(program: &OwnedFd) {
    let mut poll = libc::pollfd { fd: program.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: poll(2) of one descriptor that lives through the call.
    while unsafe { libc::poll(&raw mut poll, 1, -1) } < 0
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_through_what_lies_there() {
        let dir = std::env::temp_dir().join(format!("hugelift-map-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let (target, path) = (dir.join("target"), dir.join("map"));
        std::fs::write(&target, "untouched").unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        assert_eq!(create(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "untouched");
        std::fs::remove_file(&path).unwrap();
        // An old one of ours is replaced, not written to.
        std::fs::hard_link(&target, &path).unwrap();
        create(&path).unwrap().write_all(b"new").unwrap();
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "untouched");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
