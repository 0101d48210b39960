// SPDX-License-Identifier: Apache-2.0
//! Gives back the memory of copies of code that are no longer in use: maps the files' own pages there again.
//!
//! Only memory that this frees is given back. An entry of the store stays in the store, and pages of the pool stay in the pool. A
//! copy that a forked process has too stays in that process.

use super::change::{Change, report};
use super::chosen::Chosen;
use super::open::{forbidden_calls, in_tracer_as_a_whole, left, not_restored, open, read_process};
use crate::options::Seccomp;
use hugelift_core::addr::{Addr, PageSize, Range, human_bytes};
use hugelift_core::plan::plan;
use hugelift_core::policy::Policy;
use hugelift_core::printable::Untrusted;
use hugelift_core::restore::{Replaced, replaced};
use hugelift_core::snapshot::{Part, Snapshot};
use hugelift_core::target::Target as _;
use hugelift_inject::live::Live;
use hugelift_inject::restore::{NotRestored, restore};
use hugelift_linux::machine::thp_page;
use hugelift_linux::proc::pagemap;
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::proc::snapshot;
use std::collections::BTreeMap;
use std::time::Instant;

/// What was given back of a process.
#[derive(Debug, Default)]
pub(crate) struct GivenBack {
    /// The process afterwards; `None` if it was not changed, as nothing would become free.
    pub(crate) change: Option<Change>,
    /// The copies that are pages of their files again: whole huge pages.
    pub(crate) ranges: Vec<Range>,
}

/// Gives back the copies in `cold` whose memory becomes free by that. `why` says why they are cold.
///
/// # Errors
/// See [`super::attach`].
pub(crate) fn give_back(
    chosen: Chosen,
    seccomp: Seccomp,
    cold: &[Range],
    why: &str,
) -> Result<GivenBack, String> {
    let began = Instant::now();
    let reached = chosen.reached()?;
    let pid = reached.pid;
    let (_, before) = read_process(pid)?;
    let copies = those_of_one(pid, &before, cold);
    if copies.is_empty() {
        return Ok(GivenBack::default());
    }
    let (mut complaints, stops) = in_tracer_as_a_whole(|| {
        let mut live = open(reached, &before.mappings, seccomp)?;
        let refused = restore_each(&mut live, pid, &before, &copies);
        let complaints = refused.iter().map(|(copy, why)| not_restored(&before, copy, &why.to_string()));
        let complaints = complaints.chain(forbidden_calls(&live)).chain(left(live.scratch().all()));
        Ok((complaints.collect::<Vec<String>>(), live.stops()))
    })?;
    let after = snapshot::live(Some(pid), 0).map_err(|e| e.to_string())?;
    let (ranges, line) = given(&before, &copies, &after);
    let report = report(pid, &after, &plan(&after, &Policy::default()), None)?;
    let lines: Vec<String> = line.map(|line| format!("{line} given back: {why}")).into_iter().collect();
    complaints.dedup();
    let change = Change::new(lines, complaints, stops, began.elapsed(), report);
    Ok(GivenBack { change: Some(change.of(chosen)), ranges })
}

/// Returns whether a copy is ordinary memory: no file of the store, and no pages of the pool.
pub(super) fn is_memory_alone(snapshot: &Snapshot, copy: &Replaced) -> bool {
    snapshot.mapping_at(copy.range.start).is_some_and(|mapping| !mapping.is_file() && !mapping.shared)
}

/// Returns the copies of code in `cold` that no other process has, as long as they can be: whole huge pages.
fn those_of_one(pid: u32, before: &Snapshot, cold: &[Range]) -> Vec<Replaced> {
    let all = replaced(before).into_iter().filter(|copy| copy.part == Part::Text);
    let mut found: Vec<Replaced> = Vec::new();
    for copy in all.filter(|copy| is_memory_alone(before, copy)) {
        for piece in cold.iter().filter_map(|cold| copy.within(*cold)).flat_map(|piece| pages_of(&piece)) {
            if !pagemap::is_exclusive(pid.cast_signed(), piece.range).unwrap_or(false) {
                continue;
            }
            match found.last_mut() {
                Some(last) if goes_on(last, &piece) => last.range.end = piece.range.end,
                _ => found.push(piece),
            }
        }
    }
    found
}

/// Returns whether `next` is the rest of the same copy: the kernel may list a copy as two mappings.
fn goes_on(copy: &Replaced, next: &Replaced) -> bool {
    let is_next = copy.range.end == next.range.start && copy.offset + copy.range.len() == next.offset;
    is_next && copy.object == next.object && copy.prot == next.prot
}

/// Returns the whole huge pages of a copy.
pub(super) fn pages_of(copy: &Replaced) -> impl Iterator<Item = Replaced> + use<> {
    let (copy, page) = (*copy, thp_page().unwrap_or(PageSize::MB2));
    let whole = copy.range.inner(page).unwrap_or_default();
    let step = usize::try_from(page.bytes()).unwrap_or(usize::MAX);
    let starts = (whole.start.0..whole.end.0).step_by(step);
    let pages = starts.filter_map(move |start| Range::sized(Addr(start), page.bytes()));
    pages.filter_map(move |page| copy.within(page))
}

/// Restores copies, and returns those that stay with the reason. Where some bytes of a copy differ from the file, its other
/// huge pages are restored.
fn restore_each(
    live: &mut Live,
    pid: u32,
    before: &Snapshot,
    copies: &[Replaced],
) -> Vec<(Replaced, NotRestored)> {
    let process = Process::new(pid);
    let mut refused = Vec::new();
    for (copy, result) in copies.iter().zip(restore(live, process, before, copies)) {
        match result {
            Ok(()) => {}
            Err(NotRestored::Differs { .. }) if pages_of(copy).count() > 1 => {
                let pages: Vec<Replaced> = pages_of(copy).collect();
                let results = restore(live, process, before, &pages);
                let stay = pages.into_iter().zip(results);
                refused.extend(stay.filter_map(|(page, result)| Some((page, result.err()?))));
            }
            Err(why) => refused.push((*copy, why)),
        }
    }
    refused
}

/// Returns which huge pages of the copies are pages of their files now, and a line about them such as "text 6 MB of /usr/bin/x"; no line
/// without such.
fn given(before: &Snapshot, copies: &[Replaced], after: &Snapshot) -> (Vec<Range>, Option<String>) {
    let is_of_file = |page: &Replaced| {
        let file = before.objects.get(page.object).map(|object| object.file);
        after.mapping_at(page.range.start).is_some_and(|mapping| {
            mapping.range.covers(page.range) && Some(mapping.file) == file && mapping.is_file()
        })
    };
    let gone: Vec<Replaced> = copies.iter().flat_map(pages_of).filter(is_of_file).collect();
    let mut by_object: BTreeMap<usize, u64> = BTreeMap::new();
    for page in &gone {
        *by_object.entry(page.object).or_default() += page.range.len();
    }
    let of = |(object, bytes): (usize, u64)| {
        let path = &before.objects.get(object)?.path;
        Some(format!("{} of {}", human_bytes(bytes), Untrusted::from(path)))
    };
    let what: Vec<String> = by_object.into_iter().filter_map(of).collect();
    let line = (!what.is_empty()).then(|| format!("text {}", what.join(", ")));
    (gone.into_iter().map(|page| page.range).collect(), line)
}
