// SPDX-License-Identifier: Apache-2.0
//! Tests what is stated on simulated machines whose TLBs are known, idle and busy.

use super::access::Access;
use super::curve::Curve;
use super::findings::{Quiet, outcome};
use super::sizes;
use super::summary::Points;
use crate::memory::Pages;
use crate::results::claim::contradictions::contradictions;
use crate::results::claim::{Answer, Claim};
use crate::results::machine::{Machine, Tlb};
use proptest::prelude::*;

const BASE: f64 = 4096.0;
const LARGEST: u64 = 512 << 20;

/// A machine.
#[derive(Clone, Debug)]
struct Simulated {
    /// Entries of the two levels, and what a miss of each costs in nanoseconds on small pages.
    entries: [u64; 2],
    costs: [f64; 2],
    /// How many adjacent small pages an entry holds on average; up to four on a CPU that says so.
    coalesced: f64,
    /// The share of the reach at which misses of the second level begin.
    begins: f64,
    /// The page size that counts on huge pages.
    counts: f64,
    /// A walk on huge pages that the host backs with small ones, as a share of one on small pages.
    walk: f64,
}

/// How other programs disturb a run.
#[derive(Clone, Copy, Debug)]
struct Noise {
    /// The share of the samples that meet another program, and the most that it multiplies them by.
    spikes: (f64, f64),
    /// The share of the working sets of a sweep for which another program stays, and the most that it
    /// multiplies all samples by.
    stays: (f64, f64),
    /// By how much the placement of memory moves the times of a run, as a share.
    placement: f64,
}

const IDLE: Noise = Noise { spikes: (0.02, 3.0), stays: (0.0, 1.0), placement: 0.03 };
/// A load of 2 or 8, of which the experiment's own watch saw nothing.
const UNSEEN: Noise = Noise { spikes: (0.6, 10.0), stays: (0.1, 1.5), placement: 0.05 };

impl Simulated {
    fn machine(&self) -> Machine {
        let tlb = |level: u32, page_bytes, entries| Tlb { level, kind: "data".into(), page_bytes, entries };
        let all = [4096, 2 << 20]
            .into_iter()
            .flat_map(|page| [tlb(1, page, self.entries[0]), tlb(2, page, self.entries[1])]);
        Machine {
            tlbs: all.collect(),
            coalesced_pages: if self.coalesced > 1.0 { 4 } else { 1 },
            hypervisor: Some("KVM".into()),
            base_page_bytes: 4096,
            thp_bytes: Some(Pages::Thp.bytes()),
            ..Machine::default()
        }
    }

    /// Returns the time of a load without noise.
    fn time(&self, pages: Option<Pages>, x: f64) -> f64 {
        let missed = |reach: f64| (1.0 - reach / x).max(0.0);
        let caches = 1.1 + 3.0 * missed(512.0 * BASE) + 8.0 * missed(16384.0 * BASE);
        let (page, walk) = match pages {
            None => return caches,
            Some(Pages::Small) => (BASE, 1.0),
            Some(_) => (self.counts, self.walk),
        };
        let reach = if page > BASE { page } else { page * self.coalesced };
        let first = self.entries[0] as f64 * reach;
        let second = self.entries[1] as f64 * reach * self.begins;
        caches + self.costs[0] * missed(first) + walk * self.costs[1] * missed(second)
    }

    /// Returns what a run states.
    fn claims(&self, noise: Noise, seed: u64, disturbed: bool) -> Vec<Claim> {
        let mut random = fastrand::Rng::with_seed(seed);
        let sizes = sizes(LARGEST, 2);
        let kinds = [None, Some(Pages::Small), Some(Pages::Thp)];
        let mut curves: Vec<Curve> = kinds
            .into_iter()
            .map(|pages| Curve { access: Access::Load, pages, as_asked: true, sweeps: Vec::new() })
            .collect();
        let placed: Vec<f64> =
            kinds.iter().map(|_| 1.0 + noise.placement * (2.0 * random.f64() - 1.0)).collect();
        for _ in 0..3 {
            let mut points: Vec<Points> = vec![Vec::new(); kinds.len()];
            for &size in &sizes {
                let stays = match random.f64() < noise.stays.0 {
                    true => 1.0 + (noise.stays.1 - 1.0) * random.f64(),
                    false => 1.0,
                };
                for (i, pages) in kinds.into_iter().enumerate() {
                    let sample = |random: &mut fastrand::Rng| {
                        let spike = match random.f64() < noise.spikes.0 {
                            true => 1.0 + (noise.spikes.1 - 1.0) * random.f64(),
                            false => 1.0,
                        };
                        // The placement of memory matters where the caches do not hold the page tables.
                        let placed = if size > 8 << 20 { placed[i] } else { 1.0 };
                        self.time(pages, size as f64) * stays * placed * spike * (1.0 + 0.02 * random.f64())
                    };
                    let least = (0..5).map(|_| sample(&mut random)).fold(f64::INFINITY, f64::min);
                    points[i].push((size as f64, least));
                }
            }
            for (curve, points) in curves.iter_mut().zip(points) {
                curve.sweeps.push(points);
            }
        }
        let quiet = Quiet { disturbed, load: if disturbed { 8.0 } else { 0.2 } };
        outcome(&curves, Vec::new(), None, &self.machine(), quiet).claims
    }

