// SPDX-License-Identifier: Apache-2.0
//! Owner, mode, extended attributes and times of a file, which its copy gets too.

use super::error::ReplaceError;
use crate::relay::{CAPABILITIES, Original};
use hugelift_core::printable::Escape;
use std::ffi::{OsStr, OsString};
use std::fs::{File, FileTimes, Metadata, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use xattr::FileExt;

/// Attributes that are valid only for the file that has them.
const SIGNATURES: [(&str, &str); 2] = [("security.ima", "IMA"), ("security.evm", "EVM")];

/// Grants rights to further users (acl(5)).
const ACCESS_LIST: &str = "system.posix_acl_access";

/// Returns which rights beyond its caller's a program has, if it has any. A copy with them, or an original
/// that keeps them under its second name, could be exploited after the program itself was mended.
pub(super) fn privilege(original: &Original) -> Option<&'static str> {
    if original.meta.mode() & (libc::S_ISUID | libc::S_ISGID) != 0 {
        return Some("is set-uid or set-gid");
    }
    original.has_capabilities().then_some("has file capabilities")
}

/// Returns a difference between the rights of `file` and those of `other`, which would replace it. A file
/// with hard links may be another user's, linked here.
pub(super) fn other_rights(file: &Original, other: &Original) -> Option<String> {
    let (a, b) = (&file.meta, &other.meta);
    let is_same = (a.dev(), a.ino()) == (b.dev(), b.ino());
    let differs = |what: &str, a: u32, b: u32| (a != b).then(|| format!("its {what} is {b} instead of {a}"));
    let mode = |m: &Metadata| m.mode() & 0o7777;
    let differs_in = |name: &str| attribute(file.file(), name) != attribute(other.file(), name);
    differs("owner", a.uid(), b.uid())
        .or_else(|| differs("group", a.gid(), b.gid()))
        .or_else(|| {
            (mode(a) != mode(b)).then(|| format!("its mode is {:o} instead of {:o}", mode(b), mode(a)))
        })
        .or_else(|| (!is_same && b.nlink() > 1).then(|| format!("it has {} names (hard links)", b.nlink())))
        .or_else(|| differs_in(CAPABILITIES).then(|| "its file capabilities differ: getcap".to_string()))
        .or_else(|| differs_in(ACCESS_LIST).then(|| "its access control list differs: getfacl".to_string()))
}

fn attribute(file: &File, name: &str) -> Option<Vec<u8>> {
    file.get_xattr(name).ok().flatten()
}

/// Returns by what the file is signed or measured, if it is.
pub(super) fn signed(file: &File) -> Option<&'static str> {
    SIGNATURES
        .iter()
        .find(|(name, _)| attribute(file, name).is_some())
        .map(|(_, by)| *by)
        .or(verity(file).then_some("fs-verity"))
}

fn verity(file: &File) -> bool {
    // SAFETY: statx(2): plain numbers, for which zeros are valid; the kernel fills them in.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: statx(2): an open file, an empty path that ends in NUL, and room for the answer.
    let status = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_MODE, &raw mut found)
    };
    status == 0 && found.stx_attributes & libc::STATX_ATTR_VERITY as u64 != 0
}

/// Gives `copy` the owner, the extended attributes (with the access control lists) and the mode of
/// `original`, in the order in which one does not undo another.
pub(super) fn carry_over(original: &Original, copy: &File) -> Result<(), ReplaceError> {
    let failed = |what: &str| {
        let (path, what) = (original.path.clone(), what.to_string());
        move |source| ReplaceError::Attribute { path: path.into(), what, source }
    };
    let meta = &original.meta;
    let new = copy.metadata().map_err(failed("owner"))?;
    if (meta.uid(), meta.gid()) != (new.uid(), new.gid()) {
        fchown(copy, Some(meta.uid()), Some(meta.gid())).map_err(failed("owner"))?;
    }
    let (wanted, there) = (names(original.file()), names(copy));
    let wanted = wanted.map_err(failed("extended attributes"))?;
    for name in there.map_err(failed("extended attributes"))? {
        // Attributes from the folder: a default access control list. Security labels belong to the kernel.
        if !wanted.contains(&name) && !name.as_encoded_bytes().starts_with(b"security.") {
            copy.remove_xattr(&name).map_err(failed(&name.escaped().to_string()))?;
        }
    }
    // Never capabilities: the owner may have opened the copy for writing just now.
    for name in wanted.iter().filter(|name| *name != CAPABILITIES) {
        carry_one(original.file(), copy, name).map_err(failed(&name.escaped().to_string()))?;
    }
    copy.set_permissions(Permissions::from_mode(meta.mode() & 0o7777)).map_err(failed("mode"))
}

/// Returns the names of all attributes; none, where the file system does not support them.
fn names(file: &File) -> io::Result<Vec<OsString>> {
    match file.list_xattr() {
        Ok(names) => Ok(names.collect()),
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(vec![]),
        Err(e) => Err(e),
    }
}

fn carry_one(from: &File, to: &File, name: &OsStr) -> io::Result<()> {
    let value = from.get_xattr(name)?;
    match value {
        Some(value) if to.get_xattr(name)?.as_ref() != Some(&value) => to.set_xattr(name, &value),
        _ => Ok(()),
    }
}

/// Gives `copy` the times of `original`.
pub(super) fn times(original: &Original, copy: &File) -> Result<(), ReplaceError> {
    let failed =
        |source| ReplaceError::Attribute { path: original.path.clone().into(), what: "times".into(), source };
    let times = original.meta.accessed().and_then(|accessed| {
        Ok(FileTimes::new().set_accessed(accessed).set_modified(original.meta.modified()?))
    });
    times.and_then(|times| copy.set_times(times)).map_err(failed)
}
