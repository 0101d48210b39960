// SPDX-License-Identifier: Apache-2.0
//! Intel cores. The codes are from Linux's tools/perf/pmu-events/arch/x86 (which is made from Intel's
//! perfmon repository) and, for Granite Rapids, from that repository. The formulas are those of the
//! metrics there and of pmu-tools.
//!
//! Sandy Bridge and older, and the hybrids after Alder Lake (Meteor, Arrow and Lunar Lake), are left
//! out: their full tables were not available.

use super::model::{Cpus, Event, Formulas, Model, Role};
use Role::{
    Cycles, EptWalksPending, FetchSecondLevelHits, FetchWalkCycles, FetchWalks, FetchWalksPending,
    Instructions, LoadWalkCycles, LoadWalks, LoadWalksPending, StoreWalkCycles, StoreWalks,
    StoreWalksPending, TagStalls,
};

const fn event(role: Role, name: &'static str, code: u64, umask: u64, cmask: u64) -> Event {
    Event { role, name, config: cmask << 24 | umask << 8 | code }
}

const CYCLES: Event = event(Cycles, "CPU_CLK_UNHALTED.THREAD_P", 0x3c, 0, 0);
const INSTRUCTIONS: Event = event(Instructions, "INST_RETIRED.ANY_P", 0xc0, 0, 0);

/// The codes of iTLB, load and store events up to Ice Lake, and from Golden Cove on.
const OLD: [u64; 3] = [0x85, 0x08, 0x49];
const NEW: [u64; 3] = [0x11, 0x12, 0x13];

/// The cycles with at least one walk in progress (from Skylake on).
const fn walk_active([fetch, load, store]: [u64; 3]) -> [Event; 5] {
    [
        CYCLES,
        INSTRUCTIONS,
        event(FetchWalkCycles, "ITLB_MISSES.WALK_ACTIVE", fetch, 0x10, 1),
        event(LoadWalkCycles, "DTLB_LOAD_MISSES.WALK_ACTIVE", load, 0x10, 1),
        event(StoreWalkCycles, "DTLB_STORE_MISSES.WALK_ACTIVE", store, 0x10, 1),
    ]
}

const fn walk_completed([fetch, load, store]: [u64; 3]) -> [Event; 5] {
    [
        CYCLES,
        INSTRUCTIONS,
        event(FetchWalks, "ITLB_MISSES.WALK_COMPLETED", fetch, 0x0e, 0),
        event(LoadWalks, "DTLB_LOAD_MISSES.WALK_COMPLETED", load, 0x0e, 0),
        event(StoreWalks, "DTLB_STORE_MISSES.WALK_COMPLETED", store, 0x0e, 0),
    ]
}

const fn walk_pending([fetch, load, store]: [u64; 3]) -> [Event; 4] {
    [
        CYCLES,
        event(FetchWalksPending, "ITLB_MISSES.WALK_PENDING", fetch, 0x10, 0),
        event(LoadWalksPending, "DTLB_LOAD_MISSES.WALK_PENDING", load, 0x10, 0),
        event(StoreWalksPending, "DTLB_STORE_MISSES.WALK_PENDING", store, 0x10, 0),
    ]
}

/// What the second level of the TLB has for instruction fetches, and what it has not.
const fn fetches(code: u64, hits: u64) -> [Event; 4] {
    [
        CYCLES,
        INSTRUCTIONS,
        event(FetchWalks, "ITLB_MISSES.WALK_COMPLETED", code, 0x0e, 0),
        event(FetchSecondLevelHits, "ITLB_MISSES.STLB_HIT", code, hits, 0),
    ]
}

