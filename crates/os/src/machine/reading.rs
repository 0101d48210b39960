// SPDX-License-Identifier: Apache-2.0
//! One setting of the machine as it was read, with the place that it was read from.

use serde::{Deserialize, Serialize};

/// Something read: where, and what it said.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reading {
    /// A path, or the name of what was asked.
    pub source: String,
    /// What was there, without blanks around it.
    pub value: String,
}

impl Reading {
    /// The choice in `always [madvise] never`, or all of a text without brackets.
    pub fn chosen(&self) -> &str {
        let inside = self.value.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
        inside.map_or(self.value.as_str(), |(chosen, _)| chosen)
    }

    /// The number that it is.
    pub fn number(&self) -> Option<u64> {
        self.value.parse().ok()
    }
}
