// SPDX-License-Identifier: Apache-2.0
//! Says what the curves mean: the reach of TLBs and caches, and what huge pages save.

mod quiet;
mod saved;
mod statements;
mod tables;

pub use quiet::Quiet;

use super::access::Access;
use super::curve::Curve;
use super::naming::{Named, counts, named};
use super::program::Sizes;
use crate::results::machine::Machine;
use crate::results::unit::Unit;
use crate::results::{Outcome, Sample};
use saved::saved;
use statements::{claims, gain, reach, silent};
use tables::{name, plot, table_of_curves, table_of_knees, table_of_saved};

pub fn outcome(
    curves: &[Curve],
    notes: Vec<String>,
    sizes: Option<&Sizes>,
    machine: &Machine,
    quiet: Quiet,
) -> Outcome {
    let counts = counts(curves, machine, quiet.disturbed);
    let page = counts.map(|counts| counts.bytes);
    let found: Vec<Named> = curves.iter().flat_map(|c| named(c, curves, machine, page)).collect();
    let saved = saved(curves, sizes);
    let mut outcome = Outcome {
        advice: [gain(&saved, quiet), Some(reach(&found, counts, machine, quiet))]
            .into_iter()
            .flatten()
            .collect(),
        notes,
        tables: vec![table_of_saved(&saved), table_of_knees(&found), table_of_curves(curves)],
        plots: [Access::Load, Access::Jump].into_iter().filter_map(|a| plot(a, curves, &found)).collect(),
        samples: curves.iter().map(sample).collect(),
        claims: claims(&found, counts, &saved, machine, quiet),
        listing: Vec::new(),
    };
    outcome.notes.extend(sizes.and_then(|s| match s.heap {
        None => Some(format!(
            "the size of the heap of {} is not known, since it does not run: use --pid for a running process",
            s.name
        )),
        Some(_) => None,
    }));
    outcome.notes.extend(silent(machine));
    outcome.notes.push(
        "a working set is memory in use, here one line of each 4 kB in random order; a program seldom uses all of \
         its memory"
            .into(),
    );
    outcome
}

