// SPDX-License-Identifier: Apache-2.0
//! The original that is kept: its name, and why it is not the one of the file that has its place.

use super::error::ReplaceError;
use crate::relay::Original;
use hugelift_linux::io::entry::Entry;
use std::ffi::OsString;

/// Returns the name under which the original of `entry` is kept.
pub(super) fn kept_of(entry: &Entry) -> Entry {
    // ldconfig(8) takes every file whose name begins with "lib", and links the soname to the newest.
    let mut name = OsString::from(".");
    name.push(entry.name());
    name.push(".hugelift-orig");
    entry.sibling(name)
}

/// Returns why `now` is not restored to `original`: it is no copy of it.
pub(super) fn unlike(now: &Original, original: &Original) -> ReplaceError {
    let (path, kept) = (now.path.clone().into(), original.path.clone().into());
    match now.build_id().zip(original.build_id()) {
        Some((a, b)) if a != b => ReplaceError::Other { path, kept },
        Some(_) => {
            let why = "it has the same build-id, so it was changed since (strip, patchelf), or another version of \
                       hugelift made it";
            ReplaceError::Modified { path, kept, why }
        }
        None => {
            let why = "without build-ids it is not known whether it was changed or replaced since";
            ReplaceError::Modified { path, kept, why }
        }
    }
}
