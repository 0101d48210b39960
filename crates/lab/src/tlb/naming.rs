// SPDX-License-Identifier: Apache-2.0
//! Says what ends at a knee, and which page size counts.
//!
//! On the curve of the caches alone the knees are the caches. On a curve of pages the time above the caches
//! alone is the cost of translation, and its knees may be the TLBs. A knee gets a name only if the CPU
//! itself says that it has such a cache or TLB.

use super::access::Access;
use super::chain::{LINE, STRIDE};
use super::curve::Curve;
use super::summary::{Points, above};
use crate::knees::{LEAST, LEAST_RISE, Repeated, SWEEPS, at, repeated};
use crate::memory::Pages;
use crate::results::machine::Machine;

/// By how much a knee may differ from what the CPU says of the cache or TLB that ends there. The curve is
/// measured at few sizes, sets fill unevenly, and the TLB holds other entries too, so the reach that is
/// measured is often little more than half of the capacity.
pub const TOLERANCE: f64 = 2.0;

/// The fewest entries that a TLB has.
const FEWEST: f64 = 16.0;

/// The share of the rise on small pages, at the reach of the first-level TLB, up to which huge pages do not
/// rise there; and the share from which they do. A host that backs only some of the guest's memory with huge
/// pages is between the two.
const FIRST: (f64, f64) = (1.0 / 3.0, 2.0 / 3.0);

/// The same at the reach of the second-level TLB, where the rise on huge pages is smaller in any case, since
/// their page table has a level less. These bounds overlap: they only have to confirm the first level in
/// more of the memory.
const SECOND: (f64, f64) = (0.5, 0.25);

/// What ends at a knee.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// A TLB that the CPU describes.
    Tlb {
        level: u32,
        coalesced: bool,
    },
    /// The TLB of this level if the knees are in the order of the levels; the CPU does not describe any.
    ByOrder(u32),
    /// A cache that the CPU describes.
    Cache(u32),
    Unknown,
}

/// A knee that most sweeps have, and what ends there.
#[derive(Clone, PartialEq, Debug)]
pub struct Named {
    pub access: Access,
    pub pages: Option<Pages>,
    pub what: What,
    /// Bytes per entry; `None` if it is not known which pages count.
    pub unit: Option<u64>,
    /// The entries that the CPU states.
    pub stated: Option<u64>,
    pub found: Repeated,
}

impl Named {
    /// Returns the measured number of entries.
    pub fn entries(&self) -> Option<f64> {
        Some(self.found.knee.reach() / self.unit? as f64)
    }

    /// Returns the level if the CPU describes a TLB that ends here.
    pub fn tlb_level(&self) -> Option<u32> {
        match self.what {
            What::Tlb { level, .. } => Some(level),
            _ => None,
        }
    }

    /// Returns bounds of the entries. Those that the CPU states are always between them, so two runs on one
    /// machine cannot contradict each other.
    pub fn bounds(&self, machine: &Machine) -> Option<(f64, f64)> {
        let entries = self.entries()?;
        let shared = match self.what {
            What::Tlb { coalesced: true, .. } => machine.coalesced_pages.max(1) as f64,
            _ => 1.0,
        };
        Some((entries / TOLERANCE / shared, entries * TOLERANCE))
    }
}

/// Something whose reach may end at a knee.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    what: What,
    level: u32,
    stated: u64,
    /// Bytes of the working set.
    reach: f64,
}

/// Gives each knee the candidate that is nearest to it, within [`TOLERANCE`], and each level to one knee
/// only.
fn match_up(reaches: &[f64], candidates: &[Candidate]) -> Vec<Option<Candidate>> {
    let far = |reach: f64, c: &Candidate| (reach / c.reach).log2().abs();
    let mut pairs: Vec<(f64, usize, Candidate)> = reaches
        .iter()
        .enumerate()
        .flat_map(|(i, &reach)| candidates.iter().map(move |c| (far(reach, c), i, *c)))
        .filter(|(far, ..)| *far <= TOLERANCE.log2())
        .collect();
    pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut matched: Vec<Option<Candidate>> = vec![None; reaches.len()];
    let mut levels = Vec::new();
    for (_, i, candidate) in pairs {
        if matched[i].is_none() && !levels.contains(&candidate.level) {
            levels.push(candidate.level);
            matched[i] = Some(candidate);
        }
    }
    matched
}

