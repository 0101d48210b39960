// SPDX-License-Identifier: Apache-2.0
//! Checks whether a program may be traced at its start.

use crate::launch::bypass::Bypass;
use hugelift_core::elf::{ElfError, HEAD_BYTES, Headers};
use hugelift_linux::io::open;
use hugelift_linux::script::{MAX_SCRIPTS, interpreter};
use std::ffi::CString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

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
