// SPDX-License-Identifier: Apache-2.0
//! The memory of a process that can be mapped by huge pages and by small ones in turn: what it has written to, and what is
//! anonymous and private.

use super::chosen::Chosen;
use super::collapse::collapse_once;
use crate::options::Seccomp;
use hugelift_core::addr::Range;
use hugelift_core::attribute::Attribute;
use hugelift_core::collapse::Budget;
use hugelift_core::smaps::Usage;
use hugelift_core::snapshot::Part;
use hugelift_linux::proc::pagemap;
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::proc::snapshot;
use std::io;

/// Memory that lies on huge pages alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Switchable {
    /// What it is.
    pub part: Part,
    /// Where it lies.
    pub range: Range,
    /// It was on huge pages before.
    pub was_huge: bool,
}

/// Collapses memory of these parts within a budget, and returns what is on huge pages then. Memory with advice about reading ahead
/// is left out: a change of its page size would take that advice away.
///
/// # Errors
/// One line: the memory cannot be read or collapsed, or the kernel does not show what is huge (before Linux 6.7).
pub fn switchable(
    chosen: Chosen,
    seccomp: Seccomp,
    parts: &[Part],
    budget: &Budget,
) -> Result<Vec<Switchable>, String> {
    let pid = chosen.reached()?.pid;
    let before = huge(pid, parts)?;
    collapse_once(chosen, seccomp, parts, &left_alone(pid)?, budget)?;
    let mut all = Vec::new();
    for (part, range) in huge(pid, parts)? {
        let old: Vec<Range> = before.iter().filter_map(|(_, old)| old.intersect(range)).collect();
        let new = old.iter().fold(vec![range], |rest, old| {
            rest.into_iter().flat_map(|range| range.minus(*old)).filter(|range| !range.is_empty()).collect()
        });
        all.extend(old.into_iter().map(|range| Switchable { part, range, was_huge: true }));
        all.extend(new.into_iter().map(|range| Switchable { part, range, was_huge: false }));
    }
    Ok(all)
}

/// Returns the mappings with advice that a change of the page size would take away.
fn left_alone(pid: u32) -> Result<Vec<Range>, String> {
    let usages = Process::new(pid).smaps().map_err(|e| e.to_string())?;
    let is_left = |usage: &Usage| usage.paced || usage.attributes.contains(&Attribute::NoHuge);
    Ok(usages.into_iter().filter(is_left).map(|usage| usage.mapping.range).collect())
}

/// Returns the stretches of these parts that huge pages map.
fn huge(pid: u32, parts: &[Part]) -> Result<Vec<(Part, Range)>, String> {
    let snapshot = snapshot::live(Some(pid), 0).map_err(|e| e.to_string())?;
    let left = left_alone(pid)?;
    let is_left = |range: Range| left.iter().any(|left| left.intersect(range).is_some());
    let mut extents = snapshot.extents();
    extents.extend(snapshot.anonymous(&extents));
    let mut all = Vec::new();
    for extent in extents {
        let is_anonymous = snapshot.mapping_at(extent.range.start).is_some_and(|m| !m.is_file() && !m.shared);
        if !parts.contains(&extent.part) || extent.file_backed || !is_anonymous || is_left(extent.range) {
            continue;
        }
        let ranges = pagemap::huge_ranges(pid.cast_signed(), extent.range, false);
        let ranges = ranges.map_err(|error| unseen(pid, &error))?;
        all.extend(ranges.into_iter().map(|range| (extent.part, range)));
    }
    Ok(all)
}

/// Returns the bytes of these ranges that huge pages map just now; none if the process has ended.
pub fn huge_bytes(pid: u32, ranges: &[Range]) -> u64 {
    let bytes = |range: &Range| pagemap::huge_bytes_at_least(pid.cast_signed(), *range);
    ranges.iter().map(bytes).filter_map(Result::ok).sum()
}

/// Returns the bytes of these ranges that are in memory on small pages; none if the process has ended.
pub fn small_bytes(pid: u32, ranges: &[Range]) -> u64 {
    let present = |range: &Range| pagemap::present_bytes(pid.cast_signed(), *range);
    let present: u64 = ranges.iter().map(present).filter_map(Result::ok).sum();
    present.saturating_sub(huge_bytes(pid, ranges))
}

fn unseen(pid: u32, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOTTY) => "the kernel does not show which of its memory is huge (Linux 6.7 does)".into(),
        _ => format!("/proc/{pid}/pagemap: {error}"),
    }
}
