// SPDX-License-Identifier: Apache-2.0
//! The flags of a file (chattr(1)), which its copy gets too.

use super::error::ReplaceError;
use crate::relay::Original;
use nix::errno::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Flags that let nobody rename, link or remove the file (linux/fs.h): immutable, append only.
const FIXED: [(libc::c_int, char); 2] = [(0x10, 'i'), (0x20, 'a')];

/// Flags that a user may set and that a copy can have: `s`, `u`, `c`, `S`, `d`, `A`, `m`, `j`, `t`, `T`, `C`, `x`, `P`. The
/// others say how the file system keeps the file.
const KEPT: libc::c_int = 0x1
    | 0x2
    | 0x4
    | 0x8
    | 0x40
    | 0x80
    | 0x400
    | 0x4000
    | 0x8000
    | 0x2_0000
    | 0x80_0000
    | 0x200_0000
    | 0x2000_0000;

/// Returns the flags; none, where the file system has none.
fn flags(file: &File) -> io::Result<libc::c_int> {
    let mut flags: libc::c_int = 0;
    // SAFETY: ioctl(2) on an open file; it writes an int, whatever its number says.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETFLAGS, &raw mut flags) };
    match Errno::result(done) {
        Ok(_) => Ok(flags),
        Err(Errno::ENOTTY | Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINVAL) => Ok(0),
        Err(e) => Err(e.into()),
    }
}

/// Refuses a file that nobody may rename.
pub(super) fn refuse(file: &Original) -> Result<(), ReplaceError> {
    let set = flags(file.file()).unwrap_or(0);
    match FIXED.iter().find(|(flag, _)| set & flag != 0) {
        Some((_, letter)) => Err(ReplaceError::Locked { path: file.path.clone().into(), letter: *letter }),
        None => Ok(()),
    }
}

/// Gives `copy` the flags of `original`.
///
/// # Errors
/// [`ReplaceError::Attribute`], also if the file system accepts a flag and does not set it, as it does with `C` for a file
/// that has bytes.
pub(super) fn carry_over(original: &Original, copy: &File) -> Result<(), ReplaceError> {
    let failed = |source| ReplaceError::Attribute {
        path: original.path.clone().into(),
        what: "flags (lsattr)".into(),
        source,
    };
    let (wanted, there) = (flags(original.file()).map_err(failed)?, flags(copy).map_err(failed)?);
    if (wanted ^ there) & KEPT == 0 {
        return Ok(());
    }
    let new: libc::c_int = there & !KEPT | wanted & KEPT;
    // SAFETY: ioctl(2) on an open file; it reads an int.
    let done = unsafe { libc::ioctl(copy.as_raw_fd(), libc::FS_IOC_SETFLAGS, &raw const new) };
    Errno::result(done).map_err(|e| failed(e.into()))?;
    match (flags(copy).map_err(failed)? ^ wanted) & KEPT {
        0 => Ok(()),
        left => Err(failed(io::Error::other(format!("the file system does not set {left:#x}")))),
    }
}
