// SPDX-License-Identifier: Apache-2.0
//! Writes the metrics for the textfile collector of node_exporter, which reads all files `*.prom` of a folder.
//!
//! Each text replaces the one before as a whole: it is written to a hidden file beside it, whose name does not end with
//! `.prom`, and that is renamed. It is not written through to the disk: after a power failure the daemon starts anew.

#[cfg(test)]
mod tests;

use hugelift_core::printable::Untrusted;
use hugelift_linux::io::entry::{Entry, is_trusted};
use nix::fcntl::OFlag;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Everyone may read the file: node_exporter runs as a user of its own.
const MODE: u32 = 0o644;
/// The right of the group or of others to write.
const WRITABLE: u32 = 0o022;

/// Why the file was not written.
#[derive(Error, Debug)]
pub enum TextFileError {
    /// node_exporter does not read files of this name.
    #[error("{0}: the name must end with .prom, as node_exporter reads no other files")]
    Name(Untrusted),
    /// Another user can change the folder.
    #[error(
        "{folder} can be written to by {who}, who could put other metrics there in the name of this machine; a sticky \
         bit does not help, as node_exporter reads all files of the folder; give it to root with mode 0755"
    )]
    Folder {
        /// The folder.
        folder: Untrusted,
        /// The user, or its group or all users.
        who: String,
    },
    /// The file system does not take it: it is full or read-only, for example.
    #[error("cannot write {path}: {error}")]
    Write {
        /// The file.
        path: Untrusted,
        /// What the kernel says.
        error: io::Error,
    },
}

/// A file of metrics.
#[derive(Clone, Debug)]
pub struct TextFile {
    path: PathBuf,
}

impl TextFile {
    /// Chooses the file.
    ///
    /// # Errors
    /// Its name does not end with `.prom`.
    pub fn new(path: &Path) -> Result<TextFile, TextFileError> {
        match path.extension() == Some(OsStr::new("prom")) {
            true => Ok(TextFile { path: path.to_path_buf() }),
            false => Err(TextFileError::Name(path.into())),
        }
    }

    /// Replaces the file by one with this text ([`super::series::classic`]).
    ///
    /// # Errors
    /// Another user can change the folder, or the file system does not take the file. Then the old one stays.
    pub fn write(&self, text: &str) -> Result<(), TextFileError> {
        let place = self.place()?;
        replace(&place, text).map_err(|error| self.failed(error))
    }

    /// Finds the name in its folder, and checks who can change the folder.
    fn place(&self) -> Result<Entry, TextFileError> {
        let place = Entry::find(&self.path).map_err(|error| self.failed(error))?;
        let folder = place.open_directory(OFlag::O_PATH | OFlag::O_DIRECTORY, nix::sys::stat::Mode::empty());
        let meta = folder.and_then(|folder| folder.metadata()).map_err(|error| self.failed(error))?;
        match other_writer(meta.uid(), meta.mode()) {
            None => Ok(place),
            Some(who) => {
                let path = place.path();
                Err(TextFileError::Folder { folder: path.parent().unwrap_or(Path::new("/")).into(), who })
            }
        }
    }

    fn failed(&self, error: io::Error) -> TextFileError {
        TextFileError::Write { path: (&self.path).into(), error }
    }
}

/// Returns who can write to a folder, besides root and this user. The rights of an access control list show as the rights
/// of the group (acl(5)).
fn other_writer(uid: u32, mode: u32) -> Option<String> {
    if !is_trusted(uid) {
        return Some(format!("user {uid}"));
    }
    match mode & WRITABLE {
        0 => None,
        0o020 => Some("its group".into()),
        _ => Some("all users".into()),
    }
}

fn replace(place: &Entry, text: &str) -> io::Result<()> {
    let (mut new, mut file) = Unfinished::create(place)?;
    file.write_all(text.as_bytes())?;
    // The umask may have taken rights away.
    file.set_permissions(Permissions::from_mode(MODE))?;
    new.take_place_of(place)
}

/// The hidden file. It is removed when it is dropped, unless it has its last name.
struct Unfinished {
    entry: Entry,
    is_finished: bool,
}

impl Unfinished {
    /// Makes the file. One that a killed daemon has left is removed first: it has always the same name, so there is never
    /// more than one.
    fn create(place: &Entry) -> io::Result<(Unfinished, File)> {
        let mut name = OsString::from(".");
        name.push(place.name());
        name.push(".new");
        let entry = place.sibling(name);
        let file = match entry.create(MODE) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                entry.remove()?;
                entry.create(MODE)?
            }
            created => created?,
        };
        Ok((Unfinished { entry, is_finished: false }, file))
    }

    fn take_place_of(&mut self, place: &Entry) -> io::Result<()> {
        self.entry.rename(place)?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_finished {
            // Nothing more can be done if it cannot be removed.
            let _ = self.entry.remove();
        }
    }
}
