// SPDX-License-Identifier: Apache-2.0
//! Putting a re-laid copy in the place of a file, and back: `hugelift prime --replace`.
//!
//! The copy is made beside the file, gets all that the file has (owner, mode, access control
//! lists, other attributes, times), is checked, and is then renamed over it. Processes that run
//! keep the old file; those that start later get the new one. The original stays beside it under
//! a name that neither the loader's cache nor a pattern like `*.so` finds.

mod attributes;
mod checks;

use crate::elf_file::ElfFile;
use crate::prime::written;
use crate::relay::{Original, RelayError, publish, sync_directory};
use hugelift_core::addr::PageSize;
use hugelift_core::align::Layout;
use hugelift_core::prime::Obstacle;
use hugelift_core::printable::Untrusted;
use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Why a file was not replaced, or not put back. It is then what it was.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceError {
    /// There is no copy.
    #[error(transparent)]
    Relay(#[from] RelayError),
    /// The path is that of another mount namespace.
    #[error("{0} is another file here than for the process: replace it where the process runs")]
    Elsewhere(Untrusted),
    /// Somebody has it open for writing.
    #[error("{0} is {1}")]
    Written(Untrusted, Obstacle),
    /// The bits of the mode that give a program rights.
    #[error("{0} is set-uid or set-gid: such a program is not replaced")]
    Privileged(Untrusted),
    /// Hard links: who has the others is not known.
    #[error("{path} has {links} names (hard links): under the others it would stay as it is")]
    Links {
        /// The file.
        path: Untrusted,
        /// How many.
        links: u64,
    },
    /// IMA, EVM or fs-verity vouch for this very file.
    #[error("{path} is signed or measured ({by}): its copy would not be")]
    Signed {
        /// The file.
        path: Untrusted,
        /// By what.
        by: &'static str,
    },
    /// An owner, an attribute or a time could not be carried over.
    #[error("cannot give the copy of {path} its {what}: {source}")]
    Attribute {
        /// The file.
        path: Untrusted,
        /// What it is about.
        what: String,
        /// Why.
        source: io::Error,
    },
    /// A check came out differently for the copy.
    #[error("the copy of {path} is not used: {what}")]
    Check {
        /// The file.
        path: Untrusted,
        /// Which check, and what it said of each.
        what: String,
    },
    /// There is nothing to put back.
    #[error("{0} was not replaced by hugelift: there is no {1}")]
    NoOriginal(Untrusted, Untrusted),
    /// Somebody has replaced the copy meanwhile, as an upgrade does.
    #[error("{0} is no copy of {1} (any more): the latter is of no use, and may be removed")]
    Other(Untrusted, Untrusted),
}

/// A file that has been replaced.
#[derive(Debug)]
pub struct Replaced {
    /// The file, behind all symbolic links.
    pub path: PathBuf,
    /// Where the original is.
    pub original: PathBuf,
    /// What the copy looks like.
    pub layout: Layout,
}

/// Where the original of `path` is kept.
fn kept_at(path: &Path) -> PathBuf {
    // ldconfig(8) takes all that begins with "lib", and links its soname to the "newest".
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".hugelift-orig");
    path.with_file_name(name)
}

fn canonical(path: &Path) -> Result<PathBuf, RelayError> {
    path.canonicalize().map_err(RelayError::io("find", path))
}

