// SPDX-License-Identifier: Apache-2.0
//! What follows from the counts: shares of cycles, walks per thousand instructions, cycles
//! per walk.
//!
//! The sum of the walk shares is an upper bound of the gain by huge pages: a cycle in which fetches,
//! loads and stores walk counts for each of them, a walk may overlap with other work of the core,
//! and huge pages need walks too.
//!
//! Cycles are those of the counted threads. The published formulas for the utilization of the walkers
//! use the cycles of the core; on a core with two threads the value here is the program's part.

use super::count::Sample;
use super::tables::{Formulas, Role};
use Role::{
    Cycles, DataFirstLevelMisses, EptWalksPending, FetchFirstLevelMisses, FetchSecondLevelHits,
    FetchWalkCycles, FetchWalks, FetchWalksPending, Instructions, LoadWalkCycles, LoadWalks,
    LoadWalksPending, StoreWalkCycles, StoreWalks, StoreWalksPending, TagStalls,
};
use serde::Serialize;

/// What a value is measured in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// A share of the cycles, from 0 to 1.
    Share,
    /// A share of lookups: of a TLB, or of the walkers' loads. Of a TLB perf(1) counts those of the second level only, so that the
    /// share may be above 1.
    ShareOfLookups,
    /// Per thousand instructions.
    PerThousandInstructions,
    /// Core cycles.
    Cycles,
    /// Instructions per cycle.
    PerCycle,
}

/// One figure.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Metric {
    /// Stable name for scripts.
    pub key: &'static str,
    /// Its name in the text.
    pub label: &'static str,
    /// The value in `unit`.
    pub value: f64,
    /// What it is measured in.
    pub unit: Unit,
    /// How it follows from the events.
    pub formula: &'static str,
}

/// Computes all figures for which the sample has the counts, and the bound on the gain as a share of
/// cycles, where the CPU has the events for it.
pub fn metrics(sample: &Sample<'_>) -> (Vec<Metric>, Option<f64>) {
    let mut all = Figures { sample, found: Vec::new() };
    let bound = match sample.model.formulas {
        Formulas::WalkCycles { walkers } => all.walk_cycles(walkers),
        Formulas::WalksInProgress => all.walks_in_progress(),
        Formulas::Misses => None,
    };
    all.misses();
    all.rate(
        "instructions_per_cycle",
        "instructions per cycle",
        sample.per(Instructions, Cycles),
        Unit::PerCycle,
        "instructions / cycles",
    );
    (all.found, bound)
}

struct Figures<'a> {
    sample: &'a Sample<'a>,
    found: Vec<Metric>,
}

