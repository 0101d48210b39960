// SPDX-License-Identifier: Apache-2.0
//! Originals that are left behind: their file is gone or upgraded, as package managers do not know of them.

use super::error::ReplaceError;
use super::kept::{kept_of, unlike};
use crate::relay::{Original, RelayError};
use hugelift_linux::io::entry::Entry;
use hugelift_linux::io::lock::take_turn;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// What becomes of an original.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Left {
    /// Its file is gone: it was removed.
    Gone,
    /// Its file was replaced by another build: it was removed.
    Upgraded,
    /// It stays.
    Kept,
}

/// Removes the originals of files that are gone or upgraded: that of the file `path`, or all in the folder `path`. Returns
/// each original with what became of it.
///
/// # Errors
/// [`ReplaceError`], if `path` or one of the originals cannot be read, or one cannot be removed.
pub fn clean(path: &Path) -> Result<Vec<(PathBuf, Left)>, ReplaceError> {
    if !fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir()) {
        return Ok(clean_one(path)?.into_iter().collect());
    }
    let failed = || RelayError::io("read the folder", path);
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(failed())? {
        files.extend(file_of(&entry.map_err(failed())?.file_name()));
    }
    files.sort();
    let cleaned = files.iter().map(|name| clean_one(&path.join(name)));
    Ok(cleaned.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// Returns the name of the file whose original has this name.
fn file_of(kept: &OsStr) -> Option<OsString> {
    let name = kept.as_bytes().strip_prefix(b".")?.strip_suffix(b".hugelift-orig")?;
    (!name.is_empty()).then(|| OsString::from_vec(name.to_vec()))
}

/// Removes the original of the file `path`, if there is one and it is of no use any more.
fn clean_one(path: &Path) -> Result<Option<(PathBuf, Left)>, ReplaceError> {
    let entry = Entry::find(path).map_err(RelayError::io("find", path))?;
    let kept = kept_of(&entry);
    let _turn = take_turn(&entry);
    let is_missing = |entry: &Entry| entry.stat().is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
    if is_missing(&kept) {
        return Ok(None);
    }
    let left = match is_missing(&entry) {
        true => Left::Gone,
        false => {
            let (now, original) = (Original::of_entry(&entry)?, Original::of_entry(&kept)?);
            let is_other = matches!(unlike(&now, &original), ReplaceError::Other { .. });
            if is_other { Left::Upgraded } else { Left::Kept }
        }
    };
    if left != Left::Kept {
        kept.remove().map_err(RelayError::io("remove", &kept.path()))?;
    }
    Ok(Some((kept.path(), left)))
}
