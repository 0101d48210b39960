// SPDX-License-Identifier: Apache-2.0
//! Maps the copies that a process has by huge pages or by small ones. Both are the same bytes, side by side in memory, so that
//! nothing but the page size differs.

use super::chosen::Chosen;
use super::open::{in_tracer_as_a_whole, open, read_status};
use crate::options::Seccomp;
use hugelift_core::addr::{Range, human_bytes};
use hugelift_core::maps::Mapping;
use hugelift_core::target::Fault;
use hugelift_inject::live::{Pages, Stops};
use hugelift_linux::machine::thp_switch::Allowance;
use hugelift_linux::proc::procfs::Process;
use std::time::{Duration, Instant};

/// What a change of the page size showed.
#[derive(Clone, Debug)]
pub struct Resized {
    /// What was mapped anew, mapping by mapping.
    pub mapped: Vec<Range>,
    /// Why the rest was not, a line for each mapping.
    pub complaints: Vec<String>,
    /// How often and how long a thread was stopped.
    pub stops: Stops,
    /// From the first reading of the process to the end.
    pub took: Duration,
}

impl Resized {
    /// Returns how many of `wanted` bytes stayed as they were. A mapping may reach beyond the copies that are known.
    pub fn stays(&self, wanted: u64) -> u64 {
        wanted.saturating_sub(self.mapped.iter().map(|range| range.len()).sum())
    }
}

/// Maps each of these copies by the pages that are named with it. Copies on pages of the pool stay as they are, and so does a
/// copy of a file of the store that was written to.
///
/// # Errors
/// One line that says why the process cannot be changed. If a thread was lost meanwhile, some of them may be changed.
pub fn map_by(chosen: Chosen, seccomp: Seccomp, copies: &[(Range, Pages)]) -> Result<Resized, String> {
    let began = Instant::now();
    let chosen = chosen.reached()?;
    let status = read_status(chosen.pid)?;
    let mappings = Process::new(chosen.pid).maps().map_err(|e| e.to_string())?;
    let wanted: Vec<(Mapping, Pages)> = mappings.iter().flat_map(|mapping| pieces(mapping, copies)).collect();
    in_tracer_as_a_whole(|| {
        let mut live = open(chosen, &mappings, seccomp)?;
        live.allow_thp((status.thp_enabled == Some(false)).then(Allowance::here).flatten());
        let (mut mapped, mut complaints) = (Vec::new(), Vec::new());
        for (mapping, pages) in wanted {
            match live.map_by(&mapping, pages) {
                Ok(()) => mapped.push(mapping.range),
                Err(Fault::Lost(why)) => return Err(why),
                Err(fault) => {
                    let size = human_bytes(mapping.range.len());
                    complaints.push(format!("{size} of it at {} stay: {fault}", mapping.range.start));
                }
            }
        }
        Ok(Resized { mapped, complaints, stops: live.stops(), took: began.elapsed() })
    })
}

/// Returns what of a mapping is to be mapped by which pages: all of it, if one copy lies in it alone; else each part that is a
/// copy, or a part of one.
fn pieces(mapping: &Mapping, copies: &[(Range, Pages)]) -> Vec<(Mapping, Pages)> {
    if mapping.is_copy_on_pool() || mapping.shared || mapping.is_file() && mapping.prot.write {
        return Vec::new();
    }
    let mut own = copies.iter().filter(|(copy, _)| mapping.range.intersect(*copy).is_some());
    match (own.next(), own.next()) {
        // A mapping of the store may reach beyond what is known.
        (Some((copy, pages)), None) if mapping.is_file() && mapping.range.covers(*copy) => {
            vec![(mapping.clone(), *pages)]
        }
        (first, second) => {
            let all = first.into_iter().chain(second).chain(own);
            all.filter_map(|(copy, pages)| Some((mapping.within(*copy)?, *pages))).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::addr::Addr;
    use hugelift_core::maps;

    const MB2: u64 = 2 << 20;

    fn range(start: u64, end: u64) -> Range {
        Range::new(Addr(start * MB2), Addr(end * MB2)).expect("a range")
    }

    #[test]
    fn issue_31_7_a_mapping_is_divided_where_its_copies_are() {
        let line = format!("{:x}-{:x} r-xp 00400000 08:01 9 /store/entry\n", 16 * MB2, 24 * MB2);
        let mapping = maps::parse_maps(line.as_bytes()).expect("a mapping").remove(0);
        let of = |copies: &[(Range, Pages)]| -> Vec<(Range, u64, Pages)> {
            let all = pieces(&mapping, copies);
            all.into_iter().map(|(piece, pages)| (piece.range, piece.offset / MB2, pages)).collect()
        };
        assert_eq!(of(&[(range(16, 20), Pages::Small)]), [(range(16, 24), 2, Pages::Small)]);
        assert_eq!(
            of(&[(range(16, 19), Pages::Small), (range(19, 24), Pages::Huge)]),
            [(range(16, 19), 2, Pages::Small), (range(19, 24), 5, Pages::Huge)]
        );
        // Since another part of the copy has other pages, the mapping is a part of it.
        assert_eq!(of(&[(range(10, 30), Pages::Huge)]), [(range(16, 24), 2, Pages::Huge)]);
        assert_eq!(of(&[(range(2, 16), Pages::Huge), (range(24, 30), Pages::Huge)]), []);
    }
}
