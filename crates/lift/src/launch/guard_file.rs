// SPDX-License-Identifier: Apache-2.0
//! Finds the fork guard (the library of `hugelift-inside`), and makes programs load it.

use crate::launch::guard_check::{self, CannotLoad};
use hugelift_inside::names;
use hugelift_linux::io::console::unhurt;
use hugelift_linux::io::entry::Entry;
use hugelift_linux::io::temporary::own_path;
use hugelift_linux::program::{remove_variable, set_variable};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::FileStat;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The fork guard as a file.
#[derive(Debug)]
pub struct GuardFile {
    library: PathBuf,
}

impl GuardFile {
    /// Returns the library, if the program at `path` can load it. Searches the folder of this executable,
    /// then `../lib/hugelift`. If it is in neither, as after `cargo install`, or if others could have put it there, makes a
    /// file in memory of the copy that this executable contains.
    ///
    /// # Errors
    /// [`CannotLoad`]
    pub fn for_program(path: &Path) -> Result<GuardFile, CannotLoad> {
        guard_check::check(path)?;
        GuardFile::find()
    }

    fn find() -> Result<GuardFile, CannotLoad> {
        let exe = std::env::current_exe().map_err(CannotLoad::NoPath)?;
        let beside = exe.parent().unwrap_or(Path::new("/")).to_path_buf();
        let installed = beside.parent().unwrap_or(Path::new("/")).join("lib/hugelift");
        for library in [&beside, &installed].map(|dir| dir.join(names::LIBRARY)) {
            if others_can_change(&library) {
                continue;
            }
            match guard_check::check_library(&library) {
                Err(CannotLoad::Unreadable { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                Err(why) => return Err(why),
                Ok(()) if library.as_os_str().as_bytes().iter().any(|b| b" :".contains(b)) => {
                    return Err(CannotLoad::Unnameable(library.into()));
                }
                // A folder of another user that could not be searched before may be open now.
                Ok(()) if Entry::find(&library).is_err() || others_can_change(&library) => {}
                Ok(()) => return Ok(GuardFile { library }),
            }
        }
        let library = in_memory().map_err(|source| CannotLoad::NotThere {
            beside: beside.into(),
            installed: installed.into(),
            source,
        })?;
        guard_check::check_library(&library)?;
        Ok(GuardFile { library })
    }

    /// Makes the program load the library, before the libraries of the user's `LD_PRELOAD`. Makes the library guard
    /// fork(2), with `reserve` pages of the pool kept for a child. The library removes both variables before
    /// `main`.
    ///
    /// # Errors
    /// setenv(3), fcntl(2).
    pub fn guard(&self, reserve: u64) -> io::Result<()> {
        let before = BEFORE.get_or_init(|| std::env::var_os(names::PRELOAD));
        let all = preloaded(&self.library, before.as_deref().unwrap_or_default());
        keep_open(FdFlag::empty())?;
        set_variable(names::PRELOAD, all)?;
        set_variable(names::GUARD, reserve.to_string())
    }

    /// Undoes all [`guard`](Self::guard)s: the next program is started plainly, and must not get what only the library
    /// would take away from it.
    ///
    /// # Errors
    /// setenv(3), fcntl(2).
    pub fn withdraw() -> io::Result<()> {
        let Some(before) = BEFORE.get() else { return Ok(()) };
        keep_open(FdFlag::FD_CLOEXEC)?;
        remove_variable(names::GUARD)?;
        match before {
            Some(value) => set_variable(names::PRELOAD, value),
            None => remove_variable(names::PRELOAD),
        }
    }
}

/// Returns whether others than root and this user can change a file, make it, or put another one in its place. What is absent now is
/// not used, as it may be there in the next moment. In a folder that this user may not search, nothing can be loaded: the check
/// of the library says that.
fn others_can_change(file: &Path) -> bool {
    match Entry::find(file) {
        Ok(entry) => {
            let is_safe = |stat: FileStat| entry.is_changed_by_trusted_alone(stat.st_uid, stat.st_mode);
            !entry.stat().is_ok_and(is_safe)
        }
        Err(error) => error.raw_os_error() != Some(libc::EACCES),
    }
}

/// `LD_PRELOAD` of the user, if it has been changed.
static BEFORE: OnceLock<Option<OsString>> = OnceLock::new();
/// The library in memory, if it was needed. It is closed by execve(2), unless a guard wants it.
static MADE: OnceLock<File> = OnceLock::new();

/// Sets whether execve(2) closes the library in memory, if there is one.
fn keep_open(flags: FdFlag) -> io::Result<()> {
    match MADE.get() {
        Some(file) => Ok(fcntl(file, FcntlArg::F_SETFD(flags)).map(drop)?),
        None => Ok(()),
    }
}

/// Makes a file in memory with the library, once, and returns its path in this process and in the program that it
/// becomes. No other user can put another library in its place, as might happen in a folder that users share, and nobody
/// can change it.
///
/// Its descriptor stays open for the program's loader. The library closes it before `main`.
fn in_memory() -> io::Result<PathBuf> {
    if let Some(file) = MADE.get() {
        return Ok(path_in_memory(file));
    }
    // With MFD_EXEC it can be mapped as code also where that is not the default (vm.memfd_noexec). Kernels before 6.3
    // do not know the flag.
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let made = match memfd_create(names::LIBRARY, flags | MFdFlags::from_bits_retain(libc::MFD_EXEC)) {
        Err(Errno::EINVAL) => memfd_create(names::LIBRARY, flags),
        made => made,
    };
    let mut file = File::from(made?);
    // The limit of `ulimit -f` holds for files in memory too, and its signal would end hugelift.
    unhurt(|| file.write_all(hugelift_inside::FILE))?;
    let seals =
        SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    fcntl(file.as_fd(), FcntlArg::F_ADD_SEALS(seals))?;
    let file = File::open(own_path(&file))?;
    Ok(path_in_memory(MADE.get_or_init(|| file)))
}

fn path_in_memory(file: &File) -> PathBuf {
    PathBuf::from(format!("{}{}", names::DESCRIPTORS, file.as_raw_fd()))
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
