// SPDX-License-Identifier: Apache-2.0
//! An open store, and the records in it.

use super::error::StoreError;
use super::place::{self, IfAbsent, Place};
use hugelift_core::record::Record;
use nix::unistd::geteuid;
use std::fs::File;
use std::path::Path;

/// A longer record was not written by hugelift.
const MAX_RECORD: u64 = 1 << 20;

/// An open store.
#[derive(Debug)]
pub struct Store {
    pub(super) place: Place,
}

impl Store {
    /// Opens the store at `path`.
    ///
    /// # Errors
    /// The reason why that directory cannot be used.
    pub fn open(path: &Path, if_absent: IfAbsent) -> Result<Store, StoreError> {
        Ok(Store { place: place::open(path, if_absent)? })
    }

    pub(super) fn is_own(&self) -> bool {
        self.place.owner == geteuid().as_raw()
    }

    /// Returns whether entries in this store can be for all users: it is root's, and the caller is root.
    pub(super) fn may_publish(&self) -> bool {
        self.is_own() && geteuid().is_root()
    }

    /// Reads a record; returns it with its file.
    pub(super) fn read(&self, name: &str) -> Option<(Record, File)> {
        let (json, file) = self.place.read(name, MAX_RECORD)?;
        Some((Record::parse(&json).ok()?, file))
    }
}