const ACTIVE_OLD: &[Event] = &walk_active(OLD);
const ACTIVE_NEW: &[Event] = &walk_active(NEW);
const COMPLETED_OLD: &[Event] = &walk_completed(OLD);
const COMPLETED_NEW: &[Event] = &walk_completed(NEW);
/// Up to Broadwell the unit mask has a bit for each page size.
const FETCHES_HASWELL: &[Event] = &fetches(0x85, 0x60);
const FETCHES_OLD: &[Event] = &fetches(0x85, 0x20);
const FETCHES_NEW: &[Event] = &fetches(0x11, 0x20);
const PENDING_OLD: &[Event] = &walk_pending(OLD);
const PENDING_NEW: &[Event] = &walk_pending(NEW);

/// Haswell has one walker: the cycles of its walks are the cycles with a walk.
const DURATION_HASWELL: &[Event] = &[
    CYCLES,
    INSTRUCTIONS,
    event(FetchWalkCycles, "ITLB_MISSES.WALK_DURATION", 0x85, 0x10, 0),
    event(LoadWalkCycles, "DTLB_LOAD_MISSES.WALK_DURATION", 0x08, 0x10, 0),
    event(StoreWalkCycles, "DTLB_STORE_MISSES.WALK_DURATION", 0x49, 0x10, 0),
];

/// Broadwell has two walkers: the event counts walks in progress, and with a counter mask of 1 the cycles
/// with a walk.
const ACTIVE_BROADWELL: &[Event] = &[
    CYCLES,
    INSTRUCTIONS,
    event(FetchWalkCycles, "ITLB_MISSES.WALK_DURATION:c1", 0x85, 0x10, 1),
    event(LoadWalkCycles, "DTLB_LOAD_MISSES.WALK_DURATION:c1", 0x08, 0x10, 1),
    event(StoreWalkCycles, "DTLB_STORE_MISSES.WALK_DURATION:c1", 0x49, 0x10, 1),
];
const DURATION_BROADWELL: &[Event] = &[
    CYCLES,
    event(FetchWalksPending, "ITLB_MISSES.WALK_DURATION", 0x85, 0x10, 0),
    event(LoadWalksPending, "DTLB_LOAD_MISSES.WALK_DURATION", 0x08, 0x10, 0),
    event(StoreWalksPending, "DTLB_STORE_MISSES.WALK_DURATION", 0x49, 0x10, 0),
];

const STALLS_SKYLAKE: &[Event] = &[
    CYCLES,
    event(TagStalls, "ICACHE_64B.IFTAG_STALL", 0x83, 0x04, 0),
    event(EptWalksPending, "EPT.WALK_PENDING", 0x4f, 0x10, 0),
];
const STALLS_ICELAKE: &[Event] = &[CYCLES, event(TagStalls, "ICACHE_64B.IFTAG_STALL", 0x83, 0x04, 0)];
const STALLS_GOLDEN_COVE: &[Event] = &[CYCLES, event(TagStalls, "ICACHE_TAG.STALLS", 0x83, 0x04, 0)];

const SKYLAKE: &[&[Event]] = &[ACTIVE_OLD, COMPLETED_OLD, PENDING_OLD, STALLS_SKYLAKE, FETCHES_OLD];
const ICELAKE: &[&[Event]] = &[ACTIVE_OLD, COMPLETED_OLD, PENDING_OLD, STALLS_ICELAKE, FETCHES_OLD];
const GOLDEN_COVE: &[&[Event]] = &[ACTIVE_NEW, COMPLETED_NEW, PENDING_NEW, STALLS_GOLDEN_COVE, FETCHES_NEW];

const ANY: std::ops::RangeInclusive<u32> = 0..=u32::MAX;

/// None of the three walk events counts walks of the hypervisor's page tables.
const EPT_EXCLUDED: &str =
    "in a guest, walks of the host's page tables are not in the walk cycles of this CPU";

macro_rules! intel {
    ($name:literal, $source:literal, $models:expr, $pmu:expr, $groups:expr, $walkers:expr, $note:expr) => {
        Model {
            name: concat!("Intel ", $name),
            source: $source,
            cpus: Cpus::X86 { vendor: "GenuineIntel", family: 6, models: &$models },
            pmus: &$pmu,
            groups: $groups,
            formulas: Formulas::WalkCycles { walkers: $walkers },
            note: $note,
        }
    };
}

