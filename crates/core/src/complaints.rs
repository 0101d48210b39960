// SPDX-License-Identifier: Apache-2.0
//! What was not lifted, in one line.

use crate::addr::human_bytes;
use crate::advice::About;
use crate::apply::Outcome;
use crate::plan::Plan;
use crate::skip::Reason;
use crate::target::Fault;
use std::collections::BTreeMap;

/// What was not lifted although the program's layout allows it, by reason.
pub struct Complaints(BTreeMap<&'static str, (u64, Reason)>);

/// Collects what was not lifted although the layout allows it.
pub fn complaints(plan: &Plan, outcome: &Outcome) -> Complaints {
    let mut all: BTreeMap<&'static str, (u64, Reason)> = BTreeMap::new();
    let mut add = |bytes: u64, reason: Reason| {
        all.entry(reason.key())
            .and_modify(|(sum, first)| {
                *sum += bytes;
                *first = first.and(&reason);
            })
            .or_insert((bytes, reason));
    };
    for skip in plan.skips.iter().filter(|s| s.reason.is_remediable()) {
        add(skip.range.len(), skip.reason.clone());
    }
    for (span, result) in plan.spans.iter().zip(&outcome.spans) {
        let bytes = match result.lifted {
            Some(_) => result.lacking(),
            None => span.range.len().saturating_sub(result.begun),
        };
        if let Some((backing, fault)) = result.failures.last()
            && bytes > 0
            && !matches!(fault, Fault::Lost(_))
        {
            add(bytes, Reason::Failed(*backing, fault.clone()));
        }
    }
    Complaints(all)
}

impl Complaints {
    /// Returns whether all was lifted that the layout allows.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the reason that affects most bytes, and these bytes.
    pub fn main(&self) -> Option<&(u64, Reason)> {
        self.0.values().max_by_key(|(bytes, _)| *bytes)
    }

    /// Returns each reason with the bytes that it affects.
    pub fn all(&self) -> impl Iterator<Item = &(u64, Reason)> {
        self.0.values()
    }

    /// Returns one line for all: the reason that affects most bytes, and what helps.
    pub fn largest(&self, about: &About) -> Option<String> {
        let (bytes, reason) = self.main()?;
        let hint = reason.hint_for(about).map_or(String::new(), |h| format!("; {h}"));
        let more = match self.0.len() {
            1 => String::new(),
            2 => " (and 1 other reason: -vv)".into(),
            n => format!(" (and {} other reasons: -vv)", n - 1),
        };
        Some(format!("{} not lifted: {reason}{hint}{more}", human_bytes(*bytes)))
    }
}
