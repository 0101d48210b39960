// SPDX-License-Identifier: Apache-2.0
//! What a plan expects of a process that runs on while it is changed: before memory is replaced, it must still be this.

use hugelift_core::addr::Range;
use hugelift_core::maps::Mapping;

/// The private mappings as the plan knows them, less what was replaced.
pub(crate) struct Planned(Vec<Mapping>);

impl Planned {
    /// Takes over the private ones of these mappings.
    pub(crate) fn of(mappings: &[Mapping]) -> Planned {
        Planned(mappings.iter().filter(|m| !m.shared).cloned().collect())
    }

    /// Returns the mapping that all of `range` lies in.
    pub(crate) fn at(&self, range: Range) -> Option<&Mapping> {
        self.0.iter().find(|m| m.range.covers(range))
    }

    /// Returns the mappings that `range` lies in; `None` if they do not cover it.
    pub(crate) fn all_at(&self, range: Range) -> Option<Vec<Mapping>> {
        let within = |m: &&Mapping| m.range.intersect(range).is_some();
        let mappings: Vec<Mapping> = self.0.iter().filter(within).cloned().collect();
        let covered: u64 = mappings.iter().filter_map(|m| m.range.intersect(range)).map(Range::len).sum();
        (covered == range.len()).then_some(mappings)
    }

    /// Takes out what was replaced.
    pub(crate) fn forget(&mut self, over: Range) {
        let is_hit = |m: &mut Mapping| m.range.intersect(over).is_some();
        let hit: Vec<Mapping> = self.0.extract_if(.., is_hit).collect();
        self.0.extend(hit.iter().flat_map(|m| {
            m.range.minus(over).into_iter().map(|range| {
                let ahead = if m.is_file() { range.start.0 - m.range.start.0 } else { 0 };
                Mapping { range, offset: m.offset + ahead, ..m.clone() }
            })
        }));
    }
}

/// Returns whether a mapping shows pages of a file. Anonymous memory of a pool is listed as a file, too.
pub(crate) fn has_file(mapping: &Mapping) -> bool {
    mapping.is_file() && !mapping.is_anonymous_hugetlb()
}
