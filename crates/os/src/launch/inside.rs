// SPDX-License-Identifier: Apache-2.0
//! The library inside the program (`hugelift-inside`): finds it, makes programs load it, and acts as the
//! helper of a program that requests a lift.

use crate::launch::helper::{LiftHooks, attend_waiting};
use crate::launch::preload::{self, NoPreload};
use crate::launch::program::set_variable;
use crate::launch::{close_all_but, send_answer};
use crate::trace::ptrace;
use hugelift_core::addr::Addr;
use hugelift_core::printable::Escape;
use hugelift_inside::names::{self, READY_BYTES, Ready};
use nix::sys::socket::sockopt::{PeerCredentials, ReceiveTimeout};
use nix::sys::socket::{getsockopt, setsockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The subcommand of hugelift that becomes a helper.
pub const SUBCOMMAND: &str = names::INSIDE;

/// The variable with the options of children.
pub const CHILDREN: &str = names::CHILDREN;

/// The library, and the hugelift that it calls.
#[derive(Debug)]
pub struct Inside {
    library: PathBuf,
    exe: PathBuf,
}

impl Inside {
    /// Returns the library, if the program at `path` can load it. Searches the folder of this executable,
    /// then `../lib/hugelift`.
    ///
    /// # Errors
    /// [`NoPreload`]
    pub fn for_program(path: &Path) -> Result<Inside, NoPreload> {
        let inside = Inside::find()?;
        preload::check(path)?;
        Ok(inside)
    }

    fn find() -> Result<Inside, NoPreload> {
        let exe = std::env::current_exe().map_err(NoPreload::NoPath)?;
        let beside = exe.parent().unwrap_or(Path::new("/")).to_path_buf();
        let installed = beside.parent().unwrap_or(Path::new("/")).join("lib/hugelift");
        for library in [&beside, &installed].map(|dir| dir.join(names::LIBRARY)) {
            match preload::check_library(&library) {
                Err(NoPreload::Unreadable { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                Err(why) => return Err(why),
                Ok(()) if library.as_os_str().as_bytes().iter().any(|b| b" :".contains(b)) => {
                    return Err(NoPreload::Unnameable(library.into()));
                }
                Ok(()) => return Ok(Inside { library, exe }),
            }
        }
        Err(NoPreload::NotThere { beside: beside.into(), installed: installed.into() })
    }

    /// Returns why a child that runs as another user cannot load the library, if it cannot.
    pub fn closed_to_others(&self) -> Option<String> {
        let (at, mode) = preload::closed_to_others(&self.library)?;
        let library = self.library.escaped();
        Some(format!(
            "children that run as other users cannot read {library} ({} has mode {mode:04o}), and their loader says so on stderr",
            at.escaped()
        ))
    }

    /// Makes the program load the library, before those of the user's `LD_PRELOAD`.
    ///
    /// # Errors
    /// setenv(3).
    pub fn preload(&self) -> io::Result<()> {
        let before = std::env::var_os(names::PRELOAD).unwrap_or_default();
        set_variable(names::PRELOAD, preloaded(&self.library, &before))
    }

    /// Makes the library guard fork(2) in the program, with `reserve` pages of the pool kept for a child.
    ///
    /// # Errors
    /// setenv(3).
    pub fn guard(&self, reserve: u64) -> io::Result<()> {
        self.preload()?;
        set_variable(names::GUARD, reserve.to_string())
    }

    /// Makes the library have children of the program lifted: those that are `worth` it, with `options`,
    /// which are JSON (see [`names::CHILDREN`]).
    ///
    /// Children inherit `LD_PRELOAD`, and which programs they are is not known yet. AddressSanitizer's
    /// runtime ends a child if the library is loaded before it, so `ASAN_OPTIONS` forbids that.
    ///
    /// # Errors
    /// setenv(3).
    pub fn lift_children(&self, worth: &str, options: &str) -> io::Result<()> {
        self.preload()?;
        let asan = std::env::var_os(names::ASAN_OPTIONS).unwrap_or_default();
        set_variable(names::ASAN_OPTIONS, preload::tolerant_asan_options(&asan))?;
        set_variable(names::EXE, &self.exe)?;
        set_variable(names::CHILDREN, format!("{worth} {options}"))
    }
}

/// Returns a value of `LD_PRELOAD` with `library` before the old entries, unless it is among them.
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

/// Sets the variable that keeps the library from requesting a second lift, if the program's children are to
/// be lifted: this process is about to become the program at `path`, whose helper it has started.
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

/// Returns the options with which this process's children are to be lifted: the JSON that
/// [`Inside::lift_children`] was given.
///
/// # Errors
/// One line: the variable is missing, or is not UTF-8.
pub fn children_options() -> Result<String, String> {
    let value = std::env::var(CHILDREN).map_err(|e| format!("{CHILDREN}: {e}"))?;
    Ok(value.split_once(' ').map_or("", |(_, options)| options).to_string())
}

/// How long the helper waits for the first message. The library waits as long for the answer.
const PATIENCE_SECONDS: i64 = 10;

/// Acts as the helper of the process `target`, which has started it and waits at the other end of the socket
/// `fd`.
///
/// # Errors
/// One line: why this is not such a socket.
pub fn help(target: i32, fd: RawFd, hooks: &mut impl LiftHooks) -> Result<(), String> {
    // SAFETY: fcntl(2), F_GETFD, on any number.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1 {
        return Err(format!("descriptor {fd}: {}", io::Error::last_os_error()));
    }
    // SAFETY: the descriptor is open, and the process that has started this one passed it on.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let peer = getsockopt(&socket, PeerCredentials).map_err(|e| format!("descriptor {fd}: {e}"))?;
    if peer.pid() != target {
        return Err(format!("descriptor {fd} is of process {}, not of process {target}", peer.pid()));
    }
    // A session of its own: ctrl-C is for the program. It fails for the leader of a process group.
    let _ = nix::unistd::setsid();
    close_all_but(&[2, socket.as_raw_fd()]);
    // The library sends at once, unless its process is stopped; another program may never send.
    setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(PATIENCE_SECONDS))
        .map_err(|e| format!("descriptor {fd}: {e}"))?;
    let mut socket = File::from(socket);
    let mut ready = [0; READY_BYTES];
    // The program has been killed, or has given up.
    if socket.read_exact(&mut ready).is_err() {
        return Ok(());
    }
    let ready = Ready::from_bytes(ready);
    let Some(running) = send_answer(socket, ptrace::seize(target)) else { return Ok(()) };
    match attend_waiting(running, Addr(ready.stop), hooks) {
        Ok(()) => hooks.after_start(),
        Err(ptrace::Error::Vanished(_)) => {}
        Err(error) => {
            hooks.bypass(&error.into());
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
