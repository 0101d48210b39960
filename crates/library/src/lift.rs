// SPDX-License-Identifier: Apache-2.0
//! The lift of the calling process, and its undoing: the planner and the steps of `hugelift attach`, with the
//! process itself as their target.

use crate::advice;
use crate::error::Error;
use crate::options::Options;
use crate::outcome::Outcome;
use crate::privilege::is_privileged;
use crate::table::{self, Lifted};
use crate::turn::Turn;
use hugelift_core::addr::{Addr, Range, human_bytes};
use hugelift_core::advice::About;
use hugelift_core::apply::{self, apply, lifted};
use hugelift_core::complaints::complaints;
use hugelift_core::plan::{Plan, Span, plan};
use hugelift_core::policy::{Backing, PageChoice, Policy};
use hugelift_core::printable::Untrusted;
use hugelift_core::report::Report;
use hugelift_core::report::summary::summary;
use hugelift_core::restore::replaced;
use hugelift_core::snapshot::{Object, Snapshot};
use hugelift_core::target::Fault;
use hugelift_inject::own::Own;
use hugelift_inject::restore::{NotRestored, restore as restore_copies};
use hugelift_linux::machine;
use hugelift_linux::proc::pagemap;
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::proc::snapshot;
use hugelift_pages::pagecache::{self, Search};
use hugelift_pages::store::{self, Moment};
use std::os::unix::ffi::OsStrExt as _;

/// Lifts what `options` ask for and is not huge yet.
pub(crate) fn lift(options: &Options) -> Result<Outcome, Error> {
    let mut policy = options.policy()?;
    let _turn = Turn::take().ok_or(Error::Busy)?;
    check_threads(options)?;
    let mut before = read_process()?;
    let machine = &before.machine;
    if !machine.pools.iter().any(|pool| machine.moves(pool.page)) {
        // A file would be mapped over the span. If that failed, the span would be gone, perhaps with this code.
        policy.backings.retain(|backing| *backing != Backing::Hugetlb);
    }
    if is_privileged() {
        // The place of the store comes from the environment, which is that of a user with fewer rights.
        policy.backings.retain(|backing| *backing != Backing::Shared);
    }
    if policy.page != PageChoice::Usual {
        before.machine.folios = machine::folios();
    }
    if policy.backings.contains(&Backing::Pagecache) {
        let takes = |object: &Object| policy.objects.takes(object);
        pagecache::find(None, &mut before, &policy.parts, takes, Search::Whole);
    }
    let mut files = Vec::new();
    if policy.backings.contains(&Backing::Shared) {
        let offer = store::offer(std::process::id(), &before, &policy, Moment::Running);
        before.stored = offer.stored;
        files = offer.files;
    }
    let mut plan = plan(&before, &policy);
    // Copies that an earlier call has made huge stay, as does what would become huge where it is.
    let copies = replaced(&before);
    let stays = |span: &Span| {
        let is_copy = copies.iter().any(|copy| copy.range.covers(span.range)) || span.part.is_writable();
        let first = span.attempts.first();
        is_copy || first.is_some_and(|one| one.in_place || one.backing == Backing::Pagecache)
    };
    plan.spans.retain(|span| !(stays(span) && is_huge(span.range)));
    let outcome = match plan.spans.is_empty() {
        true => apply::Outcome::default(),
        false => apply(&mut Own::new(&before.mappings, files), &plan),
    };
    remember(&before, &plan, &outcome);
    conclude(&policy, &before, &plan, outcome)
}

/// Maps the files' own pages back where text and read-only data are copies.
pub(crate) fn restore() -> Result<Outcome, Error> {
    let _turn = Turn::take().ok_or(Error::Busy)?;
    let before = read_process()?;
    let copies = replaced(&before);
    let mut own = Own::new(&before.mappings, Vec::new());
    let results = restore_copies(&mut own, Process::OWN, &before, &copies);
    let mut complaints = Vec::new();
    let (mut restored, mut total) = (0, 0);
    for (copy, result) in copies.iter().zip(&results) {
        total += copy.range.len();
        match result {
            Ok(()) => restored += copy.range.len(),
            Err(why) => {
                let path = before.objects.get(copy.object).map(|o| Untrusted::from(&o.path));
                let path = path.unwrap_or_else(|| Untrusted::from(""));
                let bytes = human_bytes(copy.range.len());
                complaints.push(format!("{bytes} of {} of {path} not restored: {why}", copy.part));
            }
        }
    }
    let line = format!(
        "{} of {} of copied text and rodata are pages of their files again",
        human_bytes(restored),
        human_bytes(total)
    );
    let after = read_process();
    match &after {
        Ok(after) => {
            // Pages of the page cache stay huge, as does memory that was not copied.
            let copies = replaced(after);
            let is_copy =
                |range: &Lifted| copies.iter().any(|copy| copy.range.contains(Addr(range.start as u64)));
            forget(known(after), |range| {
                range.backing != Backing::Pagecache && !range.part.is_writable() && !is_copy(range)
            });
        }
        Err(error) => {
            complaints.push(format!("what is mapped now is not known: {error}"));
            let done: Vec<Range> = copies
                .iter()
                .zip(&results)
                .filter_map(|(copy, result)| result.is_ok().then_some(copy.range))
                .collect();
            forget(known(&before), |range| done.iter().any(|done| done.contains(Addr(range.start as u64))));
        }
    }
    if let Some(Err(NotRestored::Fault(Fault::Lost(why)))) = results.last() {
        return Err(Error::Lost(format!("{why}; {line}")));
    }
    let now = after.as_ref().unwrap_or(&before);
    let nothing = plan(now, &Policy::default());
    let (mut report, unread) = report(now, &nothing, None);
    if let (Some(unread), true) = (unread, after.is_ok()) {
        complaints.push(unread);
    }
    advice::reword(&mut report);
    Ok(Outcome { report, line, complaints })
}

