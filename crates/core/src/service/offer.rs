// SPDX-License-Identifier: Apache-2.0
//! An offer of the service: what it could have on huge pages, if a person agrees to a change of the machine.

use serde::Serialize;

/// A change that needs a person's decision.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Offer {
    /// By what `hugelift service apply` is asked for it: the path of a file, or a word.
    pub name: String,
    /// What is not on huge pages without it.
    pub what: String,
    /// What it costs, or why it needs a decision.
    pub costs: String,
    /// The command that makes it, for sh(1).
    pub command: String,
    /// What must be done afterwards, so that it has an effect.
    pub after: Option<String>,
    /// What takes it back.
    pub undo: Option<String>,
}
