// SPDX-License-Identifier: Apache-2.0
//! Where the drop-in of a service is written: so late among the others that none of them takes it back.

use crate::failure::Failure;
use hugelift_core::printable::Escape;
use hugelift_core::units::drop_in::{FILE, LAST_FILE};
use hugelift_core::units::{Refusal, Unit};
use hugelift_linux::machine::tree::Tree;
use hugelift_linux::machine::unit_files::OWN;
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

/// A drop-in and its place.
pub struct Place {
    /// In the machine's root.
    pub path: PathBuf,
    /// The whole text.
    pub text: String,
}

/// Returns the path of a drop-in of the machine's administrator.
pub fn path_of(unit: &str, file: &str) -> PathBuf {
    PathBuf::from(OWN).join(format!("{unit}.d")).join(file)
}

impl Place {
    /// Chooses the place. `with` returns what the unit's files say together with the drop-in of this file name.
    ///
    /// # Errors
    /// A later drop-in sets `ExecStart=` wherever this one is.
    pub fn of(
        unit: &str,
        text: &str,
        with: impl Fn(&str) -> Result<Unit, Refusal>,
    ) -> Result<Place, Failure> {
        let is_heeded = |file: &&str| with(file).is_ok_and(|unit| unit.is_wrapped());
        let file = [FILE, LAST_FILE].into_iter().find(is_heeded).ok_or_else(|| {
            format!(
                "{unit} stays as it is: a drop-in whose name sorts behind {LAST_FILE} sets ExecStart= too"
            )
        })?;
        Ok(Place { path: path_of(unit, file), text: text.to_string() })
    }

    /// Writes the drop-in, wholly or not at all.
    ///
    /// # Errors
    /// It cannot be written, or a file is there that hugelift has not made.
    pub fn write(&self, tree: &Tree) -> Result<(), Failure> {
        let path = tree.path(&self.path);
        let failed = |error: std::io::Error| format!("cannot write {}: {error}", path.escaped());
        tree.replace(&self.path, &self.text).map_err(failed)?;
        // systemctl(1) shows it to every user, whatever the umask is.
        Ok(set_permissions(&path, Permissions::from_mode(0o644)).map_err(failed)?)
    }
}
