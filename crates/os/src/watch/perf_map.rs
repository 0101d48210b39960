// SPDX-License-Identifier: Apache-2.0
//! `/tmp/perf-PID.map`: what perf(1) names code by that was copied, for such code is anonymous
//! memory.
//!
//! A watcher writes the file and removes it at the program's end: a process of its own, for the
//! helper must end before the program begins. It is no child of the program, and holds none of its
//! files.

use crate::io::open;
use crate::proc::pidfd::pidfd_open;
use crate::proc::procfs::Process;
use hugelift_core::addr::Range;
use hugelift_core::demangle::Names;
use hugelift_core::printable::Untrusted;
use hugelift_core::snapshot::Object;
use hugelift_core::symbols::{functions, perf_map};
use object::read::ReadCache;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
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
    /// The spans of `object` in process `pid`.
    ///
    /// # Errors
    /// Its file cannot be opened any more.
    pub fn open(pid: u32, object: &Object, spans: Vec<Range>) -> io::Result<Copied> {
        let process = Process::new(pid);
        let path = match object.executable {
            true => process.path("exe"),
            false => process.path("root").join(object.path.strip_prefix("/").unwrap_or(&object.path)),
        };
        let (file, _) = open::regular(&path)?;
        Ok(Copied { file, bias: object.bias, spans })
    }

    fn lines(&self, names: Names) -> String {
        let cache = ReadCache::new(&self.file);
        match functions(&cache) {
            Ok(functions) => perf_map(&functions, self.bias, &self.spans, names),
            Err(error) => {
                tracing::debug!(%error, "no symbols");
                String::new()
            }
        }
    }
}

/// Why copied code has no names.
#[derive(Debug, thiserror::Error)]
pub enum Unnamed {
    /// open(2) or write(2) failed.
    #[error("cannot write {path}: {source}")]
    Unwritten {
        /// The map.
        path: Untrusted,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Somebody else's file is where the map should be.
    #[error("cannot write {path}: a file is there that is not this user's own; remove it: rm {path}")]
    Taken {
        /// The map.
        path: Untrusted,
    },
    /// No watcher could be started to remove the map at the program's end.
    #[error("cannot watch the program to remove {path} at its end: {source}")]
    Unwatched {
        /// The map.
        path: Untrusted,
        /// The kernel's answer.
        source: io::Error,
    },
    /// There is nothing to write.
    #[error("perf will find no names: no copied function has one in its file (is it stripped?)")]
    Nameless,
}

/// The map of a process, created and empty yet.
#[derive(Debug)]
pub struct Map {
    pid: u32,
    path: PathBuf,
    file: File,
}

impl Map {
    /// Creates the map of process `pid`.
    ///
    /// # Errors
    /// [`Unnamed`]
    pub fn create(pid: u32) -> Result<Map, Unnamed> {
        let path = PathBuf::from(format!("/tmp/perf-{pid}.map"));
        match create(&path) {
            Ok(file) => Ok(Map { pid, path, file }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(Unnamed::Taken { path: path.into() })
            }
            Err(source) => Err(Unnamed::Unwritten { path: path.into(), source }),
        }
    }

    /// Writes the names of `objects` and leaves the map there. A map that cannot be written is removed.
    ///
    /// # Errors
    /// [`Unnamed`]
    pub fn write(&mut self, objects: &[Copied], names: Names) -> Result<(), Unnamed> {
        // Beyond the limit of file sizes (`ulimit -f`) write(2) is to fail, not to end this process.
        // SAFETY: signal(2): no handler of ours is involved.
        let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        let written = self.try_write(objects, names);
        if before != libc::SIG_ERR {
            // SAFETY: as above: what was there.
            unsafe { libc::signal(libc::SIGXFSZ, before) };
        }
        if written.is_err() {
            self.remove();
        }
        written
    }

    fn try_write(&mut self, objects: &[Copied], names: Names) -> Result<(), Unnamed> {
        let mut bytes = 0;
        for object in objects {
            let lines = object.lines(names);
            bytes += lines.len();
            self.file
                .write_all(lines.as_bytes())
                .map_err(|source| Unnamed::Unwritten { path: (&self.path).into(), source })?;
        }
        if bytes == 0 { Err(Unnamed::Nameless) } else { Ok(()) }
    }

    /// Removes the map, unless another file has its name by now: that of a later process of this number.
    fn remove(&self) {
        let id = |m: std::fs::Metadata| (m.dev(), m.ino());
        let (ours, there) = (self.file.metadata(), std::fs::symlink_metadata(&self.path));
        if ours.is_ok_and(|ours| there.is_ok_and(|there| id(there) == id(ours))) {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Starts the watcher of the process, which is stopped; it writes the map, and `complain`s if it
    /// cannot. Returns at once.
    ///
    /// # Errors
    /// [`Unnamed::Unwatched`]; the map is removed.
    pub fn watch(
        mut self,
        objects: &[Copied],
        names: Names,
        complain: impl FnOnce(&Unnamed),
    ) -> Result<(), Unnamed> {
        let started = pidfd_open(self.pid).and_then(|program| match fork()? {
            true => Ok(()),
            false => {
                let mut keep: Vec<RawFd> = objects.iter().map(|o| o.file.as_raw_fd()).collect();
                keep.extend([2, program.as_raw_fd(), self.file.as_raw_fd()]);
                crate::launch::close_all_but(&keep);
                // It holds no file system in use.
                let _ = std::env::set_current_dir("/");
                match self.write(objects, names) {
                    Ok(()) => {
                        // Whoever reads the program's stderr is not to wait for the watcher. The map
                        // stays open: by it `remove` knows which file is ours.
                        crate::launch::close_all_but(&[program.as_raw_fd(), self.file.as_raw_fd()]);
                        wait_for_end(&program);
                        self.remove();
                    }
                    Err(why) => complain(&why),
                }
                // SAFETY: _exit(2) ends the process without running what the launcher has registered.
                unsafe { libc::_exit(0) }
            }
        });
        started.map_err(|source| {
            self.remove();
            Unnamed::Unwatched { path: (&self.path).into(), source }
        })
    }
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

/// fork(2): `true` in the parent, `false` in the child.
fn fork() -> io::Result<bool> {
    // SAFETY: fork(2) of a process with one thread: the child may go on as usual.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        child => Ok(child != 0),
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
        // Another one's is not removed in its place.
        let written = |file| Map { pid: 0, path: path.clone(), file };
        let (ours, other) = (File::open(&path).unwrap(), File::open(&target).unwrap());
        written(other).remove();
        assert!(path.exists());
        written(ours).remove();
        assert!(!path.exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
