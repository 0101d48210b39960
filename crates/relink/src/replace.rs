// SPDX-License-Identifier: Apache-2.0
//! Putting a re-laid copy in the place of a file, and back: `hugelift prime --replace`.
//!
//! The copy is made beside the file, gets its owner, mode, access control lists, other attributes and
//! times, is checked, and then takes its place. If another file has its name by then, as after an upgrade of its
//! package, that file stays ([`Entry::take_place_of`]). Running processes keep the old file; those that start
//! later get the new one. The original stays beside it under a name that neither the loader's cache nor a
//! pattern like `*.so` finds.
//!
//! The directory may belong to another user, who can change every name in it at any moment. So all steps
//! go relative to one descriptor of it and follow no link ([`Entry`]); the file that was opened is compared
//! with the one that has the name. Nothing is executed with rights that its owner does not have.

mod attributes;
mod checks;
mod error;
mod flags;
mod kept;
mod left;

pub use error::ReplaceError;
pub use left::{Left, clean};

use crate::loaded::Loaded;
use crate::relay::{Original, RelayError};
use crate::separate::Options;
use hugelift_core::addr::PageSize;
use hugelift_core::printable::Untrusted;
use hugelift_linux::elf::elf_file::ElfFile;
use hugelift_linux::held_signals::HeldSignals;
use hugelift_linux::io::entry::Entry;
use hugelift_linux::io::lock::take_turn;
use hugelift_linux::io::temporary::Temporary;
use hugelift_pages::pagecache::prime::written;
use kept::{kept_of, unlike};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file that has been replaced.
#[derive(Debug)]
pub struct Replaced {
    /// The file, behind all symbolic links.
    pub path: PathBuf,
    /// Where the original is.
    pub original: PathBuf,
    /// How many bits of the load address are no longer random.
    pub aslr_bits_lost: u32,
    /// Why the memory of a separated copy was not compared, if it was not.
    pub not_compared: Option<String>,
}

/// Reads `file`, at its path and behind symbolic links, if it may be replaced.
///
/// # Errors
/// [`ReplaceError`]
pub fn replaceable(file: &ElfFile) -> Result<Original, ReplaceError> {
    found(file).map(|(_, original)| original)
}

fn found(file: &ElfFile) -> Result<(Entry, Original), ReplaceError> {
    let entry = Entry::find(&file.path).map_err(RelayError::io("find", &file.path))?;
    let original = Original::of_entry(&entry)?;
    let id = |m: &Metadata| (m.dev(), m.ino());
    if !file.file().metadata().is_ok_and(|there| id(&there) == id(&original.meta)) {
        return Err(ReplaceError::Elsewhere(entry.path().into()));
    }
    refuse(&original, &kept_of(&entry))?;
    idle(file, &original)?;
    Ok((entry, original))
}

/// Checks that no process has the file open for writing.
fn idle(file: &ElfFile, original: &Original) -> Result<(), ReplaceError> {
    match written(file.file()) {
        Some(by) => Err(ReplaceError::Written(original.path.clone().into(), by)),
        None => Ok(()),
    }
}

/// Replaces `file`, at its path and behind symbolic links, by a copy laid out for huge pages of
/// size `page`, with its code separated if there are options for that. `attempt` is a shell command, with
/// `{}` for the file, that must do the same with the copy as with the file; it runs with the caller's rights.
///
/// # Errors
/// [`ReplaceError`]; the file is then as it was.
pub fn replace(
    file: &ElfFile,
    page: PageSize,
    separate: Option<Options>,
    attempt: Option<&str>,
) -> Result<Replaced, ReplaceError> {
    let (entry, original) = found(file)?;
    let (path, kept) = (entry.path(), kept_of(&entry));
    let separated = separate.map(|options| original.separated(page, options)).transpose()?;
    let (mut copy, aslr_bits_lost) = match &separated {
        Some(separated) => (original.separated_beside(separated, &entry)?, separated.aslr_bits_lost),
        None => {
            let layout = original.layout(page)?;
            (original.copy_beside(&layout, &entry)?, layout.aslr_bits_lost())
        }
    };
    flags::carry_over(&original, copy.file())?;
    attributes::carry_over(&original, copy.file())?;
    // Whoever loads the file may load the copy now.
    let loaded = separated.map(|separated| original.compared(&separated, copy.file())).transpose()?;
    let go_on = |copy: &Temporary| copy.check().map_err(RelayError::io("go on with the copy beside", &path));
    go_on(&copy)?;
    let not_compared = match loaded {
        Some(Loaded::NotLoaded(why)) => Some(why),
        _ => None,
    };
    // The kernel executes no file that is open for writing.
    copy.close_for_writing().map_err(RelayError::io("open the copy beside", &path))?;
    let check = |what| ReplaceError::Check { path: path.clone().into(), what };
    checks::loader(file, &original, copy.file()).map_err(check)?;
    // From here on a signal has its effect only when all is done or undone.
    let name = copy.path().map_err(RelayError::io("name the copy beside", &path))?;
    if let Some(command) = attempt {
        checks::attempt(command, &path, &name, copy.held()).map_err(check)?;
    }
    // Writing and running the copy have changed its times.
    attributes::times(&original, copy.file())?;
    // Another hugelift may be about to replace it too: the second one must not take the original's name from the first.
    let _turn = take_turn(&entry);
    if !entry.is(&original.meta) {
        return Err(ReplaceError::Upgraded(entry.path().into()));
    }
    idle(file, &original)?;
    original.unchanged()?;
    go_on(&copy)?;
    keep(&original, &kept)?;
    let of_copy = copy.file().metadata().map_err(RelayError::io("read the copy beside", &path))?;
    if let Err(error) = copy.publish_for(&original.meta, &entry) {
        // The original needs its second name only if a copy of it has the first.
        let is_copy = |now: Original| !entry.is(&original.meta) && now.is_like(&original);
        let is_needed = entry.is(&of_copy) || Original::of_entry(&entry).is_ok_and(is_copy);
        if !is_needed && kept.is(&original.meta) {
            let _ = kept.remove();
        }
        return Err(not_exchanged("write", &path, error));
    }
    Ok(Replaced { path, original: kept.path(), aslr_bits_lost, not_compared })
}