/// Returns the entries of the TLB of a level for pages of a size; `None` if the CPU does not state them.
fn stated(machine: &Machine, access: Access, level: u32, page: u64) -> Option<u64> {
    let other = if access == Access::Jump { "data" } else { "instruction" };
    let tlbs = machine.tlbs.iter().filter(|tlb| tlb.kind != other);
    tlbs.filter(|tlb| (tlb.level, tlb.page_bytes) == (level, page)).map(|tlb| tlb.entries).max()
}

/// Returns the TLBs for pages of a size, and their reach with coalesced entries if pages are small.
fn tlbs(machine: &Machine, access: Access, page: u64) -> Vec<Candidate> {
    let multiples = if page == base(machine) { machine.coalesced_pages.max(1) } else { 1 };
    let one = |level: u32| {
        let entries = stated(machine, access, level, page)?;
        let candidate = move |multiple: u64| Candidate {
            what: What::Tlb { level, coalesced: multiple > 1 },
            level,
            stated: entries,
            reach: (entries * multiple * page) as f64,
        };
        let mut both = vec![candidate(1)];
        if multiples > 1 {
            both.push(candidate(multiples));
        }
        Some(both)
    };
    (1..=3).filter_map(one).flatten().collect()
}

fn caches(machine: &Machine, access: Access) -> Vec<Candidate> {
    let caches = machine.caches_for(access == Access::Jump).into_iter();
    let lines = |bytes: u64| bytes / LINE as u64;
    let one = |c: &crate::results::machine::Cache| Candidate {
        what: What::Cache(c.level),
        level: c.level,
        stated: lines(c.bytes),
        reach: (lines(c.bytes) * STRIDE as u64) as f64,
    };
    caches.map(one).collect()
}

fn base(machine: &Machine) -> u64 {
    machine.base_page_bytes.max(1)
}

pub fn curve_of(curves: &[Curve], access: Access, pages: Option<Pages>) -> Option<&Curve> {
    curves.iter().find(|c| c.access == access && c.pages == pages)
}

/// Returns the time above the caches alone: the medians, and each sweep.
fn translation(curve: &Curve, curves: &[Curve]) -> Option<(Points, Vec<Points>)> {
    let alone = curve_of(curves, curve.access, None)?;
    let sweeps: Vec<Points> =
        curve.sweeps.iter().zip(&alone.sweeps).map(|(points, alone)| above(points, alone)).collect();
    Some((above(&curve.medians(), &alone.medians()), sweeps))
}

/// Names the knees of a curve that most sweeps have. `counts` is the page size that counts on huge pages, if
/// that is known.
pub fn named(curve: &Curve, curves: &[Curve], machine: &Machine, counts: Option<u64>) -> Vec<Named> {
    let medians = curve.medians();
    let access = curve.access;
    let (found, unit, candidates) = match curve.pages {
        None => (repeated(&medians, &curve.sweeps), Some(STRIDE as u64), caches(machine, access)),
        Some(pages) => {
            let Some((above, sweeps)) = translation(curve, curves) else { return Vec::new() };
            let unit = if pages == Pages::Small { Some(base(machine)) } else { counts };
            let candidates = unit.map(|page| tlbs(machine, access, page)).unwrap_or_default();
            (repeated(&above, &sweeps), unit, candidates)
        }
    };
    let reaches: Vec<f64> = found.iter().map(|f| f.knee.reach()).collect();
    let matched = match_up(&reaches, &candidates);
    let mut order = 0;
    let mut one = |(found, matched): (Repeated, Option<Candidate>)| {
        // Times of the curve itself, not of what is above the caches.
        let own = |x| at(&medians, x).unwrap_or(0.0);
        let (before, after) = (own(found.knee.at), own(found.knee.until));
        let knee = crate::knees::Knee { before, after, ..found.knee };
        let is_tlb = curve.pages == Some(Pages::Small) && machine.tlbs.is_empty() && order < 2;
        let what = match matched {
            Some(candidate) => candidate.what,
            None if is_tlb && knee.reach() / base(machine) as f64 >= FEWEST => {
                order += 1;
                What::ByOrder(order)
            }
            None => What::Unknown,
        };
        let stated = matched.map(|candidate| candidate.stated);
        Named { access, pages: curve.pages, what, unit, stated, found: Repeated { knee, ..found } }
    };
    found.into_iter().zip(matched).map(&mut one).collect()
}

