// SPDX-License-Identifier: Apache-2.0
//! One setting of the machine as it was read, with the place that it was read from.

use hugelift_core::fields;
use serde::{Deserialize, Serialize};

/// A setting as it was read, with its place.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reading {
    /// The path, or the name of the call that returned it.
    pub source: String,
    /// The text, without blanks around it.
    pub value: String,
}

impl Reading {
    /// Returns the choice in `always [madvise] never`, or all of a text without brackets.
    pub fn chosen(&self) -> &str {
        fields::chosen(&self.value).unwrap_or(&self.value)
    }

    /// Returns the value as a number.
    pub fn number(&self) -> Option<u64> {
        self.value.parse().ok()
    }
}
