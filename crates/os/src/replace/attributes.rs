// SPDX-License-Identifier: Apache-2.0
//! What a file has besides its bytes, for its copy to have too.

use super::ReplaceError;
use crate::relay::Original;
use hugelift_core::printable::Escape;
use std::ffi::{OsStr, OsString};
use std::fs::{File, FileTimes, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;
use xattr::FileExt;

/// Attributes that vouch for the very file that has them.
const SIGNATURES: [(&str, &str); 2] = [("security.ima", "IMA"), ("security.evm", "EVM")];

/// By what the file is signed or measured, if it is.
pub(super) fn signed(file: &File) -> Option<&'static str> {
    let has = |name: &str| file.get_xattr(name).is_ok_and(|value| value.is_some());
    SIGNATURES.iter().find(|(name, _)| has(name)).map(|(_, by)| *by).or(verity(file).then_some("fs-verity"))
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
        // What the folder gave it: a default access control list. A label is the kernel's.
        if !wanted.contains(&name) && !name.as_encoded_bytes().starts_with(b"security.") {
            copy.remove_xattr(&name).map_err(failed(&name.escaped().to_string()))?;
        }
    }
    for name in &wanted {
        carry_one(original.file(), copy, name).map_err(failed(&name.escaped().to_string()))?;
    }
    copy.set_permissions(Permissions::from_mode(meta.mode() & 0o7777)).map_err(failed("mode"))
}

/// The names of all attributes; none, where the file system has no such thing.
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
pub(super) fn times(original: &Original, copy: &Path) -> Result<(), ReplaceError> {
    let failed =
        |source| ReplaceError::Attribute { path: original.path.clone().into(), what: "times".into(), source };
    let times = original.meta.accessed().and_then(|accessed| {
        Ok(FileTimes::new().set_accessed(accessed).set_modified(original.meta.modified()?))
    });
    times.and_then(|times| File::open(copy)?.set_times(times)).map_err(failed)
}
