// SPDX-License-Identifier: Apache-2.0
//! Arm cores. The codes of the architecture's common events are from Linux's
//! tools/perf/pmu-events/arch/arm64/common-and-microarch.json, the events of each core from its
//! folder there, and for Cortex-A72 from libpfm4.

use super::model::{Cpus, Event, Formulas, Model, Role};

const fn event(role: Role, name: &'static str, config: u64) -> Event {
    Event { role, name, config }
}

const CYCLES: Event = event(Role::Cycles, "CPU_CYCLES", 0x11);
const INSTRUCTIONS: Event = event(Role::Instructions, "INST_RETIRED", 0x08);
const FETCH_REFILLS: Event = event(Role::FetchFirstLevelMisses, "L1I_TLB_REFILL", 0x02);
const DATA_REFILLS: Event = event(Role::DataFirstLevelMisses, "L1D_TLB_REFILL", 0x05);
const FETCH_WALKS: Event = event(Role::FetchWalks, "ITLB_WALK", 0x35);
const DATA_WALKS: Event = event(Role::LoadWalks, "DTLB_WALK", 0x34);

const REFILLS: &[Event] = &[CYCLES, INSTRUCTIONS, FETCH_REFILLS, DATA_REFILLS];
const WALKS: &[Event] = &[CYCLES, INSTRUCTIONS, FETCH_WALKS, DATA_WALKS];
const PERCYC: &[Event] = &[
    CYCLES,
    event(Role::FetchWalksPending, "ITLB_WALK_PERCYC", 0x8129),
    event(Role::LoadWalksPending, "DTLB_WALK_PERCYC", 0x8128),
];

/// The firmware or device tree names the PMU after the core, or it is `armv8_pmuv3_0`.
const PMUS: &[&str] = &["armv8_", "armv9_"];

macro_rules! arm {
    ($name:literal, $source:literal, $parts:expr, $pmus:expr, $groups:expr, $formulas:expr, $note:expr) => {
        Model {
            name: concat!("Arm ", $name),
            source: $source,
            cpus: Cpus::Arm { implementer: 0x41, parts: &$parts },
            pmus: $pmus,
            groups: $groups,
            formulas: $formulas,
            note: $note,
        }
    };
}

const NO_CYCLES: Option<&str> =
    Some("this core has no event for the cycles of page walks: walks only, and no bound on the gain");

pub(super) const MODELS: &[Model] = &[
    arm!(
        "Cortex-A72",
        "libpfm4, arm_a72",
        [0xd08],
        PMUS,
        &[REFILLS],
        Formulas::Misses,
        Some("this core counts only misses of the first-level TLBs: no walks, and no bound on the gain")
    ),
    arm!(
        "Neoverse N1",
        "Linux pmu-events, neoverse-n1",
        [0xd0c],
        PMUS,
        &[WALKS, REFILLS],
        Formulas::Misses,
        NO_CYCLES
    ),
    arm!(
        "Cortex-A76",
        "Linux pmu-events, cortex-a76-n1",
        [0xd0b],
        PMUS,
        &[WALKS, REFILLS],
        Formulas::Misses,
        NO_CYCLES
    ),
    arm!(
        "Neoverse V1",
        "Linux pmu-events, neoverse-v1",
        [0xd40],
        PMUS,
        &[WALKS, REFILLS],
        Formulas::Misses,
        NO_CYCLES
    ),
    arm!(
        "Neoverse N2 or V2",
        "Linux pmu-events, neoverse-n2-v2",
        [0xd49, 0xd4f],
        PMUS,
        &[WALKS, REFILLS],
        Formulas::Misses,
        NO_CYCLES
    ),
    arm!(
        "Neoverse N3",
        "Linux pmu-events, neoverse-n3",
        [0xd8e],
        PMUS,
        &[WALKS, PERCYC, REFILLS],
        Formulas::WalksInProgress,
        None
    ),
    arm!(
        "Neoverse V3",
        "Linux pmu-events, neoverse-v3",
        [0xd84],
        PMUS,
        &[WALKS, PERCYC, REFILLS],
        Formulas::WalksInProgress,
        None
    ),
];
