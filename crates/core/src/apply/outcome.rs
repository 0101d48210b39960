// SPDX-License-Identifier: Apache-2.0
//! The result of carrying out a plan.

use crate::addr::Range;
use crate::plan::{Attempt, Span};
use crate::policy::Backing;
use crate::target::Fault;

/// The result of carrying out a plan.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// One for each span of the plan, in its order.
    pub spans: Vec<SpanOutcome>,
    /// Why the target is gone or could not be restored.
    pub lost: Option<String>,
    /// Scratch memory that is still mapped, as it could not be unmapped.
    pub leftovers: Vec<Range>,
}

/// The result for one span.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SpanOutcome {
    /// The backing that worked.
    pub lifted: Option<Backing>,
    /// The attempts that failed, each with its fault, in the order in which they were tried. The last
    /// is the one that worked, if it lacks some huge pages ([`Fault::NotHuge`]).
    pub failures: Vec<(Backing, Fault)>,
    /// Bytes that failed attempts have replaced before they failed: a long span is replaced piece by piece.
    pub begun: u64,
}

impl Outcome {
    /// Returns whether every span was lifted completely.
    pub fn is_complete(&self) -> bool {
        self.lost.is_none() && self.spans.iter().all(|s| s.lifted.is_some() && s.lacking() == 0)
    }
}

impl SpanOutcome {
    /// Returns the attempt of `span` that worked.
    pub fn succeeded<'a>(&self, span: &'a Span) -> Option<&'a Attempt> {
        let failed = self.failures.len() - usize::from(self.lacking() > 0);
        self.lifted.and(span.attempts.get(failed))
    }

    /// Returns whether anything of the span was replaced.
    pub fn is_changed(&self) -> bool {
        self.lifted.is_some() || self.begun > 0
    }

    /// Returns the bytes of a lifted span for which no huge page was available.
    pub fn lacking(&self) -> u64 {
        match (self.lifted, self.failures.last()) {
            (Some(lifted), Some((backing, Fault::NotHuge { got, want }))) if lifted == *backing => {
                want.saturating_sub(*got)
            }
            _ => 0,
        }
    }
}

impl Outcome {
    /// Records the result of one attempt in `result`: the huge pages that it lacks, or why it failed.
    pub(super) fn record(
        &mut self,
        result: &mut SpanOutcome,
        backing: Backing,
        came: Result<Option<Fault>, Fault>,
    ) {
        match came {
            Ok(lacking) => {
                result.lifted = Some(backing);
                result.failures.extend(lacking.map(|fault| (backing, fault)));
            }
            Err(Fault::Lost(why)) => self.lost = Some(why),
            Err(fault) => result.failures.push((backing, fault)),
        }
    }
}
