// SPDX-License-Identifier: Apache-2.0
//! Checks whether a program may be traced, and starts it as execvp(3) does. [`crate::launch::lookup`] finds
//! its file.

use crate::io::open;
use crate::launch::bypass::Bypass;
use hugelift_core::elf::{ElfError, HEAD_BYTES, Headers};
use hugelift_core::printable::Untrusted;
use std::ffi::{CStr, CString, OsStr};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Why a program could not be started, with env(1)'s exit status.
#[derive(Debug, thiserror::Error)]
#[error("cannot execute '{program}': {source}")]
pub struct ExecError {
    /// The program, as the user named it.
    pub program: Untrusted,
    /// The kernel's answer.
    pub source: io::Error,
}

impl ExecError {
    /// Returns 127 if there is no such program, 126 if there is one that cannot be executed.
    pub fn status(&self) -> i32 {
        if self.source.raw_os_error() == Some(libc::ENOENT) { 127 } else { 126 }
    }
}

/// The number of scripts that the kernel follows: the interpreter of a `#!` may be a script again.
pub(crate) const MAX_SCRIPTS: usize = 5;

/// Checks that the program at `path` may be traced and lifted, as far as its file shows.
///
/// # Errors
/// The reason why it may not.
pub fn examine(path: &Path) -> Result<(), Bypass> {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_SCRIPTS {
        match privilege(&path) {
            Ok(None) => {}
            Ok(Some(what)) => return Err(Bypass::Privileged { path: path.into(), what }),
            // Under a tracer such a program would not get its rights.
            Err(source) => return Err(Bypass::Unknown { path: path.into(), source }),
        }
        let head = match head(&path) {
            Ok(head) => head,
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Err(Bypass::Unreadable),
            // execve(2) will report any other fault.
            Err(_) => return Ok(()),
        };
        match interpreter(&head) {
            Some(next) => path = next,
            None => {
                return match Headers::parse(&head) {
                    Err(ElfError::Class32) => Err(Bypass::Class32 { path: path.into() }),
                    _ => Ok(()),
                };
            }
        }
    }
    Ok(())
}

fn head(path: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    // A script may name a FIFO. To open that would wait; execve(2) refuses it.
    open::regular(path)?.0.take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// Removes a variable from the environment of the program that this process becomes.
///
/// # Errors
/// unsetenv(3)
pub fn remove_variable(name: &str) -> io::Result<()> {
    let name = CString::new(name)?;
    // SAFETY: unsetenv(3) reads the string; the launcher has one thread.
    match unsafe { libc::unsetenv(name.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the interpreter that a script names in its first line.
pub fn interpreter(head: &[u8]) -> Option<PathBuf> {
    let line = head.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?.trim_ascii_start();
    let end = line.iter().position(|b| matches!(b, b' ' | b'\t' | 0)).unwrap_or(line.len());
    (end > 0).then(|| PathBuf::from(OsStr::from_bytes(&line[..end])))
}

/// Returns which rights the kernel would give the program beyond its caller's, if any.
///
/// # Errors
/// The rights cannot be found out. A missing file has none: execve(2) will report it.
fn privilege(path: &Path) -> io::Result<Option<&'static str>> {
    // With no_new_privs, and on a nosuid mount, the kernel gives none (execve(2)).
    if nix::sys::prctl::get_no_new_privs().unwrap_or(false) {
        return Ok(None);
    }
    let nosuid = nix::sys::statvfs::FsFlags::ST_NOSUID;
    if nix::sys::statvfs::statvfs(path).is_ok_and(|s| s.flags().contains(nosuid)) {
        return Ok(None);
    }
    let mode = match std::fs::metadata(path) {
        Ok(meta) => meta.mode(),
        Err(error) => {
            return match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR | libc::EACCES | libc::ELOOP | libc::ENAMETOOLONG) => {
                    Ok(None)
                }
                _ => Err(error),
            };
        }
    };
    if mode & libc::S_ISUID != 0 {
        return Ok(Some("set-uid"));
    }
    if mode & libc::S_ISGID != 0 && mode & libc::S_IXGRP != 0 {
        return Ok(Some("set-gid"));
    }
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: getxattr(2): both names end in NUL and live through the call; a size of 0
    // asks for the length alone.
    let len =
        unsafe { libc::getxattr(name.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) };
    match len {
        0 => Ok(None),
        1.. => Ok(Some("given file capabilities")),
        _ => {
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                // ENOTSUP: a file system without such attributes.
                Some(libc::ENODATA | libc::EOPNOTSUPP) => Ok(None),
                _ => Err(error),
            }
        }
    }
}

/// Becomes the program at `path`. Returns only if that fails.
///
/// Passes a file that the kernel does not take for a program to the shell, as execvp(3) does.
pub fn exec(path: &Path, argv: &[impl AsRef<OsStr>]) -> io::Error {
    let text = |s: &OsStr| CString::new(s.as_bytes());
    let Ok(mut args) = argv.iter().map(|a| text(a.as_ref())).collect::<Result<Vec<_>, _>>() else {
        return io::ErrorKind::InvalidInput.into();
    };
    let Ok(file) = text(path.as_os_str()) else { return io::ErrorKind::InvalidInput.into() };
    let error = execve(&file, &args);
    if error.raw_os_error() != Some(libc::ENOEXEC) {
        return error;
    }
    let shell = c"/bin/sh";
    args.splice(..args.len().min(1), [shell.to_owned(), file]);
    execve(shell, &args)
}

/// Sets a variable of the environment that [`exec`] passes on.
///
/// # Errors
/// setenv(3).
pub fn set_variable(name: &str, value: impl AsRef<OsStr>) -> io::Result<()> {
    let text = |s: &OsStr| CString::new(s.as_bytes()).map_err(io::Error::from);
    let (name, value) = (text(name.as_ref())?, text(value.as_ref())?);
    // SAFETY: setenv(3) copies both strings; the launcher has one thread.
    match unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn execve(file: &CStr, args: &[CString]) -> io::Error {
    let mut argv: Vec<*const libc::c_char> = args.iter().map(|a| a.as_ptr()).collect();
    argv.push(std::ptr::null());
    unsafe extern "C" {
        /// environ(7), which is passed on as it is, even if it is malformed.
        static environ: *const *const libc::c_char;
    }
    // SAFETY: execve(2): file and argv are NUL-terminated and live through the call;
    // environ is the process's own, and no other thread changes it.
    unsafe { libc::execve(file.as_ptr(), argv.as_ptr(), environ) };
    io::Error::last_os_error()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreters() {
        for (head, want) in [
            (&b"#!/bin/sh\n"[..], Some("/bin/sh")),
            (b"#! /usr/bin/env python3 -x\nrest", Some("/usr/bin/env")),
            (b"#!/bin/sh", Some("/bin/sh")),
            (b"#!\n", None),
            (b"#!   ", None),
            (b"\x7fELF", None),
            (b"", None),
        ] {
            assert_eq!(interpreter(head), want.map(PathBuf::from), "{}", head.escape_ascii());
        }
    }
}
