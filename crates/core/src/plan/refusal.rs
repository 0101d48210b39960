// SPDX-License-Identifier: Apache-2.0
//! Why an extent, or the page cache of one, is not considered at all.

use super::candidate::stays_in_place;
use super::is_nearly_all;
use crate::addr::{PageSize, Range};
use crate::attribute::Attribute;
use crate::maps::{Mapping, Prot};
use crate::policy::Policy;
use crate::skip::Reason;
use crate::snapshot::{Extent, Part, Snapshot, overlapping};

/// Returns why `extent` must stay as it is, whatever backings there are.
pub(super) fn refusal(snapshot: &Snapshot, policy: &Policy, extent: &Extent) -> Option<Reason> {
    let object = &snapshot.objects[extent.object];
    if !policy.objects.takes(object) || policy.within.is_some_and(|within| !within.covers(extent.range)) {
        return Some(Reason::Excluded);
    }
    if !policy.parts.contains(&extent.part) {
        return Some(Reason::PartNotAsked(extent.part));
    }
    // The loader makes a segment that states both writable and executable again, base page by base
    // page, which hugetlb mappings refuse.
    let in_wx_segment = object
        .headers
        .segments
        .iter()
        .filter(|s| s.prot.is_wx())
        .any(|s| object.loaded(s.vaddr, s.memsz).is_some_and(|r| r.intersect(extent.range).is_some()));
    if extent.prot.is_wx() || in_wx_segment {
        return Some(Reason::WritableCode);
    }
    if let Some(attribute) = lost_attribute(snapshot, policy, extent) {
        return Some(Reason::Special(attribute));
    }
    match extent.part {
        Part::Text if object.textrel => Some(Reason::TextRelocations),
        // A uprobe's breakpoint that the kernel finds in anonymous memory kills the program.
        Part::Text if snapshot.patched.iter().any(|r| r.intersect(extent.range).is_some()) => {
            Some(Reason::Patched)
        }
        Part::Text if (Prot { bti: false, ..extent.prot }) == Prot::RX => None,
        Part::Rodata if extent.prot == Prot::R => None,
        // It is writable until the loader has relocated it.
        Part::Relro if [Prot::R, Prot::RW].contains(&extent.prot) => None,
        Part::Data | Part::Bss | Part::Heap | Part::Stack if extent.prot == Prot::RW => None,
        _ => Some(Reason::Protection),
    }
}

/// Returns an attribute of `extent` that its lift would undo. Memory that stays in place keeps its
/// attributes, except those that huge pages themselves contradict.
fn lost_attribute(snapshot: &Snapshot, policy: &Policy, extent: &Extent) -> Option<Attribute> {
    let in_place = stays_in_place(extent);
    let is_lost =
        |a: Attribute| !in_place || a.forbids_huge() || a == Attribute::Placed && policy.placement.is_some();
    let here = snapshot.special.iter().filter(|(r, _)| r.intersect(extent.range).is_some());
    here.map(|(_, attribute)| *attribute).find(|attribute| is_lost(*attribute))
}

/// Returns the stretches of `extent` that huge page table entries can map straight from the page
/// cache, if they are nearly all of it: each gap would have to be copied.
pub(super) fn cached(snapshot: &Snapshot, extent: &Extent, page: PageSize) -> Result<Vec<Range>, Reason> {
    let Some(inner) = extent.range.inner(page) else { return Err(Reason::TooSmall(page)) };
    if !extent.file_backed {
        return Err(Reason::NotPrimed);
    }
    let congruent = |m: &Mapping| m.range.start.0.wrapping_sub(m.offset).is_multiple_of(page.bytes());
    if !overlapping(&snapshot.mappings, inner).iter().all(congruent) {
        // hugelift would have moved an executable to a congruent base if any of it were in huge
        // folios. If none is, the page cache is the reason.
        let object = &snapshot.objects[extent.object];
        let mut ranges = object.headers.segments.iter().filter_map(|s| object.loaded(s.vaddr, s.memsz));
        let is_cached = |r: Range| snapshot.cached.iter().any(|c| c.intersect(r).is_some());
        let not_primed = object.executable && object.headers.relocatable && !ranges.any(is_cached);
        return Err(if not_primed { Reason::NotPrimed } else { Reason::NotCongruent(page) });
    }
    let held = snapshot.cached.iter().filter_map(|c| c.intersect(inner)?.inner(page));
    let spans: Vec<Range> = held.collect();
    let bytes: u64 = spans.iter().map(|r| r.len()).sum();
    if is_nearly_all(bytes, inner.len()) { Ok(spans) } else { Err(Reason::NotPrimed) }
}
