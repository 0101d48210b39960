// SPDX-License-Identifier: Apache-2.0
//! Before the program's first own instruction: snapshot, plan, apply.

use crate::job::LiftJob;
use crate::launch::bypass::Bypass;
use crate::launch::guard::{Guard, Unguarded};
use hugelift_core::addr::{PageSize, Range};
use hugelift_core::apply::{Outcome, apply, lifted};
use hugelift_core::plan::{Plan, Span, plan_unwritten};
use hugelift_core::policy::{Backing, Copies, PageChoice, SpanChoice};
use hugelift_core::snapshot::{Machine, Object, Snapshot};
use hugelift_inject::remote::Remote;
use hugelift_linux::machine::{self, base_page, folios};
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::proc::snapshot;
use hugelift_pages::pagecache::{self, Search};
use hugelift_pages::store;
use hugelift_pages::store::Moment;
use std::time::{Duration, Instant};

/// A lift that has been carried out.
pub(crate) struct Lifted {
    pub(crate) pid: u32,
    /// The program as it was before.
    pub(crate) before: Snapshot,
    /// The plan.
    pub(crate) plan: Plan,
    /// The result of the plan.
    pub(crate) outcome: Outcome,
    /// Time from the stop to the end of the plan.
    pub(crate) took: Duration,
}

impl Lifted {
    /// Applies the plan that was chosen to `target`, the process `pid`, which stopped when it `began`.
    pub(crate) fn apply(
        pid: u32,
        target: &mut Remote,
        before: Snapshot,
        plan: Plan,
        began: Instant,
    ) -> Lifted {
        tracing::debug!(?plan, "planned");
        let outcome = apply(target, &plan);
        let took = began.elapsed();
        tracing::debug!(?outcome, ?took, "applied");
        Lifted { pid, before, plan, outcome, took }
    }

    /// Informs the fork guard which spans have come from the pool.
    pub(crate) fn inform(&self, guard: &Guard) {
        if let Err(error) = guard.tell(&on_pool(&self.plan, &self.outcome)) {
            // Its list still has spans that were not lifted: a child copies them needlessly.
            tracing::debug!(%error, "the guard has the planned spans, not the lifted ones");
        }
    }
}

impl LiftJob {
    /// Takes the snapshot of the stopped program, and finds what of it is huge without a copy.
    pub(crate) fn take_snapshot(&mut self, pid: u32, target: &mut Remote) -> Result<Snapshot, Bypass> {
        let least = match self.policy.page {
            PageChoice::Usual => PageSize::MB2.bytes() / 2,
            PageChoice::Mixed => base_page().bytes(),
            PageChoice::Only(page) => page.bytes(),
        };
        let everything = self.asked.report.is_some()
            || self.policy.span != SpanChoice::Inner
            || self.policy.parts.iter().any(|p| p.is_writable());
        let least = if everything { 0 } else { least };
        let status = target.status()?;
        let mut machine = self.probed.take().unwrap_or_else(|| machine::probe(Some(pid)));
        machine::update(&mut machine, &status);
        let mut before = snapshot::of(Process::new(pid), least, machine, &status)?;
        if self.policy.page != PageChoice::Usual {
            before.machine.folios = folios();
        }
        if self.leaves_all_memory(&before) {
            // No process stays beside the program, which could copy later.
            self.policy.copies = Copies::All;
        }
        // Where nothing is reported this is needless: the kernel maps huge folios itself (`untouched`).
        if self.policy.backings.contains(&Backing::Pagecache) && self.recorded.is_none() {
            let takes = |object: &Object| self.policy.objects.takes(object);
            // To check all of a large program takes milliseconds, and what copies later checks again.
            let searches_later = self.policy.copies == Copies::Later && self.asked.report.is_none();
            let search = if searches_later { Search::Sampled } else { Search::Whole };
            pagecache::find(Some(pid), &mut before, &self.policy.parts, takes, search);
        }
        if self.policy.backings.contains(&Backing::Shared) {
            let offer = store::offer(pid, &before, &self.policy, Moment::Start);
            before.stored = offer.stored;
            self.spend(&mut before.machine, offer.made);
            target.offer_stored(offer.files);
        }
        Ok(before)
    }

    /// Takes the bytes of the store's new entries out of what the lift may use.
    fn spend(&mut self, machine: &mut Machine, bytes: u64) {
        machine.memory_left = machine.memory_left.saturating_sub(bytes);
        if let Some(limit) = &mut machine.memory_limit {
            limit.left = limit.left.saturating_sub(bytes);
            self.policy.spare = self.policy.spare.saturating_sub(bytes);
        }
    }

    /// Chooses what is lifted; also finds the fork guard if the choice needs one.
    pub(crate) fn choose(
        &mut self,
        pid: u32,
        before: &mut Snapshot,
    ) -> Result<(Plan, Option<Guard>), Bypass> {
        let guard = self.takes_data_from_pool().then(|| self.guard(pid, before)).flatten();
        let find_patched =
            |before: &Snapshot, lifted: &[Range]| snapshot::find_patched(Process::new(pid), before, lifted);
        let mut all = plan_unwritten(before, &self.policy, find_patched)?;
        if let Some(Err(why)) = guard.as_ref().map(|guard| guard.tell(&planned_on_pool(&all))) {
            self.leave_pool(&why.to_string());
            all = plan_unwritten(before, &self.policy, find_patched)?;
        }
        Ok((all, guard))
    }

    /// Finds the fork guard in the program; without one, its data stays off the pool.
    fn guard(&mut self, pid: u32, before: &Snapshot) -> Option<Guard> {
        let found = match before.machine.moves_hugetlb {
            true => Guard::find(pid, &before.mappings),
            false => Err(Unguarded::OldKernel),
        };
        found.map_err(|why| self.leave_pool(&why.to_string())).ok()
    }
}

/// Returns the writable spans that may come from the pool.
fn planned_on_pool(plan: &Plan) -> Vec<(Range, PageSize)> {
    let page = |span: &Span| span.attempts.iter().find(|a| a.backing == Backing::Hugetlb).map(|a| a.page);
    let writable = plan.spans.iter().filter(|s| s.part.is_writable());
    writable.filter_map(|span| Some((span.range, page(span)?))).collect()
}

/// Returns the writable spans that have come from the pool.
fn on_pool(plan: &Plan, outcome: &Outcome) -> Vec<(Range, PageSize)> {
    let from_pool: Vec<Range> =
        lifted(plan, outcome).filter(|(_, b)| *b == Backing::Hugetlb).map(|(s, _)| s.range).collect();
    planned_on_pool(plan).into_iter().filter(|(range, _)| from_pool.contains(range)).collect()
}