/// The page size that counts for the TLBs where the program has huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counts {
    pub bytes: u64,
    /// The huge pages that it was measured on.
    pub on: Pages,
    pub sure: bool,
}

/// Returns the page sizes of the architecture for one size of the base page, with those of contiguous
/// entries (Arm Architecture Reference Manual, D8, "the Contiguous bit").
pub fn page_sizes(x86: bool, base: u64) -> &'static [u64] {
    const KB: u64 = 1 << 10;
    const MB: u64 = 1 << 20;
    const GB: u64 = 1 << 30;
    match (x86, base >> 10) {
        (true, _) => &[4 * KB, 2 * MB, GB],
        (false, 4) => &[4 * KB, 64 * KB, 2 * MB, 32 * MB, GB],
        (false, 16) => &[16 * KB, 2 * MB, 32 * MB, GB],
        (false, 64) => &[64 * KB, 2 * MB, 512 * MB, 16 * GB],
        _ => &[],
    }
}

/// Returns which page size counts on huge pages of the size of a transparent one; `None` if the sweeps do
/// not agree on it, or if two kinds of such pages do not.
///
/// The pages of the program need not count: if the host backs a guest with smaller pages, each entry of a
/// TLB holds one of those. Then an access on huge pages becomes slower where one on small pages does.
pub fn counts(curves: &[Curve], machine: &Machine, disturbed: bool) -> Option<Counts> {
    let thp = machine.thp_bytes?;
    let is_usual = |pages: &Pages| *pages != Pages::Small && pages.bytes() == thp;
    let of_loads = curves.iter().filter(|c| c.access == Access::Load && c.as_asked);
    let usual = of_loads.filter(|c| c.pages.as_ref().is_some_and(is_usual));
    let mut verdicts = usual.filter_map(|c| verdict(c, c.pages?, curves, machine, disturbed));
    let first = verdicts.next()??;
    verdicts.all(|other| other.is_some_and(|other| other.bytes == first.bytes)).then_some(first)
}

