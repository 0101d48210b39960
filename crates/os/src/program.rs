// SPDX-License-Identifier: Apache-2.0
//! Which file a program name means, whether it may be traced, and starting it: all as
//! execvp(3) does it.

use crate::open;
use crate::plain::Plain;
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
    /// As the user named it.
    pub program: Untrusted,
    /// The kernel's answer.
    pub source: io::Error,
}

impl ExecError {
    /// 127 if there is no such program, 126 if there is one that cannot be executed.
    pub fn status(&self) -> i32 {
        if self.source.raw_os_error() == Some(libc::ENOENT) { 127 } else { 126 }
    }
}

/// The files that `name` may mean, in the order in which execvp(3) tries them.
fn candidates(name: &OsStr) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&path)
        .map(|dir| if dir.as_os_str().is_empty() { name.into() } else { dir.join(name) })
        .collect()
}

/// The file that execvp(3) would start for `name`.
///
/// # Errors
/// ENOENT if there is none, EACCES if those that there are may not be executed.
pub fn resolve(name: &OsStr) -> Result<PathBuf, ExecError> {
    let fail = |errno| ExecError { program: name.into(), source: io::Error::from_raw_os_error(errno) };
    if name.is_empty() {
        return Err(fail(libc::ENOENT));
    }
    // With a slash there is no look-up, hence nothing to go on to.
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return executable(&path).map(|()| path).map_err(fail);
    }
    let mut worst = libc::ENOENT;
    for path in candidates(name) {
        match executable(&path) {
            Ok(()) => return Ok(path),
            // execvp(3) looks on after these, and remembers the refusal.
            Err(libc::EACCES) => worst = libc::EACCES,
            Err(libc::ENOENT | libc::ENOTDIR | libc::ENODEV | libc::ETIMEDOUT | libc::ESTALE) => {}
            Err(errno) => return Err(fail(errno)),
        }
    }
    Err(fail(worst))
}

fn executable(path: &Path) -> Result<(), i32> {
    let errno = |e: io::Error| e.raw_os_error().unwrap_or(libc::EIO);
    let meta = std::fs::metadata(path).map_err(errno)?;
    if !meta.is_file() {
        return Err(libc::EACCES);
    }
    nix::unistd::eaccess(path, nix::unistd::AccessFlags::X_OK).map_err(|e| e as i32)
}

/// What is behind a `#!` may be a script again; the kernel follows this many.
const MAX_SCRIPTS: usize = 5;

/// Whether the program at `path` may be traced and lifted, as far as its file tells.
///
/// # Errors
/// Why not.
pub fn examine(path: &Path) -> Result<(), Plain> {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_SCRIPTS {
        if let Some(what) = privilege(&path) {
            return Err(Plain::Privileged { path: path.into(), what });
        }
        let head = match head(&path) {
            Ok(head) => head,
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Err(Plain::Unreadable),
            // What else is wrong with it execve(2) will tell.
            Err(_) => return Ok(()),
        };
        match interpreter(&head) {
            Some(next) => path = next,
            None => {
                return match Headers::parse(&head) {
                    Err(ElfError::Class32) => Err(Plain::Class32 { path: path.into() }),
                    _ => Ok(()),
                };
            }
        }
    }
    Ok(())
}

fn head(path: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    // A script may name a FIFO, which would make us wait, where execve(2) just refuses it.
    open::regular(path)?.0.take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// The interpreter that a script names in its first line.
pub fn interpreter(head: &[u8]) -> Option<PathBuf> {
    let line = head.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?.trim_ascii_start();
    let end = line.iter().position(|b| matches!(b, b' ' | b'\t' | 0)).unwrap_or(line.len());
    (end > 0).then(|| PathBuf::from(OsStr::from_bytes(&line[..end])))
}

/// The rights that the kernel would give the program beyond its caller's.
fn privilege(path: &Path) -> Option<&'static str> {
    // With no_new_privs, and on a nosuid mount, it gives none (execve(2)).
    if nix::sys::prctl::get_no_new_privs().unwrap_or(false) {
        return None;
    }
    let nosuid = nix::sys::statvfs::FsFlags::ST_NOSUID;
    if nix::sys::statvfs::statvfs(path).is_ok_and(|s| s.flags().contains(nosuid)) {
        return None;
    }
    let mode = std::fs::metadata(path).ok()?.mode();
    if mode & libc::S_ISUID != 0 {
        return Some("set-uid");
    }
    if mode & libc::S_ISGID != 0 && mode & libc::S_IXGRP != 0 {
        return Some("set-gid");
    }
    let name = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: getxattr(2): both names end in NUL and live through the call; a size of 0
    // asks for the length alone.
    let len =
        unsafe { libc::getxattr(name.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) };
    (len > 0).then_some("given file capabilities")
}

/// Becomes the program at `path`. Returns only if that fails.
///
/// As execvp(3), hands a file that the kernel takes for no program to the shell.
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

/// Sets a variable of the environment that [`exec`] hands on.
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
        /// environ(7): handed on as it is, also where it is malformed.
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

    #[test]
    fn names_resolve_as_execvp_does() {
        assert_eq!(resolve(OsStr::new("/bin/sh")).unwrap(), Path::new("/bin/sh"));
        assert!(resolve(OsStr::new("sh")).unwrap().ends_with("sh"));
        assert_eq!(resolve(OsStr::new("no-such-program")).unwrap_err().status(), 127);
        assert_eq!(resolve(OsStr::new("")).unwrap_err().status(), 127);
        assert_eq!(resolve(OsStr::new("/etc/passwd")).unwrap_err().status(), 126);
        assert_eq!(resolve(OsStr::new("/")).unwrap_err().status(), 126);
    }
}
