// SPDX-License-Identifier: Apache-2.0
//! The library inside the program (`hugelift-inside`): where it is, how programs come to load it,
//! and the helper of one that has asked to be lifted.

use crate::helper::{Lifter, attend_waiting};
use crate::launch::{close_all_but, send_answer};
use crate::program::set_variable;
use crate::ptrace;
use hugelift_core::addr::Addr;
use hugelift_core::printable::{Escape, Untrusted};
use hugelift_inside::names::{self, READY_BYTES, Ready};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The subcommand of hugelift that becomes a helper.
pub const SUBCOMMAND: &str = names::INSIDE;

/// Why the library cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum Missing {
    /// It is not where it should be.
    #[error("no {} in {} or {}; make build puts it beside hugelift", names::LIBRARY, beside.escaped(), installed.escaped())]
    NotThere {
        /// The folder of hugelift.
        beside: Untrusted,
        /// The folder for libraries of where that is.
        installed: Untrusted,
    },
    /// The loader takes these characters for separators.
    #[error("{} has a space or a colon in its path, which LD_PRELOAD cannot hold", .0.escaped())]
    Unnameable(Untrusted),
    /// Our own path, by which it is found.
    #[error("cannot find out where hugelift is: {0}; is /proc mounted?")]
    NoPath(io::Error),
}

/// The library, and the hugelift that it is to call.
#[derive(Debug)]
pub struct Inside {
    library: PathBuf,
    exe: PathBuf,
}

impl Inside {
    /// Looks beside this executable, then in `../lib/hugelift`.
    ///
    /// # Errors
    /// [`Missing`]
    pub fn find() -> Result<Inside, Missing> {
        let exe = std::env::current_exe().map_err(Missing::NoPath)?;
        let beside = exe.parent().unwrap_or(Path::new("/")).to_path_buf();
        let installed = beside.parent().unwrap_or(Path::new("/")).join("lib/hugelift");
        let places = [&beside, &installed].map(|dir| dir.join(names::LIBRARY));
        match places.into_iter().find(|path| path.is_file()) {
            None => Err(Missing::NotThere { beside: beside.into(), installed: installed.into() }),
            Some(path) if path.as_os_str().as_bytes().iter().any(|b| b" :".contains(b)) => {
                Err(Missing::Unnameable(path.into()))
            }
            Some(library) => Ok(Inside { library, exe }),
        }
    }

    /// Has the program load the library, before the user's own.
    ///
    /// # Errors
    /// setenv(3).
    pub fn preload(&self) -> io::Result<()> {
        let before = std::env::var_os(names::PRELOAD).unwrap_or_default();
        set_variable(names::PRELOAD, preloaded(&self.library, &before))
    }

    /// Has fork(2) guarded in the program, with `reserve` pages of the pool kept for a child.
    ///
    /// # Errors
    /// setenv(3).
    pub fn guard(&self, reserve: u64) -> io::Result<()> {
        self.preload()?;
        set_variable(names::GUARD, reserve.to_string())
    }

    /// Has the children of the program lifted: those that are `worth` it, with `options` of
    /// `hugelift run` (see [`names::CHILDREN`]).
    ///
    /// # Errors
    /// setenv(3).
    pub fn lift_children(&self, worth: &str, options: &[String]) -> io::Result<()> {
        self.preload()?;
        set_variable(names::EXE, &self.exe)?;
        set_variable(names::CHILDREN, format!("{worth} {}", shell_words::join(options)).trim_end())
    }
}

/// `library` before what is in `LD_PRELOAD`, once.
fn preloaded(library: &Path, before: &OsStr) -> OsString {
    let ours = library.as_os_str();
    let is_there = before.as_bytes().split(|b| b" :".contains(b)).any(|entry| entry == ours.as_bytes());
    let mut all = ours.to_owned();
    match before {
        before if is_there => return before.to_owned(),
        before if before.is_empty() => {}
        before => {
            all.push(":");
            all.push(before);
        }
    }
    all
}

/// Says, where the program's children are to be lifted, that this process is about to become the
/// program at `path`, which is lifted already: the library in it then asks nobody.
///
/// # Errors
/// setenv(3).
pub fn mark_started(path: &Path) -> io::Result<()> {
    if std::env::var_os(names::CHILDREN).is_none() {
        return Ok(());
    }
    let mut value = OsString::from(format!("{} ", std::process::id()));
    value.push(path);
    set_variable(names::STARTED, value)
}

/// The options with which this process's children are to be lifted.
///
/// # Errors
/// One line: what is wrong with the variable.
pub fn children_options() -> Result<Vec<String>, String> {
    let value = std::env::var(names::CHILDREN).map_err(|e| format!("{}: {e}", names::CHILDREN))?;
    let words = value.split_once(' ').map_or("", |(_, words)| words);
    shell_words::split(words).map_err(|e| format!("{}={value}: {e}", names::CHILDREN))
}

/// The helper's life, for the process `target` that has started it and waits at the other end of
/// the socket `fd`.
///
/// # Errors
/// One line: why this is no such socket.
pub fn help(target: i32, fd: RawFd, lifter: &mut impl Lifter) -> Result<(), String> {
    // SAFETY: fcntl(2), F_GETFD, on any number.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1 {
        return Err(format!("descriptor {fd}: {}", io::Error::last_os_error()));
    }
    // SAFETY: open, as just seen, and handed to us by who has started us.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let peer = getsockopt(&socket, PeerCredentials).map_err(|e| format!("descriptor {fd}: {e}"))?;
    if peer.pid() != target {
        return Err(format!("descriptor {fd} is of process {}, not of process {target}", peer.pid()));
    }
    // Out of the terminal's reach: ctrl-C is the program's.
    // SAFETY: setsid(2) takes no arguments.
    unsafe { libc::setsid() };
    close_all_but(&[2, socket.as_raw_fd()]);
    let mut socket = File::from(socket);
    let mut ready = [0; READY_BYTES];
    // It has been killed, or has thought better of it.
    if socket.read_exact(&mut ready).is_err() {
        return Ok(());
    }
    let ready = Ready::from_bytes(ready);
    let Some(running) = send_answer(socket, ptrace::seize(target)) else { return Ok(()) };
    match attend_waiting(running, Addr(ready.stop), lifter) {
        Ok(()) => lifter.afterwards(),
        Err(ptrace::Error::Vanished(_)) => {}
        Err(error) => {
            lifter.plain(&error.into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_libraries_stay() {
        let merged = |before: &str| preloaded(Path::new("/x/l.so"), OsStr::new(before));
        assert_eq!(merged(""), "/x/l.so");
        assert_eq!(merged("/a.so b.so"), "/x/l.so:/a.so b.so");
        assert_eq!(merged("/x/l.so:/a.so"), "/x/l.so:/a.so");
        assert_eq!(merged("/a.so /x/l.so"), "/a.so /x/l.so");
        assert_eq!(merged("/y/x/l.so"), "/x/l.so:/y/x/l.so");
    }
}
