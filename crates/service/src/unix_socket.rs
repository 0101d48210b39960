// SPDX-License-Identifier: Apache-2.0
//! A listening socket in the file system: who may connect, and which file it may replace.
//!
//! Only a socket that a daemon of this user has left there is replaced. The name is removed when the socket is dropped.

use hugelift_core::printable::Escape;
use hugelift_linux::io::entry::Entry;
use hugelift_linux::io::lock::take_turn;
use hugelift_linux::io::open::own_path;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat};
use nix::unistd::{Gid, Uid};
use std::fs::{File, Permissions, set_permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a socket does not listen.
#[derive(Error, Debug)]
pub enum ListenError {
    /// Another file or process is there: the administrator must choose another place.
    #[error("{0}")]
    Taken(String),
    /// The socket cannot be made. The daemon can work without it.
    #[error("{0}")]
    Failed(String),
}

/// What a socket is for.
pub struct Purpose {
    /// Who may connect, which needs the right to write (unix(7)).
    pub mode: u32,
    /// How many clients wait in the kernel's queue at most; -1: as many as it allows.
    pub queue: i32,
    /// What does not replace another file.
    pub owner: &'static str,
    /// How to choose another path.
    pub advice: &'static str,
    /// Says that another process answers at a path.
    pub taken: fn(&str) -> String,
}

impl Purpose {
    fn taken(&self, place: &Entry) -> ListenError {
        ListenError::Taken((self.taken)(&place.path().escaped().to_string()))
    }

    /// Says that a file is something which is not replaced.
    pub fn refused(&self, path: &Path, what: &str) -> ListenError {
        let (path, owner, advice) = (path.escaped(), self.owner, self.advice);
        ListenError::Taken(format!(
            "{path} is {what}, which {owner} does not replace: remove it, or {advice}"
        ))
    }
}

/// A listening socket that does not block.
pub struct UnixSocket {
    listener: UnixListener,
    place: Entry,
    /// The socket's file, opened by `O_PATH`, so that no other file is changed or removed.
    file: File,
}

impl UnixSocket {
    /// Listens at `path`, whose folder must exist.
    ///
    /// # Errors
    /// [`ListenError::Taken`] if another file is there, or a daemon that answers.
    pub fn new(path: &Path, purpose: &Purpose) -> Result<UnixSocket, ListenError> {
        let failed = |e: io::Error| ListenError::Failed(format!("cannot listen at {}: {e}", path.escaped()));
        let place = Entry::find(path).map_err(failed)?;
        // A daemon must not remove a socket on which another one is about to listen.
        let _turn = take_turn(&place);
        match place.stat() {
            Ok(found) => {
                check_dead(&place, &found, purpose)?;
                match place.remove() {
                    // Its daemon has removed it.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    removed => removed.map_err(failed)?,
                }
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed(e)),
        }
        let listener = bound(&place.path(), purpose).map_err(|error| match error {
            // Another daemon has made its socket meanwhile.
            Errno::EADDRINUSE => purpose.taken(&place),
            error => failed(error.into()),
        })?;
        let hold = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = place.open_with(hold, Mode::empty()).map_err(failed)?;
        if !fstat(&file).is_ok_and(|stat| is_own_socket(&stat)) {
            return Err(purpose.taken(&place));
        }
        let socket = UnixSocket { listener: listener.into(), place, file };
        // The umask has taken rights away.
        socket.set_mode(purpose.mode).map_err(failed)?;
        Ok(socket)
    }

    /// Changes who may connect.
    ///
    /// # Errors
    /// chmod(2)
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        set_permissions(own_path(&self.file), Permissions::from_mode(mode))
    }

    /// Gives it to a group.
    ///
    /// # Errors
    /// chown(2)
    pub fn set_group(&self, group: Gid) -> io::Result<()> {
        chown(own_path(&self.file), None, Some(group.as_raw()))
    }

    /// Returns its path, without symbolic links.
    pub fn path(&self) -> PathBuf {
        self.place.path()
    }

    /// Returns the socket that accepts clients.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        // Another daemon may have replaced it.
        if self.file.metadata().is_ok_and(|own| self.place.is(&own)) {
            let _ = self.place.remove();
        }
    }
}

