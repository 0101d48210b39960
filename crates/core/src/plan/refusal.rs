// SPDX-License-Identifier: Apache-2.0
//! Why an extent, or the page cache of one, is not considered at all.

use super::candidate::stays_in_place;
use super::size::is_nearly_all;
use crate::addr::{PageSize, Range};
use crate::attribute::Attribute;
use crate::by_address::ByAddress;
use crate::maps::{Mapping, Prot};
use crate::policy::Policy;
use crate::skip::Reason;
use crate::snapshot::{Extent, Object, Part, Snapshot, overlapping};

/// What forbids to lift extents of a snapshot, found by their addresses.
pub(super) struct Refusals<'a> {
    snapshot: &'a Snapshot,
    policy: &'a Policy,
    /// Which objects the policy takes.
    takes: Vec<bool>,
    /// The segments of each object that state both writable and executable.
    writable_code: Vec<ByAddress<()>>,
    special: ByAddress<Attribute>,
    patched: ByAddress<()>,
    cached: ByAddress<()>,
}

impl<'a> Refusals<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, policy: &'a Policy) -> Refusals<'a> {
        let writable_code = |object: &Object| {
            let segments = object.headers.segments.iter().filter(|s| s.prot.is_wx());
            segments.filter_map(|s| Some((object.loaded(s.vaddr, s.memsz)?, ()))).collect()
        };
        let marked = |ranges: &[Range]| ranges.iter().map(|range| (*range, ())).collect();
        Refusals {
            snapshot,
            policy,
            takes: snapshot.objects.iter().map(|object| policy.objects.takes(object)).collect(),
            writable_code: snapshot.objects.iter().map(writable_code).collect(),
            special: snapshot.special.iter().copied().collect(),
            patched: marked(&snapshot.patched),
            cached: marked(&snapshot.cached),
        }
    }

    /// Returns why `extent` must stay as it is, whatever backings there are.
    pub(super) fn of(&self, extent: &Extent) -> Option<Reason> {
        let policy = self.policy;
        if !self.takes[extent.object] || policy.within.is_some_and(|within| !within.covers(extent.range)) {
            return Some(Reason::Excluded);
        }
        if !policy.parts.contains(&extent.part) {
            return Some(Reason::PartNotAsked(extent.part));
        }
        // The loader makes a segment that states both writable and executable again, base page by base
        // page, which hugetlb mappings refuse.
        if extent.prot.is_wx() || self.writable_code[extent.object].is_over(extent.range) {
            return Some(Reason::WritableCode);
        }
        if let Some(attribute) = self.lost_attribute(extent) {
            return Some(Reason::Special(attribute));
        }
        match extent.part {
            Part::Text if self.snapshot.objects[extent.object].textrel => Some(Reason::TextRelocations),
            // A uprobe's breakpoint that the kernel finds in anonymous memory kills the program.
            Part::Text if self.patched.is_over(extent.range) => Some(Reason::Patched),
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
    fn lost_attribute(&self, extent: &Extent) -> Option<Attribute> {
        let in_place = stays_in_place(extent);
        let placed = |a: Attribute| a == Attribute::Placed && self.policy.placement.is_some();
        let is_lost = |a: Attribute| !in_place || a.forbids_huge() || placed(a);
        self.attributes(extent.range).find(|attribute| is_lost(*attribute))
    }

    /// Returns the attributes of memory in `range`.
    pub(super) fn attributes(&self, range: Range) -> impl Iterator<Item = Attribute> {
        self.special.over(range).map(|(_, attribute)| *attribute)
    }

    /// Returns the stretches of `extent` that huge page table entries can map straight from the page
    /// cache, if they are nearly all of it: each gap would have to be copied.
    pub(super) fn cached(&self, extent: &Extent, page: PageSize) -> Result<Vec<Range>, Reason> {
        let Some(inner) = extent.range.inner(page) else { return Err(Reason::TooSmall(page)) };
        if !extent.file_backed {
            return Err(Reason::NotPrimed);
        }
        let congruent = |m: &Mapping| m.range.start.0.wrapping_sub(m.offset).is_multiple_of(page.bytes());
        if !overlapping(&self.snapshot.mappings, inner).iter().all(congruent) {
            // hugelift would have moved an executable to a congruent base if any of it were in huge
            // folios. If none is, the page cache is the reason.
            let object = &self.snapshot.objects[extent.object];
            let is_cached = || {
                let mut ranges =
                    object.headers.segments.iter().filter_map(|s| object.loaded(s.vaddr, s.memsz));
                !self.snapshot.cached.is_empty() && ranges.any(|range| self.cached.is_over(range))
            };
            let not_primed = object.executable && object.headers.relocatable && !is_cached();
            return Err(if not_primed { Reason::NotPrimed } else { Reason::NotCongruent(page) });
        }
        let held = self.cached.over(inner).filter_map(|(c, ())| c.intersect(inner)?.inner(page));
        let spans: Vec<Range> = held.collect();
        let bytes: u64 = spans.iter().map(|r| r.len()).sum();
        if is_nearly_all(bytes, inner.len()) { Ok(spans) } else { Err(Reason::NotPrimed) }
    }
}