impl Figures<'_> {
    fn rate(
        &mut self,
        key: &'static str,
        label: &'static str,
        value: Option<f64>,
        unit: Unit,
        formula: &'static str,
    ) {
        if let Some(value) = value {
            self.found.push(Metric { key, label, value, unit, formula });
        }
    }

    /// Computes the figures of Intel's events.
    fn walk_cycles(&mut self, walkers: Option<(f64, f64)>) -> Option<f64> {
        let sample = self.sample;
        let share = |roles: &[Role]| sample.sum_per(roles, Cycles);
        let fetch = share(&[FetchWalkCycles]);
        let data = share(&[LoadWalkCycles, StoreWalkCycles]);
        self.rate("itlb_walk_share", "iTLB walks", fetch, Unit::Share, "iTLB walk cycles / cycles");
        self.rate("dtlb_walk_share", "dTLB walks", data, Unit::Share, "(load + store walk cycles) / cycles");
        if data.is_none() {
            // A missing count is not a zero: what was counted gets a figure of its own.
            let (loads, stores) = (share(&[LoadWalkCycles]), share(&[StoreWalkCycles]));
            self.rate(
                "dtlb_load_walk_share",
                "dTLB walks of loads",
                loads,
                Unit::Share,
                "load walk cycles / cycles",
            );
            self.rate(
                "dtlb_store_walk_share",
                "dTLB walks of stores",
                stores,
                Unit::Share,
                "store walk cycles / cycles",
            );
        }
        let stalls = share(&[TagStalls]);
        self.rate(
            "fetch_tag_stall_share",
            "fetch stalls at the tags",
            stalls,
            Unit::Share,
            "tag stalls / cycles",
        );
        if let Some(walkers) = walkers {
            self.utilization(walkers);
        }
        let each = |cycles: &[Role], walks: &[Role]| ratio(share(cycles), share(walks));
        let (fetch_each, data_each) = (
            each(&[FetchWalkCycles], &[FetchWalks]),
            each(&[LoadWalkCycles, StoreWalkCycles], &[LoadWalks, StoreWalks]),
        );
        self.rate(
            "itlb_walk_cycles",
            "cycles per iTLB walk",
            fetch_each,
            Unit::Cycles,
            "iTLB walk cycles / iTLB walks",
        );
        self.rate(
            "dtlb_walk_cycles",
            "cycles per dTLB walk",
            data_each,
            Unit::Cycles,
            "dTLB walk cycles / dTLB walks",
        );
        // One of the two alone does not give a bound.
        Some((fetch? + data?).min(1.0))
    }

    /// Computes how busy the page walkers are. `extra`: cycles to add for each finished walk.
    fn utilization(&mut self, (walkers, extra): (f64, f64)) {
        let sample = self.sample;
        let share = |roles: &[Role]| sample.sum_per(roles, Cycles);
        let mut busy = share(&[FetchWalksPending, LoadWalksPending, StoreWalksPending]);
        if sample.model.groups.iter().any(|g| g.iter().any(|e| e.role == EptWalksPending)) {
            busy = busy.and_then(|b| Some(b + share(&[EptWalksPending])?));
        }
        if extra > 0.0 {
            let walks = share(&[FetchWalks, LoadWalks, StoreWalks]);
            busy = busy.and_then(|b| Some(b + extra * walks?));
        }
        let formula = "walks in progress per cycle / walkers";
        self.rate(
            "page_walks_utilization",
            "page walkers busy",
            busy.map(|b| b / walkers),
            Unit::Share,
            formula,
        );
    }

    /// Computes the figures of Arm's events, where a cycle with n walks in progress counts n times.
    fn walks_in_progress(&mut self) -> Option<f64> {
        let sample = self.sample;
        let per_cycle = |role| sample.per(role, Cycles);
        let (fetch, data) = (per_cycle(FetchWalksPending), per_cycle(LoadWalksPending));
        self.rate("itlb_walk_share", "iTLB walks", fetch, Unit::Share, "ITLB_WALK_PERCYC / cycles");
        self.rate("dtlb_walk_share", "dTLB walks", data, Unit::Share, "DTLB_WALK_PERCYC / cycles");
        let (fetch_each, data_each) =
            (ratio(fetch, per_cycle(FetchWalks)), ratio(data, per_cycle(LoadWalks)));
        self.rate(
            "itlb_walk_cycles",
            "cycles per iTLB walk",
            fetch_each,
            Unit::Cycles,
            "ITLB_WALK_PERCYC / ITLB_WALK",
        );
        self.rate(
            "dtlb_walk_cycles",
            "cycles per dTLB walk",
            data_each,
            Unit::Cycles,
            "DTLB_WALK_PERCYC / DTLB_WALK",
        );
        Some((fetch? + data?).min(1.0))
    }

    fn misses(&mut self) {
        let sample = self.sample;
        let has = |role| sample.model.groups.iter().any(|g| g.iter().any(|e| e.role == role));
        let per_thousand = |roles: &[Role]| sample.sum_per(roles, Instructions).map(|x| x * 1000.0);
        let unit = Unit::PerThousandInstructions;
        let data: &[Role] = if has(StoreWalks) { &[LoadWalks, StoreWalks] } else { &[LoadWalks] };
        let fetch_misses: &[Role] = if has(FetchSecondLevelHits) {
            &[FetchSecondLevelHits, FetchWalks]
        } else {
            &[FetchFirstLevelMisses]
        };
        let hits_a_walk = sample.per(FetchSecondLevelHits, FetchWalks);
        self.rate(
            "itlb_second_level_misses",
            "first-level iTLB misses that walk",
            hits_a_walk.map(|hits| 1.0 / (1.0 + hits)),
            Unit::ShareOfLookups,
            "iTLB walks / (second-level hits + iTLB walks)",
        );
        self.rate(
            "itlb_walks_per_1000",
            "iTLB walks",
            per_thousand(&[FetchWalks]),
            unit,
            "1000 x iTLB walks / instructions",
        );
        self.rate(
            "dtlb_walks_per_1000",
            "dTLB walks",
            per_thousand(data),
            unit,
            "1000 x dTLB walks / instructions",
        );
        self.rate(
            "l1_itlb_misses_per_1000",
            "first-level iTLB misses",
            per_thousand(fetch_misses),
            unit,
            "1000 x misses / instructions",
        );
        self.rate(
            "l1_dtlb_misses_per_1000",
            "first-level dTLB misses",
            per_thousand(&[DataFirstLevelMisses]),
            unit,
            "1000 x misses / instructions",
        );
    }
}

fn ratio(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    let b = b?;
    a.filter(|_| b > 0.0).map(|a| a / b)
}
