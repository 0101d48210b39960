// SPDX-License-Identifier: Apache-2.0
//! Plans a lift: which spans to lift, by which attempts, in which steps; and why everything else stays.
//! It is a pure function of a [`Snapshot`] and a [`Policy`].
//!
//! ```text
//!   text of an object, huge pages of 2 MB:
//!     ...|··|================|================|=====···|...
//!        edge          inner span                    edge
//!   ^                                                     ^
//!   outer span: the whole page, if nothing forbids it, else a skip
//! ```

mod candidate;
mod outer;
mod planner;
mod refusal;
mod size;
mod span;
mod steps;
mod supply;
#[cfg(test)]
pub(crate) mod tests;

use crate::addr::Range;
use crate::policy::Policy;
use crate::snapshot::{Part, Snapshot};
pub use size::{is_nearly_all, liftable_bytes, usual_page};
pub use span::{Attempt, Plan, Span, Step};

/// Plans the lift of `snapshot` under `policy`. Returns spans and skips, sorted by object and address,
/// that together hold every byte of [`Snapshot::extents`] once.
pub fn plan(snapshot: &Snapshot, policy: &Policy) -> Plan {
    planner::plan(snapshot, policy)
}

/// Plans as [`plan`] does, where it is not known yet which code was written to. `find_written`
/// returns the mappings of such code that overlap the ranges of a plan. It is called again for each new plan: what one
/// range leaves of a pool, another gets.
///
/// # Errors
/// The first of `find_written`.
pub fn plan_unwritten<E>(
    snapshot: &mut Snapshot,
    policy: &Policy,
    find_written: impl Fn(&Snapshot, &[Range]) -> Result<Vec<Range>, E>,
) -> Result<Plan, E> {
    loop {
        let plan = plan(snapshot, policy);
        let lifted: Vec<Range> = plan.spans.iter().map(|span| span.range).collect();
        let mut found = find_written(snapshot, &lifted)?;
        found.retain(|range| !snapshot.patched.contains(range));
        if found.is_empty() {
            return Ok(plan);
        }
        snapshot.patched.extend(found);
    }
}

/// Returns what a store could hold of `snapshot` for all processes: the whole huge pages of every
/// read-only part that `policy` wants lifted, with the object's index and the part.
pub fn shareable(snapshot: &Snapshot, policy: &Policy) -> Vec<(usize, Part, Range)> {
    planner::shareable(snapshot, policy)
}
