// SPDX-License-Identifier: Apache-2.0
//! What was not lifted, in one line.

use hugelift_core::addr::human_bytes;
use hugelift_core::advice::About;
use hugelift_core::apply::Outcome;
use hugelift_core::plan::Plan;
use hugelift_core::skip::Reason;
use hugelift_core::target::Fault;
use std::collections::BTreeMap;

/// What was not lifted although the program's layout allows it, by reason.
pub(crate) struct Complaints(BTreeMap<&'static str, (u64, Reason)>);

/// Collects what was not lifted although the layout allows it.
pub(crate) fn complaints(plan: &Plan, outcome: &Outcome) -> Complaints {
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
        let bytes = if result.lifted.is_some() { result.lacking() } else { span.range.len() };
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
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the reason that affects most bytes, and these bytes.
    pub(crate) fn main(&self) -> Option<&(u64, Reason)> {
        self.0.values().max_by_key(|(bytes, _)| *bytes)
    }

    /// Returns one line for all: the reason that affects most bytes, and what helps.
    pub(crate) fn largest(&self, about: &About) -> Option<String> {
        let (bytes, reason) = self.main()?;
        let hint = reason.hint_for(about).map_or(String::new(), |h| format!("; {h}"));
        let more = match self.0.len() {
            1 => String::new(),
            n => format!(" (and {} other reasons: -vv)", n - 1),
        };
        Some(format!("{} not lifted: {reason}{hint}{more}", human_bytes(*bytes)))
    }
}
