// SPDX-License-Identifier: Apache-2.0
//! Becomes a program as execvp(3) does. [`crate::lookup`] finds its file.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

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
