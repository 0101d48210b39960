// SPDX-License-Identifier: Apache-2.0
//! Writes `/tmp/perf-PID.map`, from which perf(1) takes the names of copied functions: copied code is
//! anonymous memory.
//!
//! A process of its own writes the file and removes it at the program's end, as the helper must end
//! before the program begins. It is not a child of the program, and keeps none of its files open.

use hugelift_core::addr::Range;
use hugelift_core::demangle::Names;
use hugelift_core::maps::Mapping;
use hugelift_core::printable::Untrusted;
use hugelift_core::snapshot::Object;
use hugelift_core::symbols::{functions, perf_map};
use hugelift_linux::io::open;
use hugelift_linux::proc::mapped::MappedFiles;
use hugelift_linux::proc::pidfd::pidfd_open;
use hugelift_linux::proc::procfs::Process;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use object::read::ReadCache;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// An object with copied code.
#[derive(Debug)]
pub struct Copied {
    file: File,
    bias: u64,
    spans: Vec<Range>,
}

impl Copied {
    /// Opens the file of `object` in process `pid`, which has these mappings; `spans` were copied. The map shows its names
    /// to the user of the process.
    ///
    /// # Errors
    /// The file cannot be opened any more.
    pub fn open(pid: u32, object: &Object, mappings: &[Mapping], spans: Vec<Range>) -> io::Result<Copied> {
        let found = MappedFiles::of(Process::new(pid)).find_any(object.file, mappings)?;
        if !found.proven {
            return Err(io::Error::from_raw_os_error(libc::ESTALE));
        }
        Ok(Copied { file: found.open()?, bias: object.bias, spans })
    }

    /// Returns the lines of the map for its functions.
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
    /// Another user's file has the name of the map.
    #[error("cannot write {path}: a file is there that is not this user's own; remove it: rm {path}")]
    Taken {
        /// The map.
        path: Untrusted,
    },
    /// The process that removes the map at the program's end could not be started.
    #[error("cannot watch the program to remove {path} at its end: {source}")]
    Unwatched {
        /// The map.
        path: Untrusted,
        /// The kernel's answer.
        source: io::Error,
    },
    /// No function has a name.
    #[error("perf will find no names: no copied function has one in its file (is it stripped?)")]
    Nameless,
}

/// The map of a process, created.
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
        // Beyond the limit of file sizes (`ulimit -f`) write(2) must fail, not end this process.
        // SAFETY: signal(2) installs no handler.
        let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        let written = self.write_lines(objects, names);
        if before != libc::SIG_ERR {
            // SAFETY: as above; the former disposition.
            unsafe { libc::signal(libc::SIGXFSZ, before) };
        }
        if written.is_err() {
            self.remove();
        }
        written
    }

    fn write_lines(&mut self, objects: &[Copied], names: Names) -> Result<(), Unnamed> {
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

    /// Removes the map, unless another file has its name by now, of a later process with this pid.
    fn remove(&self) {
        let id = |m: std::fs::Metadata| (m.dev(), m.ino());
        let (ours, there) = (self.file.metadata(), std::fs::symlink_metadata(&self.path));
        if ours.is_ok_and(|ours| there.is_ok_and(|there| id(there) == id(ours))) {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Starts the process that writes the map and removes it at the program's end. It calls `complain` if
    /// it cannot write. The program is stopped. Returns at once.
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
                crate::launch::descriptors::close_all_but(&keep);
                // This process must not keep the file system of the current folder from being unmounted.
                let _ = std::env::set_current_dir("/");
                match self.write(objects, names) {
                    Ok(()) => {
                        // A reader of the program's stderr must not wait for this process. The map stays
                        // open, so that `remove` recognizes its own file.
                        crate::launch::descriptors::close_all_but(&[
                            program.as_raw_fd(),
                            self.file.as_raw_fd(),
                        ]);
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

/// Creates a new file of this user, even if a file has its name: perf(1) reads only maps of its own user.
fn create(path: &Path) -> io::Result<File> {
    let new = || open::with(path, OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW);
    match new() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // An earlier process with this pid may have left it.
            let there = std::fs::symlink_metadata(path)?;
            if !there.is_file() || there.uid() != nix::unistd::geteuid().as_raw() {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            new()
        }
        other => other,
    }
}

/// Forks; returns `true` in the parent, `false` in the child.
fn fork() -> io::Result<bool> {
    // SAFETY: fork(2) of a process with one thread: the child may go on as usual.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        child => Ok(child != 0),
    }
}

fn wait_for_end(program: &OwnedFd) {
    let mut fds = [PollFd::new(program.as_fd(), PollFlags::POLLIN)];
    while poll(&mut fds, PollTimeout::NONE) == Err(Errno::EINTR) {}
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
        // An old file of ours is replaced, not written to.
        std::fs::hard_link(&target, &path).unwrap();
        create(&path).unwrap().write_all(b"new").unwrap();
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "untouched");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        // Another file that has the map's name is not removed.
        let written = |file| Map { pid: 0, path: path.clone(), file };
        let (ours, other) = (File::open(&path).unwrap(), File::open(&target).unwrap());
        written(other).remove();
        assert!(path.exists());
        written(ours).remove();
        assert!(!path.exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
