// SPDX-License-Identifier: Apache-2.0
//! Reads the configuration files of `hugelift service`.
//!
//! Who writes them commands a daemon of root. So each file and folder, and each folder on the way to them, must
//! be one that only root and the calling user can change. What is read is bounded, and nothing waits.

use crate::io::entry::{Entry, is_written_by_trusted_alone};
use hugelift_core::printable::{Escape, printable, quoted};
use hugelift_core::service::source::Source;
use nix::dir::Dir;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use std::ffi::OsString;
use std::fs::Metadata;
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The bytes of a file at most.
pub const MOST_BYTES: u64 = 1 << 20;
/// The drop-ins at most.
pub const MOST_DROP_INS: usize = 256;

/// Reads the drop-ins in a folder, which are its `*.toml` in the order of the bytes of their names, and then the main
/// file. This is the order in which their rules are tried. A folder that does not exist has no drop-ins. A name that
/// begins with a dot is passed over: editors make such files.
///
/// # Errors
/// Returns one line for a main file that is missing, and for a file or folder that others can change, that cannot be
/// read, that is too large, or that is not text.
pub fn read(main: &Path, drop_ins: &Path) -> Result<Vec<Source>, String> {
    if !exists(main) {
        return Err(format!(
            "there is no policy {}; make an empty one, which changes no process, as root: install -D -m 644 /dev/null {}",
            main.escaped(),
            quoted(main.as_os_str())
        ));
    }
    let mut sources = Vec::new();
    for name in names(drop_ins)? {
        sources.push(source(&drop_ins.join(name))?);
    }
    sources.push(source(main)?);
    Ok(sources)
}

/// Returns whether there is anything of this name, even a link that leads nowhere. What cannot be found out
/// counts: to read it says why.
fn exists(path: &Path) -> bool {
    !std::fs::symlink_metadata(path).is_err_and(|e| e.kind() == ErrorKind::NotFound)
}

/// Returns the names of the drop-ins, in order.
fn names(folder: &Path) -> Result<Vec<OsString>, String> {
    if !exists(folder) {
        return Ok(Vec::new());
    }
    let failed = |e: io::Error| cannot_read(folder, &e);
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let opened = find(folder)?.open_with(flags, Mode::empty()).map_err(failed)?;
    check(folder, &opened.metadata().map_err(failed)?)?;
    let dir = Dir::from_fd(opened.into()).map_err(|e| failed(e.into()))?;
    let mut names = Vec::new();
    for entry in dir {
        let entry = entry.map_err(|e| failed(e.into()))?;
        let name = entry.file_name().to_bytes();
        if name.ends_with(b".toml") && !name.starts_with(b".") {
            names.push(OsString::from_vec(name.to_vec()));
        }
        if names.len() > MOST_DROP_INS {
            return Err(format!("{}: it has more than {MOST_DROP_INS} files *.toml", folder.escaped()));
        }
    }
    names.sort();
    Ok(names)
}

/// Reads a file.
fn source(path: &Path) -> Result<Source, String> {
    let (file, meta) = find(path)?.open().map_err(|e| cannot_read(path, &e))?;
    check(path, &meta)?;
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|e| cannot_read(path, &e))?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(format!("{}: it has more than {MOST_BYTES} bytes", path.escaped()));
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        format!("{}: it is not UTF-8 from byte {} on", path.escaped(), e.utf8_error().valid_up_to())
    })?;
    Ok(Source { name: path.escaped().to_string(), text })
}

/// Follows a path through folders that others cannot change.
fn find(path: &Path) -> Result<Entry, String> {
    let absolute = std::path::absolute(path).map_err(|e| cannot_read(path, &e))?;
    let entry = Entry::find(&absolute).map_err(|e| cannot_read(path, &e))?;
    match entry.exposed() {
        None => Ok(entry),
        Some(folder) => {
            let meta = std::fs::metadata(folder).map_err(|e| cannot_read(folder, &e))?;
            Err(refused(folder, &meta))
        }
    }
}

/// Checks that only root and the calling user can change a file, or the names in a folder.
fn check(path: &Path, meta: &Metadata) -> Result<(), String> {
    match is_written_by_trusted_alone(meta.uid(), meta.mode()) {
        true => Ok(()),
        false => Err(refused(path, meta)),
    }
}

fn refused(path: &Path, meta: &Metadata) -> String {
    format!(
        "{}: others can change it (owner {}, mode {:04o}), and whoever can change it commands the service; give it to \
         root and let only its owner write to it: chown root and chmod go-w",
        path.escaped(),
        meta.uid(),
        meta.mode() & 0o7777
    )
}

fn cannot_read(path: &Path, error: &io::Error) -> String {
    printable(&format!("cannot read {}: {error}", path.escaped()))
}

#[cfg(test)]
mod tests;