pub(super) const MODELS: &[Model] = &[
    intel!(
        "Haswell",
        "Linux pmu-events, haswell and haswellx",
        [(0x3c..=0x3c, ANY), (0x3f..=0x3f, ANY), (0x45..=0x46, ANY)],
        ["cpu"],
        &[DURATION_HASWELL, COMPLETED_OLD, FETCHES_HASWELL],
        None,
        None
    ),
    intel!(
        "Broadwell client",
        "Linux pmu-events, broadwell",
        [(0x3d..=0x3d, ANY), (0x47..=0x47, ANY)],
        ["cpu"],
        &[ACTIVE_BROADWELL, COMPLETED_OLD, FETCHES_HASWELL],
        None,
        None
    ),
    intel!(
        "Broadwell server",
        "Linux pmu-events, broadwellx and broadwellde",
        [(0x4f..=0x4f, ANY), (0x56..=0x56, ANY)],
        ["cpu"],
        &[ACTIVE_BROADWELL, COMPLETED_OLD, DURATION_BROADWELL, FETCHES_HASWELL],
        Some((2.0, 7.0)),
        None
    ),
    intel!(
        "Skylake",
        "Linux pmu-events, skylake and skylakex",
        [
            (0x4e..=0x4e, ANY),
            (0x55..=0x55, 0..=4),
            (0x5e..=0x5e, ANY),
            (0x8e..=0x8e, ANY),
            (0x9e..=0x9e, ANY),
            (0xa5..=0xa6, ANY)
        ],
        ["cpu"],
        SKYLAKE,
        Some((2.0, 0.0)),
        Some(EPT_EXCLUDED)
    ),
    intel!(
        "Cascade Lake",
        "Linux pmu-events, cascadelakex",
        [(0x55..=0x55, 5..=15)],
        ["cpu"],
        SKYLAKE,
        Some((2.0, 0.0)),
        Some(EPT_EXCLUDED)
    ),
    intel!(
        "Ice Lake",
        "Linux pmu-events, icelake, icelakex and tigerlake",
        [(0x6a..=0x6a, ANY), (0x6c..=0x6c, ANY), (0x7d..=0x7e, ANY), (0x8c..=0x8d, ANY), (0xa7..=0xa7, ANY)],
        ["cpu"],
        ICELAKE,
        Some((2.0, 0.0)),
        None
    ),
    intel!(
        "Sapphire Rapids",
        "Linux pmu-events, sapphirerapids",
        [(0x8f..=0x8f, ANY)],
        ["cpu"],
        GOLDEN_COVE,
        Some((4.0, 0.0)),
        None
    ),
    intel!(
        "Emerald Rapids",
        "Linux pmu-events, emeraldrapids",
        [(0xcf..=0xcf, ANY)],
        ["cpu"],
        &[ACTIVE_NEW, COMPLETED_NEW, FETCHES_NEW],
        None,
        None
    ),
    intel!(
        "Alder Lake P-core",
        "Linux pmu-events, alderlake",
        [(0x97..=0x97, ANY), (0x9a..=0x9a, ANY), (0xb7..=0xb7, ANY), (0xba..=0xba, ANY), (0xbf..=0xbf, ANY)],
        // Without efficiency cores the PMU has the usual name.
        ["cpu_core", "cpu"],
        GOLDEN_COVE,
        Some((4.0, 0.0)),
        Some("only the time on the performance cores is counted; taskset keeps a program there")
    ),
    intel!(
        "Granite Rapids",
        "Intel perfmon, GNR graniterapids_core",
        [(0xad..=0xae, ANY)],
        ["cpu"],
        &[ACTIVE_NEW, COMPLETED_NEW, FETCHES_NEW],
        None,
        None
    ),
];