fn sample(curve: &Curve) -> Sample {
    Sample {
        name: format!("{}, {}", curve.access.name(), name(curve.pages)),
        unit: Unit::Nanoseconds,
        values: curve.medians().iter().map(|p| p.1).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Pages;
    use crate::results::Cell;
    use crate::results::claim::Claim;
    use crate::results::machine::Tlb;
    use crate::tlb::summary::Points;

    const CALM: Quiet = Quiet { disturbed: false, load: 0.1 };
    const BUSY: Quiet = Quiet { disturbed: true, load: 9.2 };

    /// Three equal sweeps whose accesses cost 2 ns more beyond a TLB of 64 entries of `page` bytes, `miss` ns
    /// more beyond one of 1536, and 5 ns more beyond a cache of 32 kB.
    fn curve(pages: Option<Pages>, page: f64, miss: f64) -> Curve {
        let share = |limit: f64, x: f64| (1.0 - limit / x).max(0.0);
        let first = if miss > 0.0 { 2.0 } else { 0.0 };
        let time = |x: f64| {
            1.0 + 5.0 * share(512.0 * 4096.0, x)
                + first * share(64.0 * page, x)
                + miss * share(1536.0 * page, x)
        };
        let sizes = super::super::sizes(4 << 30, 4);
        let points: Points = sizes.iter().map(|&bytes| (bytes as f64, time(bytes as f64))).collect();
        Curve { access: Access::Load, pages, as_asked: true, sweeps: vec![points; 3] }
    }

    /// Curves of a machine whose TLBs have entries of `effective` bytes where the program has huge pages.
    fn curves(effective: f64) -> Vec<Curve> {
        vec![
            curve(None, f64::MAX, 0.0),
            curve(Some(Pages::Small), 4096.0, 30.0),
            curve(Some(Pages::Thp), effective, 30.0),
        ]
    }

    fn machine() -> Machine {
        let tlb = |level, page_bytes, entries| Tlb { level, kind: "data".into(), page_bytes, entries };
        Machine {
            tlbs: [4096, 2 << 20]
                .into_iter()
                .flat_map(|page| [tlb(1, page, 64), tlb(2, page, 1536)])
                .collect(),
            hypervisor: Some("KVM".into()),
            base_page_bytes: 4096,
            thp_bytes: Some(Pages::Thp.bytes()),
            ..Machine::default()
        }
    }

    fn of(curves: &[Curve], quiet: Quiet) -> Outcome {
        outcome(curves, Vec::new(), None, &machine(), quiet)
    }

    fn claim<'a>(outcome: &'a Outcome, subject: &str) -> Option<&'a Claim> {
        outcome.claims.iter().find(|claim| claim.subject == subject)
    }

    #[test]
    fn reach_and_gain_of_given_curves() {
        if Pages::Thp.bytes() != 2 << 20 {
            return;
        }
        let outcome = of(&curves(2097152.0), CALM);
        let [gain, reach] = &outcome.advice[..] else { panic!("{:?}", outcome.advice) };
        assert!(
            gain.starts_with("A random load in 512 MB of heap takes 37.6 ns on small pages and 7.48"),
            "{gain}"
        );
        assert!(gain.contains("(80 % less, 80 to 80 % less by sweep)"), "{gain}");
        assert!(reach.starts_with("On 4 kB pages a load becomes slower beyond about 70 entries"), "{reach}");
        assert!(reach.contains("; the L1 TLB has 64) and beyond about 1579"), "{reach}");
        assert!(reach.ends_with("The pages that count in this guest are 2 MB on THP."), "{reach}");
        let knees = &outcome.tables[1];
        for tlb in ["L1 TLB", "L2 TLB"] {
            let named = |pages: &str| {
                let row = |row: &&Vec<Cell>| row[1] == pages.into() && row[2] == tlb.into();
                knees.rows.iter().filter(row).count()
            };
            assert_eq!((named("4 kB"), named("THP")), (1, 1), "{knees:?}");
        }
        assert_eq!(
            claim(&outcome, "tlb.pages-that-count"),
            Some(&Claim::word("tlb.pages-that-count", "2 MB", true))
        );
        let saved = "tlb.load.heap-512MB.saved";
        assert_eq!(claim(&outcome, saved), Some(&Claim::word(saved, "yes", true)));
        assert!(claim(&outcome, "tlb.load.small.l2.entries").is_some_and(|claim| claim.sure));
    }

    #[test]
    fn small_pages_of_the_host_are_detected() {
        let outcome = of(&curves(4096.0), CALM);
        assert!(outcome.advice[1].contains("whatever the program asks for:"), "{:?}", outcome.advice);
        let pages = claim(&outcome, "tlb.pages-that-count").unwrap();
        assert_eq!(pages, &Claim::word("tlb.pages-that-count", "4 kB", true));
        // Huge pages save nothing here, which is between the margins.
        assert!(outcome.advice[0].contains("(not sure: 0 to 0 % less by sweep)"), "{:?}", outcome.advice);
        assert!(claim(&outcome, "tlb.load.heap-512MB.saved").is_some_and(|claim| !claim.sure));
    }

    /// A host that backs half of the memory with huge pages.
    #[test]
    fn a_mixture_is_no_page_size() {
        let mut curves = curves(4096.0);
        let (small, huge) = (curves[1].clone(), curve(Some(Pages::Thp), 2097152.0, 30.0));
        for ((mixed, small), huge) in curves[2].sweeps.iter_mut().zip(&small.sweeps).zip(&huge.sweeps) {
            for (i, point) in mixed.iter_mut().enumerate() {
                point.1 = f64::midpoint(small[i].1, huge[i].1);
            }
        }
        let outcome = of(&curves, CALM);
        assert!(outcome.advice[1].ends_with("Which page size counts in this guest is not clear."));
        assert_eq!(claim(&outcome, "tlb.pages-that-count"), None);
    }

    #[test]
    fn nothing_is_sure_on_a_busy_machine() {
        let outcome = of(&curves(2097152.0), BUSY);
        assert!(!outcome.claims.is_empty() && outcome.claims.iter().all(|claim| !claim.sure));
        for sentence in &outcome.advice {
            assert!(sentence.contains("not sure: the machine was busy (load 9)"), "{sentence}");
        }
    }

    #[test]
    fn sweeps_that_disagree_show_no_knee() {
        let mut curves = curves(4096.0);
        // Each sweep of small pages has its only step at another place.
        for (i, sweep) in curves[1].sweeps.iter_mut().enumerate() {
            let step = 2e6 * 30f64.powi(i32::try_from(i).unwrap());
            for point in sweep {
                point.1 = if point.0 > step { 50.0 } else { 1.0 };
            }
        }
        for (quiet, why) in [
            (CALM, "No clear knee: the sweeps disagree"),
            (BUSY, "No clear knee: the machine was busy (load 9)"),
        ] {
            let outcome = of(&curves, quiet);
            assert!(outcome.advice[1].starts_with(why), "{:?}", outcome.advice);
            assert!(outcome.advice[1].contains("run again: hugelift lab tlb"), "{:?}", outcome.advice);
            assert_eq!(claim(&outcome, "tlb.load.small.l1.entries"), None);
        }
    }

    #[test]
    fn a_cpu_that_says_nothing_leaves_nothing_sure_of_its_tlbs() {
        let machine = Machine { tlbs: Vec::new(), ..machine() };
        let outcome = outcome(&curves(4096.0), Vec::new(), None, &machine, CALM);
        assert!(
            outcome.advice[1].contains("not sure: the CPU does not describe its TLBs"),
            "{:?}",
            outcome.advice
        );
        assert!(
            outcome.notes.iter().any(|note| note.contains("named by their order")),
            "{:?}",
            outcome.notes
        );
        let tlb = |claim: &&Claim| claim.subject.contains("entries") || claim.subject.contains("pages");
        assert!(outcome.claims.iter().filter(tlb).all(|claim| !claim.sure), "{:?}", outcome.claims);
    }

    #[test]
    fn nothing_is_said_of_what_was_not_measured() {
        let mut curves = curves(2097152.0);
        for sweep in curves.iter_mut().flat_map(|curve| &mut curve.sweeps) {
            sweep.retain(|p| p.0 <= (1u64 << 30) as f64);
        }
        let outcome = of(&curves, CALM);
        // 2 GB were not measured.
        let sizes: Vec<String> = outcome.tables[0].rows.iter().map(|r| format!("{:?}", r[2])).collect();
        assert_eq!(sizes.len(), 2, "{sizes:?}");
    }

    #[test]
    fn the_sizes_of_a_program() {
        let sizes = Sizes { name: "prog".into(), text: 1 << 20, heap: Some(256 << 20) };
        let outcome = outcome(&curves(2097152.0), Vec::new(), Some(&sizes), &machine(), CALM);
        let rows = &outcome.tables[0].rows;
        assert_eq!((rows.len(), &rows[0][0]), (1, &"heap of prog".into()));
    }
}
