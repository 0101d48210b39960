// SPDX-License-Identifier: Apache-2.0
//! The drop-ins of a service that `hugelift wrap` has written: their first line says so.

use super::place::path_of;
use crate::failure::Failure;
use hugelift_core::printable::Escape;
use hugelift_core::units::drop_in::{FILE, LAST_FILE, MARK};
use hugelift_linux::machine::tree::Tree;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The drop-ins with their texts.
pub struct Own(BTreeMap<PathBuf, String>);

impl Own {
    /// Reads them.
    ///
    /// # Errors
    /// A file of this name is another's.
    pub fn of(tree: &Tree, unit: &str) -> Result<Own, Failure> {
        let mut found = BTreeMap::new();
        for path in [FILE, LAST_FILE].map(|file| path_of(unit, file)) {
            if fs::symlink_metadata(tree.path(&path)).is_err() {
                continue;
            }
            match tree.read(&path).filter(|text| text.starts_with(MARK)) {
                Some(text) => _ = found.insert(path, text),
                None => {
                    let path = tree.path(&path);
                    return Err(Failure::new(format!(
                        "'hugelift wrap' has not written {}: it stays",
                        path.escaped()
                    )));
                }
            }
        }
        Ok(Own(found))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.0.keys().map(PathBuf::as_path)
    }

    pub fn has(&self, path: &Path) -> bool {
        self.0.contains_key(path)
    }

    /// Returns all but this one.
    pub fn without(&self, path: &Path) -> Own {
        let others = self.0.iter().filter(|(one, _)| *one != path);
        Own(others.map(|(path, text)| (path.clone(), text.clone())).collect())
    }

    /// Removes them, and their folder if nothing else is in it.
    ///
    /// # Errors
    /// One cannot be removed.
    pub fn remove(&self, tree: &Tree) -> Result<(), Failure> {
        for path in self.files() {
            remove(&tree.path(path))?;
        }
        Ok(())
    }

    /// Restores the drop-ins to what they were before a new one was written to `new`. What is so already stays.
    ///
    /// # Errors
    /// A file cannot be removed or written.
    pub fn put_back(&self, tree: &Tree, new: &Path) -> Result<(), Failure> {
        if !self.has(new) && tree.path(new).exists() {
            remove(&tree.path(new))?;
        }
        let is_other = |(path, text): &(&PathBuf, &String)| tree.read(path).as_ref() != Some(text);
        for (path, text) in self.0.iter().filter(is_other) {
            let failed = |error| format!("cannot put back {}: {error}", tree.path(path).escaped());
            tree.replace(path, text).map_err(failed)?;
        }
        Ok(())
    }
}

fn remove(path: &Path) -> Result<(), Failure> {
    fs::remove_file(path).map_err(|error| format!("cannot remove {}: {error}", path.escaped()))?;
    // It fails while other drop-ins are there.
    let _ = path.parent().map(fs::remove_dir);
    Ok(())
}