/// Returns a new socket that listens at this path. Its mode is set before it has a name, and bind(2) takes the mode over
/// (`unix_bind` in net/unix/af_unix.c): at no moment may others connect.
fn bound(path: &Path, purpose: &Purpose) -> nix::Result<OwnedFd> {
    let fd = new_socket()?;
    fchmod(&fd, Mode::from_bits_truncate(purpose.mode))?;
    bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    listen(&fd, Backlog::new(purpose.queue)?)?;
    Ok(fd)
}

fn new_socket() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::Stream, flags, None)
}

fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits())
}

fn is_own_socket(stat: &FileStat) -> bool {
    kind(stat) == SFlag::S_IFSOCK && stat.st_uid == Uid::effective().as_raw()
}

/// Checks that the file is a socket of this user on which no process listens.
fn check_dead(place: &Entry, found: &FileStat, purpose: &Purpose) -> Result<(), ListenError> {
    let path = place.path();
    let refused = |what: &str| Err(purpose.refused(&path, what));
    match kind(found) {
        SFlag::S_IFSOCK if is_own_socket(found) => {}
        SFlag::S_IFSOCK => return refused(&format!("a socket of user {}", found.st_uid)),
        SFlag::S_IFREG => return refused("a regular file"),
        SFlag::S_IFDIR => return refused("a directory"),
        SFlag::S_IFLNK => return refused("a symbolic link"),
        SFlag::S_IFIFO => return refused("a FIFO"),
        _ => return refused("a device"),
    }
    match try_connect(&path) {
        Err(Errno::ECONNREFUSED | Errno::ENOENT) => Ok(()),
        // EAGAIN: a process listens, and its queue is full.
        Ok(()) | Err(Errno::EAGAIN) => Err(purpose.taken(place)),
        Err(error) => refused(&format!("a socket on which another process may listen (connect: {error})")),
    }
}

/// Connects without waiting.
fn try_connect(path: &Path) -> nix::Result<()> {
    connect(new_socket()?.as_raw_fd(), &UnixAddr::new(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;
    use std::fs;
    use std::sync::Barrier;
    use std::thread;

    const PURPOSE: Purpose = Purpose {
        mode: 0o600,
        queue: 1,
        owner: "hugelift service",
        advice: "choose another path",
        taken: |path| format!("{path} is taken"),
    };

    fn names(folder: &Path) -> Vec<OsString> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn of_daemons_that_start_at_a_time_one_listens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("service.sock");
        for _ in 0..20 {
            // A daemon that was killed has left it. Nobody has ever listened at this one: a program that another test starts
            // would have the listener open until its execve(2).
            bind(new_socket().unwrap().as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
            let all = Barrier::new(4);
            // Each keeps its socket until all have tried.
            let begin = || {
                let socket = UnixSocket::new(&path, &PURPOSE).map_err(|error| error.to_string());
                all.wait();
                let seen = names(folder.path());
                all.wait();
                socket.map(|_| seen)
            };
            let results: Vec<_> = thread::scope(|scope| {
                let started: Vec<_> = (0..4).map(|_| scope.spawn(begin)).collect();
                started.into_iter().map(|one| one.join().unwrap()).collect()
            });
            let taken = format!("{} is taken", path.escaped());
            let refused = results.iter().filter(|result| **result == Err(taken.clone())).count();
            let listening =
                results.iter().filter(|result| **result == Ok(vec!["service.sock".into()])).count();
            assert_eq!((listening, refused), (1, 3), "{results:?}");
            assert_eq!(names(folder.path()), Vec::<OsString>::new());
        }
    }
}