/// Replaces `file`, at its path and behind symbolic links, by a copy laid out for huge pages of
/// size `page`. `attempt` is a shell command that is to do the same with the copy as with the file,
/// which it names `{}`.
///
/// # Errors
/// [`ReplaceError`]; the file is then as it was.
pub fn replace(file: &ElfFile, page: PageSize, attempt: Option<&str>) -> Result<Replaced, ReplaceError> {
    let path = canonical(&file.path)?;
    let original = Original::read(&path)?;
    let id = |m: &Metadata| (m.dev(), m.ino());
    if !file.file().metadata().is_ok_and(|there| id(&there) == id(&original.meta)) {
        return Err(ReplaceError::Elsewhere(path.into()));
    }
    refuse(&original)?;
    let idle = || match written(file) {
        Some(by) => Err(ReplaceError::Written(path.clone().into(), by)),
        None => Ok(()),
    };
    idle()?;
    let layout = original.layout(page)?;
    let copy = original.copy_beside(&layout, &path)?;
    attributes::carry_over(&original, copy.as_file())?;
    // Closed: what is open for writing is not executed.
    let copy = copy.into_temp_path();
    let check = |what| ReplaceError::Check { path: path.clone().into(), what };
    checks::loader(&path, &copy).map_err(check)?;
    if let Some(command) = attempt {
        checks::attempt(command, &path, &copy).map_err(check)?;
    }
    // Writing and trying have changed them.
    attributes::times(&original, &copy)?;
    idle()?;
    original.unchanged()?;
    let kept = keep(&original)?;
    if let Err(error) = publish(copy, &path) {
        let _ = undo_keep(&original, &kept);
        return Err(error.into());
    }
    Ok(Replaced { path, original: kept, layout })
}

/// What cannot have a copy that is as good.
fn refuse(original: &Original) -> Result<(), ReplaceError> {
    let path = || original.path.clone();
    let meta: &Metadata = &original.meta;
    if meta.mode() & (libc::S_ISUID | libc::S_ISGID) != 0 {
        return Err(ReplaceError::Privileged(path().into()));
    }
    // The second name may be ours, where an earlier run was killed before its last step.
    let ours = u64::from(is_same(&original.path, &kept_at(&original.path)));
    if meta.nlink() > 1 + ours {
        return Err(ReplaceError::Links { path: path().into(), links: meta.nlink() });
    }
    match attributes::signed(original.file()) {
        Some(by) => Err(ReplaceError::Signed { path: path().into(), by }),
        None => Ok(()),
    }
}

/// Gives the original its second name, unless the one there is the original of this one.
fn keep(original: &Original) -> Result<PathBuf, ReplaceError> {
    let kept = kept_at(&original.path);
    let failed = || RelayError::io("keep the original as", &kept);
    if let Ok(earlier) = Original::read(&kept) {
        if original.is_like(&earlier) {
            return Ok(kept);
        }
        // That of a file which an upgrade has replaced since.
        std::fs::remove_file(&kept).map_err(failed())?;
    }
    std::fs::hard_link(&original.path, &kept).map_err(failed())?;
    sync_directory(&kept).map_err(failed())?;
    Ok(kept)
}

/// Takes the second name away again, if the file is still under its first.
fn undo_keep(original: &Original, kept: &Path) -> io::Result<()> {
    if is_same(&original.path, kept) { std::fs::remove_file(kept) } else { Ok(()) }
}

/// Whether both are names of one file.
fn is_same(a: &Path, b: &Path) -> bool {
    let id = |path| std::fs::symlink_metadata(path).ok().map(|m| (m.dev(), m.ino()));
    id(a).is_some() && id(a) == id(b)
}

/// Puts the original of `path` back; the file that is so again.
///
/// # Errors
/// [`ReplaceError`]; the file is then as it was.
pub fn restore(path: &Path) -> Result<PathBuf, ReplaceError> {
    let path = canonical(path)?;
    let kept = kept_at(&path);
    if !kept.exists() {
        return Err(ReplaceError::NoOriginal(path.into(), kept.into()));
    }
    let (now, original) = (Original::read(&path)?, Original::read(&kept)?);
    if !now.is_like(&original) {
        return Err(ReplaceError::Other(path.into(), kept.into()));
    }
    now.unchanged()?;
    // rename(2) does nothing where both are one file.
    let done =
        if is_same(&path, &kept) { std::fs::remove_file(&kept) } else { std::fs::rename(&kept, &path) };
    done.map_err(RelayError::io("put back", &path))?;
    sync_directory(&path).map_err(RelayError::io("put back", &path))?;
    Ok(path)
}