/// Takes ranges out of what signal handlers find.
fn forget(mut ranges: Vec<Lifted>, is_gone: impl Fn(&Lifted) -> bool) {
    ranges.retain(|range| !is_gone(range));
    table::set(ranges);
}

/// Checks that data is not written to while it is lifted.
fn check_threads(options: &Options) -> Result<(), Error> {
    match options.takes_data() {
        false => Ok(()),
        true if !options.one_thread => Err(Error::ThreadsUnknown),
        true => match Process::OWN.threads().len() {
            1 => Ok(()),
            count => Err(Error::Threads(count)),
        },
    }
}

fn read_process() -> Result<Snapshot, Error> {
    let snapshot = snapshot::live(None, 0).map_err(|e| Error::Proc(e.to_string()))?;
    match snapshot.objects.is_empty() {
        true => Err(Error::Proc("it maps no 64-bit ELF program".into())),
        false => Ok(snapshot),
    }
}

/// Returns whether huge pages map all of a range.
fn is_huge(range: Range) -> bool {
    let pid = std::process::id().cast_signed();
    pagemap::huge_bytes_at_least(pid, range).is_ok_and(|bytes| bytes >= range.len())
}

/// Reports what smaps shows now. Where that cannot be read, the second value says so.
fn report(snapshot: &Snapshot, plan: &Plan, outcome: Option<&apply::Outcome>) -> (Report, Option<String>) {
    let usage = Process::OWN.smaps();
    let mut report = Report::new(snapshot, usage.as_deref().ok(), plan, outcome);
    report.pid = Some(std::process::id());
    (report, usage.err().map(|error| format!("what is on huge pages now is not known: {error}")))
}

/// Reports what smaps shows now; where it cannot be read, what is known of the lift.
fn conclude(
    policy: &Policy,
    before: &Snapshot,
    plan: &Plan,
    outcome: apply::Outcome,
) -> Result<Outcome, Error> {
    let (mut report, unread) = report(before, plan, Some(&outcome));
    let mut lines = Vec::new();
    if let Some(unread) = unread {
        // Each copy was checked before it was moved.
        for (span, result) in plan.spans.iter().zip(&outcome.spans).filter(|(_, o)| o.lifted.is_some()) {
            let total = report.totals.entry(span.part).or_default();
            total.huge_bytes += span.range.len().saturating_sub(result.lacking());
        }
        lines.push(unread);
    }
    let line = summary(policy, before, plan, &report);
    let program = before.objects.iter().find(|object| object.executable).map(|object| &object.path);
    let program = program.map_or_else(|| Untrusted::from(""), Untrusted::from);
    lines.extend(advice::complaints(&complaints(plan, &outcome), &About::program(&program)));
    let left: u64 = outcome.leftovers.iter().map(|range| range.len()).sum();
    if left > 0 {
        lines.push(format!("{} of unused copies could not be unmapped", human_bytes(left)));
    }
    advice::reword(&mut report);
    match outcome.lost {
        Some(why) => Err(Error::Lost(format!("{why}; {line}"))),
        None => Ok(Outcome { report, line, complaints: lines }),
    }
}

/// Adds the spans that were lifted to what signal handlers find.
fn remember(before: &Snapshot, plan: &Plan, outcome: &apply::Outcome) {
    let new: Vec<Lifted> = lifted(plan, outcome)
        .filter_map(|(span, backing)| {
            let object = before.objects.get(span.object)?;
            let Range { start, end } = span.range;
            let offset = file_offset(object, start);
            let (start, end) = (start.0 as usize, end.0 as usize);
            Some(Lifted { start, end, part: span.part, backing, path: table::kept(&object.path), offset })
        })
        .collect();
    let mut ranges = known(before);
    ranges.retain(|old| new.iter().all(|new| old.end <= new.start || new.end <= old.start));
    ranges.extend(new);
    ranges.sort_by_key(|range| range.start);
    table::set(ranges);
}

/// Returns the ranges that were lifted before and belong to an object that is still loaded.
fn known(now: &Snapshot) -> Vec<Lifted> {
    let mut ranges = Vec::new();
    // One thread at a time changes the table, so nobody else can fill the slots for long.
    while table::each(|_, range| ranges.push(*range)).is_err() {
        ranges.clear();
        std::thread::yield_now();
    }
    let extents = now.extents();
    let is_there = |range: &Lifted| {
        let whole = Range { start: Addr(range.start as u64), end: Addr(range.end as u64) };
        extents.iter().any(|extent| {
            let object = now.objects.get(extent.object);
            extent.part == range.part
                && extent.range.covers(whole)
                && object.is_some_and(|object| object.path.as_os_str().as_bytes() == range.path.to_bytes())
        })
    };
    ranges.retain(is_there);
    ranges
}

/// Returns the offset in the object's file of what it maps at `addr`.
fn file_offset(object: &Object, addr: Addr) -> u64 {
    let stated = addr.0.wrapping_sub(object.bias);
    let holds = |s: &&hugelift_core::elf::Segment| s.vaddr <= stated && stated - s.vaddr < s.memsz;
    let segment = object.headers.segments.iter().find(holds);
    segment.map_or(0, |s| (stated - s.vaddr).wrapping_add(s.offset))
}
