// SPDX-License-Identifier: Apache-2.0
//! Adds up what is lacking.

use crate::skip::Reason;

/// What is lacking, summed over the whole report, so that the command in a hint helps all parts.
#[derive(Default)]
pub(super) struct Wants(Vec<Reason>);

impl Wants {
    pub(super) fn add(&mut self, reason: &Reason) {
        match self.0.iter_mut().find(|known| adds_up(known, reason)) {
            Some(known) => *known = known.and(reason),
            None if adds_up(reason, reason) => self.0.push(reason.clone()),
            None => {}
        }
    }

    pub(super) fn hint(&self, reason: &Reason) -> Option<String> {
        self.0.iter().find(|known| adds_up(known, reason)).unwrap_or(reason).hint()
    }
}

/// Returns whether both reasons lack the same thing, so that their needs add up.
pub(super) fn adds_up(a: &Reason, b: &Reason) -> bool {
    match (a, b) {
        (Reason::PoolShort { page, .. }, Reason::PoolShort { page: other, .. }) => page == other,
        (Reason::MemoryLimit { .. }, Reason::MemoryLimit { .. })
        | (Reason::GroupLimit { .. }, Reason::GroupLimit { .. }) => true,
        _ => false,
    }
}
