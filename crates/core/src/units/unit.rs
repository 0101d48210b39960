// SPDX-License-Identifier: Apache-2.0
//! What a unit file and its drop-ins say together.

use super::command::Command;
use super::refusal::Refusal;
use super::syntax::assignments;
use std::collections::BTreeMap;

/// The section that is read.
const SECTION: &str = "Service";

/// A unit as hugelift needs to know it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Unit {
    /// What `ExecStart=` starts, in its order.
    pub commands: Vec<Command>,
    /// The last value of each other setting of its section; none if that is empty.
    settings: BTreeMap<String, String>,
}

impl Unit {
    /// Reads the texts of the unit file and of its drop-ins, in the order in which systemd reads them. An empty value takes
    /// back all that are set before.
    ///
    /// # Errors
    /// A command cannot be read.
    pub fn read<'a>(files: impl IntoIterator<Item = &'a str>) -> Result<Unit, Refusal> {
        let mut unit = Unit::default();
        let mut values: Vec<String> = Vec::new();
        for one in files.into_iter().flat_map(assignments).filter(|one| one.section == SECTION) {
            match (one.key.as_str(), one.value.is_empty()) {
                ("ExecStart", true) => values.clear(),
                ("ExecStart", false) => values.push(one.value),
                (_, true) => _ = unit.settings.remove(&one.key),
                (_, false) => _ = unit.settings.insert(one.key, one.value),
            }
        }
        for value in values {
            unit.commands.extend(Command::read(&value)?);
        }
        Ok(unit)
    }

    /// Returns the last value of a setting.
    pub fn setting(&self, key: &str) -> Option<&str> {
        self.settings.get(key).map(String::as_str)
    }

    /// Returns whether a setting has a value that is not `no`.
    pub fn is_on(&self, key: &str) -> bool {
        self.setting(key).is_some_and(|value| !matches!(value, "no" | "false" | "off" | "0" | "n" | "f"))
    }

    /// Returns whether hugelift starts all that the unit starts.
    pub fn is_wrapped(&self) -> bool {
        !self.commands.is_empty() && self.commands.iter().all(Command::is_wrapped)
    }
}