    /// Fails if a sure claim is wrong.
    fn check(&self, claims: &[Claim]) -> Result<(), TestCaseError> {
        for claim in claims.iter().filter(|claim| claim.sure) {
            match (&claim.answer, claim.subject.as_str()) {
                (Answer::Between { low, high, .. }, subject) => {
                    let level = usize::from(subject.contains("l2"));
                    let entries = self.entries[level] as f64;
                    prop_assert!(*low <= entries && entries <= *high, "{:?} {:?}", claim, self);
                }
                (Answer::Word(word), "tlb.pages-that-count") => {
                    let page = hugelift_core::addr::human_bytes(self.counts as u64);
                    prop_assert_eq!(word, &page, "{:?}", self);
                }
                (Answer::Word(word), subject) => {
                    let size = if subject.contains("512MB") { 512.0 } else { 64.0 } * f64::from(1 << 20);
                    let (small, huge) =
                        (self.time(Some(Pages::Small), size), self.time(Some(Pages::Thp), size));
                    let right = match word.as_str() {
                        "yes" => huge < small,
                        _ => huge > small,
                    };
                    prop_assert!(right, "{:?} {} {} {:?}", claim, small, huge, self);
                }
            }
        }
        Ok(())
    }
}

fn any_machine() -> impl Strategy<Value = Simulated> {
    let entries = (
        prop::sample::select(vec![32u64, 48, 64, 72, 96]),
        prop::sample::select(vec![512u64, 1024, 1536, 2048, 3072]),
    );
    let counts = prop::sample::select(vec![BASE, (2u64 << 20) as f64]);
    let coalesced = prop_oneof![Just(1.0), 1.0f64..4.0];
    (entries, 1.5f64..4.0, 8.0f64..60.0, coalesced, 0.5f64..1.0, counts, 0.4f64..1.0).prop_map(
        |((first, second), near, far, coalesced, begins, counts, walk)| Simulated {
            entries: [first, second],
            costs: [near, far],
            coalesced,
            begins,
            counts,
            walk,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_is_sure_is_right_and_runs_agree(machine in any_machine(), seed: u64) {
        if Pages::Thp.bytes() != 2 << 20 || Pages::Small.bytes() != 4096 {
            return Ok(());
        }
        let idle = machine.claims(IDLE, seed, false);
        let unseen = machine.claims(UNSEEN, seed ^ 1, false);
        let busy = machine.claims(UNSEEN, seed ^ 2, true);
        machine.check(&idle)?;
        machine.check(&unseen)?;
        prop_assert!(busy.iter().all(|claim| !claim.sure));
        for (a, b) in [(&idle, &unseen), (&idle, &busy), (&unseen, &busy)] {
            prop_assert!(contradictions(a, b).is_empty(), "{:?}", contradictions(a, b));
        }
    }
}

/// Other programs hit one working set on huge pages in all sweeps, unseen. It passed for a loss once.
#[test]
fn a_working_set_that_is_hit_in_every_sweep_is_not_called_sure() {
    if Pages::Thp.bytes() != 2 << 20 || Pages::Small.bytes() != 4096 {
        return;
    }
    let machine = Simulated {
        entries: [32, 512],
        costs: [1.5, 8.0],
        coalesced: 1.0,
        begins: 0.5,
        counts: 4096.0,
        walk: 0.846_052_594_483_324_3,
    };
    let claims = machine.claims(UNSEEN, 5_990_514_403_999_670_415 ^ 1, false);
    machine.check(&claims).expect("what is sure is right");
}

/// Being right by saying nothing is not enough: on most idle machines the page size is found, and is sure.
#[test]
fn an_idle_machine_is_understood() {
    if Pages::Thp.bytes() != 2 << 20 || Pages::Small.bytes() != 4096 {
        return;
    }
    for counts in [BASE, (2u64 << 20) as f64] {
        let machine = Simulated {
            entries: [72, 3072],
            costs: [2.0, 40.0],
            coalesced: 1.0,
            begins: 0.7,
            counts,
            walk: 0.6,
        };
        let said = (0..20).filter(|&seed| {
            let claims = machine.claims(IDLE, seed, false);
            let sure = |subject: &str| claims.iter().any(|claim| claim.sure && claim.subject == subject);
            sure("tlb.pages-that-count")
                && sure("tlb.load.small.l1.entries")
                && sure("tlb.load.small.l2.entries")
                && sure("tlb.load.heap-512MB.saved")
        });
        assert!(said.count() >= 16, "{counts}");
    }
}