/// Refuses a file whose copy would not be equivalent, or whose original cannot be kept.
fn refuse(original: &Original, kept: &Entry) -> Result<(), ReplaceError> {
    let path = || Untrusted::from(&original.path);
    if let Some(what) = attributes::privilege(original) {
        return Err(ReplaceError::Privileged(path(), what));
    }
    // The second name may be ours, where an earlier run was killed before its last step.
    let ours = u64::from(kept.is(&original.meta));
    if original.meta.nlink() > 1 + ours {
        return Err(ReplaceError::Links { path: path(), links: original.meta.nlink() });
    }
    if let Some(by) = attributes::signed(original.file()) {
        return Err(ReplaceError::Signed { path: path(), by });
    }
    flags::refuse(original)
}

/// Gives the original its second name, unless the one there is the original of this one.
fn keep(original: &Original, kept: &Entry) -> Result<(), ReplaceError> {
    let path = kept.path();
    let failed = || RelayError::io("keep the original as", &path);
    match kept.stat() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(failed()(e).into()),
        Ok(_) => {
            let in_the_way = |what: String| ReplaceError::InTheWay {
                path: original.path.clone().into(),
                kept: path.clone().into(),
                what,
            };
            let earlier = Original::of_entry(kept).map_err(|e| in_the_way(e.to_string()))?;
            let other = attributes::other_rights(original, &earlier);
            match (original.is_like(&earlier), other) {
                (true, None) => return Ok(()),
                // The original of an earlier version, which an upgrade has replaced since.
                (false, _) if earlier.meta.uid() == original.meta.uid() => kept.remove().map_err(failed())?,
                // Where others can write, any user may have put it there, so that it would be restored one day.
                (_, Some(what)) => return Err(in_the_way(what)),
                (false, None) => return Err(in_the_way("it is another file".to_string())),
            }
        }
    }
    kept.link(original.file()).map_err(failed())?;
    if let Err(error) = kept.sync_directory() {
        // Without a replaced file beside it, it would only be in the way.
        let _ = kept.remove();
        return Err(failed()(error).into());
    }
    Ok(())
}

/// Returns the error for a file that did not get the name `path`.
fn not_exchanged(action: &'static str, path: &Path, error: io::Error) -> ReplaceError {
    match error.raw_os_error() {
        Some(libc::ESTALE) => ReplaceError::Upgraded(path.into()),
        _ => RelayError::io(action, path)(error).into(),
    }
}

/// Restores the original of `path`; returns the path of the file, behind all symbolic links.
///
/// # Errors
/// [`ReplaceError`]; the file is then as it was.
pub fn restore(path: &Path) -> Result<PathBuf, ReplaceError> {
    let entry = Entry::find(path).map_err(RelayError::io("find", path))?;
    let kept = kept_of(&entry);
    let path = entry.path();
    let _turn = take_turn(&entry);
    if kept.stat().is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
        return Err(ReplaceError::NoOriginal(path.into(), kept.path().into()));
    }
    if entry.stat().is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
        return Err(ReplaceError::Gone { path: path.into(), kept: kept.path().into() });
    }
    let (now, original) = (Original::of_entry(&entry)?, Original::of_entry(&kept)?);
    flags::refuse(&now)?;
    flags::refuse(&original)?;
    if let Some(what) = attributes::other_rights(&now, &original) {
        return Err(ReplaceError::Rights { path: path.into(), kept: kept.path().into(), what });
    }
    if !now.is_like(&original) {
        return Err(unlike(&now, &original));
    }
    now.unchanged()?;
    original.unchanged()?;
    let _held = HeldSignals::hold().map_err(RelayError::io("hold signals for", &path))?;
    // rename(2) does nothing if both names are of one file.
    let done = match entry.is(&original.meta) {
        true => kept.remove(),
        false => kept.take_place_of(&now.meta, &entry),
    };
    done.and_then(|()| entry.sync_directory()).map_err(|error| not_exchanged("put back", &path, error))?;
    Ok(path)
}
