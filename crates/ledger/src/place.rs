// SPDX-License-Identifier: Apache-2.0
//! Where the ledger is, and who can change it there: root and the caller alone.

use crate::error::LedgerError;
use hugelift_linux::io::entry::{Entry, is_written_by_trusted_alone, rename_to_free};
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// The ledger of the machine.
pub const LEDGER: &str = "/var/lib/hugelift/ledger.db";

/// The mode of a folder that is made for it.
const FOLDER: u32 = 0o700;
/// The mode of the file, which what SQLite keeps beside it gets too. Whoever can open these to read can lock them.
const FILE: u32 = 0o600;
/// What SQLite keeps beside its file (sqlite.org/wal.html).
const BESIDE: [&str; 2] = ["-wal", "-shm"];

/// A place for the ledger that nobody else can change. The path has no symbolic links.
#[derive(Clone, Debug)]
pub struct Place {
    entry: Entry,
}

impl Place {
    /// Makes the folder if it is not there, and checks who can change it.
    ///
    /// # Errors
    /// The folder cannot be made, or others can change it or the ledger.
    pub fn make(path: &Path) -> Result<Place, LedgerError> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        match std::fs::DirBuilder::new().mode(FOLDER).create(folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(failed(path, error)),
            _ => Place::find(path),
        }
    }

    /// Makes the file, empty, if it is not there.
    ///
    /// # Errors
    /// The disk does not take it.
    pub fn make_file(&self) -> Result<(), LedgerError> {
        let made = OpenOptions::new().write(true).create_new(true).mode(FILE).open(self.path());
        match made {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(failed(&self.path(), error)),
            _ => Ok(()),
        }
    }

    /// Checks who can change the folder and the ledger, which need not be there.
    ///
    /// # Errors
    /// There is no such folder, or others can change it or the ledger.
    pub fn find(path: &Path) -> Result<Place, LedgerError> {
        let entry = Entry::find(path).map_err(|error| failed(path, error))?;
        if let Some(exposed) = entry.exposed() {
            return Err(LedgerError::Exposed { path: exposed.into() });
        }
        let folder = entry.open_directory(OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty());
        let meta = folder.and_then(|folder| folder.metadata()).map_err(|error| failed(path, error))?;
        if !is_written_by_trusted_alone(meta.uid(), meta.mode()) {
            let path = entry.path();
            return Err(LedgerError::Exposed { path: path.parent().unwrap_or(Path::new("/")).into() });
        }
        let place = Place { entry };
        place.check_file()?;
        Ok(place)
    }

    /// Checks the ledger, if it is there. A folder that others cannot change keeps it as it is.
    fn check_file(&self) -> Result<(), LedgerError> {
        let path = self.path();
        match self.entry.open() {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed(&path, error)),
            Ok((_, meta)) if !is_written_by_trusted_alone(meta.uid(), meta.mode()) => {
                Err(LedgerError::Exposed { path: path.into() })
            }
            Ok(_) => Ok(()),
        }
    }

    /// Returns the path, without symbolic links.
    pub fn path(&self) -> PathBuf {
        self.entry.path()
    }

    /// Gives a damaged ledger another name, `NAME.damaged`. Returns that path.
    ///
    /// # Errors
    /// There is a file of that name: the damaged ledgers would fill the disk.
    pub fn set_aside(&self) -> Result<PathBuf, LedgerError> {
        let path = self.path();
        let to = |end: &str| -> OsString {
            let mut name = self.entry.name().to_os_string();
            name.push(".damaged");
            name.push(end);
            name
        };
        let folder = self.entry.open_directory(OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty());
        let folder = folder.map_err(|error| failed(&path, error))?;
        let aside = path.with_file_name(to(""));
        rename_to_free(&folder, self.entry.name(), &to("")).map_err(|error| match error {
            nix::errno::Errno::EEXIST => {
                LedgerError::DamagedAgain { path: (&path).into(), aside: (&aside).into() }
            }
            error => failed(&path, error.into()),
        })?;
        for end in BESIDE {
            let mut name = self.entry.name().to_os_string();
            name.push(end);
            // It belongs to the damaged one. SQLite would remove it beside the next one, which begins empty.
            let _ = self.entry.sibling(name).rename(&self.entry.sibling(to(end)));
        }
        Ok(aside)
    }
}

fn failed(path: &Path, error: io::Error) -> LedgerError {
    LedgerError::Place { path: path.into(), error }
}