/// Returns what one kind of huge pages shows: `None` if it cannot show anything, `Some(None)` if its sweeps
/// do not agree.
#[allow(clippy::option_option)]
fn verdict(
    curve: &Curve,
    pages: Pages,
    curves: &[Curve],
    machine: &Machine,
    disturbed: bool,
) -> Option<Option<Counts>> {
    let small = curve_of(curves, Access::Load, Some(Pages::Small))?;
    let ((small_medians, small_sweeps), (huge_medians, huge_sweeps)) =
        (translation(small, curves)?, translation(curve, curves)?);
    let base = base(machine);
    let knees = repeated(&small_medians, &small_sweeps);
    let mut first_by_order = knees.iter().map(|f| f.knee.reach() / base as f64).filter(|&n| n >= FEWEST);
    let stated = |level| stated(machine, Access::Load, level, base).map(|entries| entries as f64);
    let first = stated(1).or_else(|| first_by_order.next().filter(|_| machine.tlbs.is_empty()))?;
    // The rise on huge pages around the reach of a TLB with this number of entries, as a share of the rise on
    // small ones, by sweep.
    let shares = |entries: f64| -> Option<Vec<f64>> {
        let reach = entries * base as f64;
        let (from, to) = (reach / 2.0, (reach * 4.0).min(small.last()));
        let rise = |points: &Points| Some(at(points, to)? - at(points, from)?);
        let share = |(small, huge): (&Points, &Points)| {
            let (step, before) = (rise(small)?, at(small, from)?);
            let clear = step >= LEAST_RISE && step >= LEAST * before;
            clear.then_some(rise(huge)? / step)
        };
        (to >= 2.0 * reach).then(|| small_sweeps.iter().zip(&huge_sweeps).map(share).collect()).flatten()
    };
    let near = shares(first)?;
    let far = stated(2).and_then(shares);
    let below = |shares: &[f64], bound: f64| shares.iter().all(|&share| share <= bound);
    let beyond = |shares: &[f64], bound: f64| shares.iter().all(|&share| share >= bound);
    // The reach of the first-level TLB is in one huge page, and the host may have backed just that one
    // differently. That of the second is in several.
    let enough = far.is_some() || machine.hypervisor.is_none();
    let sure = !disturbed && near.len() >= SWEEPS && stated(1).is_some() && enough;
    let far = |test: &dyn Fn(&[f64]) -> bool| far.as_deref().is_none_or(test);
    if beyond(&near, FIRST.1) && far(&|shares| beyond(shares, SECOND.1)) {
        return Some(Some(Counts { bytes: base, on: pages, sure }));
    }
    if !below(&near, FIRST.0) || !far(&|shares| below(shares, SECOND.0)) {
        return Some(None);
    }
    let sizes = page_sizes(cfg!(target_arch = "x86_64"), base);
    let larger: Vec<u64> =
        sizes.iter().copied().filter(|&size| size > base && size <= pages.bytes()).collect();
    let bytes = match larger[..] {
        [only] => Some(only),
        // Several sizes are possible: the right one has a knee where the entries for it end.
        _ => {
            let knees = repeated(&huge_medians, &huge_sweeps);
            let is_seen = |size: u64| {
                let reach = stated_or(machine, 1, size, first) * size as f64;
                knees.iter().any(|f| (f.knee.reach() / reach).log2().abs() <= TOLERANCE.log2())
            };
            let mut seen = larger.iter().copied().filter(|&size| is_seen(size));
            seen.next().filter(|_| seen.next().is_none())
        }
    };
    Some(bytes.map(|bytes| Counts { bytes, on: pages, sure }))
}

fn stated_or(machine: &Machine, level: u32, page: u64, entries: f64) -> f64 {
    stated(machine, Access::Load, level, page).map_or(entries, |entries| entries as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::machine::Tlb;

    fn zen_4() -> Machine {
        let tlb = |level, entries| Tlb { level, kind: "data".into(), page_bytes: 4096, entries };
        Machine {
            tlbs: vec![tlb(1, 72), tlb(2, 3072)],
            coalesced_pages: 4,
            base_page_bytes: 4096,
            ..Machine::default()
        }
    }

    fn whats(entries: &[f64]) -> Vec<Option<What>> {
        let candidates = tlbs(&zen_4(), Access::Load, 4096);
        let reaches: Vec<f64> = entries.iter().map(|n| n * 4096.0).collect();
        match_up(&reaches, &candidates).into_iter().map(|c| c.map(|c| c.what)).collect()
    }

    #[test]
    fn a_level_is_named_once_and_by_what_the_cpu_says() {
        let tlb = |level, coalesced| Some(What::Tlb { level, coalesced });
        assert_eq!(whats(&[76.0, 1722.0]), [tlb(1, false), tlb(2, false)]);
        // Entries of four adjacent pages.
        assert_eq!(whats(&[250.0, 11_000.0]), [tlb(1, true), tlb(2, true)]);
        // 181 entries are four times too few for coalesced ones of the second level, and the first is named.
        assert_eq!(whats(&[76.0, 215.0, 1722.0]), [tlb(1, false), None, tlb(2, false)]);
        assert_eq!(whats(&[1200.0, 185_364.0]), [None, None]);
        // Nothing is known of pages of 2 MB.
        assert!(tlbs(&zen_4(), Access::Load, 2 << 20).is_empty());
        assert!(tlbs(&Machine::default(), Access::Load, 4096).is_empty());
    }

    #[test]
    fn page_sizes_of_the_architectures() {
        assert_eq!(page_sizes(true, 4096), [4 << 10, 2 << 20, 1 << 30]);
        for base in [4096u64, 16 << 10, 64 << 10] {
            let sizes = page_sizes(false, base);
            assert!(sizes[0] == base && sizes.windows(2).all(|w| w[0] < w[1]), "{sizes:?}");
        }
        assert!(page_sizes(false, 8192).is_empty());
    }
}
