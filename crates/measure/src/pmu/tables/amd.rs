// SPDX-License-Identifier: Apache-2.0
//! AMD Zen. The codes are from Linux's tools/perf/pmu-events/arch/x86/amdzen1 to amdzen5, the models
//! of each generation from its arch/x86/kernel/cpu/amd.c. No Zen has an event that
//! counts the cycles of page walks.

use super::model::{Cpus, Event, Formulas, Model, Role};

const fn event(role: Role, name: &'static str, code: u64, umask: u64) -> Event {
    Event { role, name, config: umask << 8 | code }
}

const CYCLES: Event = event(Role::Cycles, "ls_not_halted_cyc", 0x76, 0);
const INSTRUCTIONS: Event = event(Role::Instructions, "ex_ret_instr", 0xc0, 0);
const FETCH_HITS: Event = event(Role::FetchSecondLevelHits, "bp_l1_tlb_miss_l2_tlb_hit", 0x84, 0);
const DATA_MISSES: Event = event(Role::DataFirstLevelMisses, "ls_l1_d_tlb_miss.all", 0x45, 0xff);
const DATA_WALKS: Event = event(Role::LoadWalks, "ls_l1_d_tlb_miss.all_l2_miss", 0x45, 0xf0);

/// Each bit of the unit mask is a page size; there is one more from Zen 3 on.
const fn walks(umask: u64) -> [Event; 4] {
    let fetch = event(Role::FetchWalks, "bp_l1_tlb_miss_l2_tlb_miss.all", 0x85, umask);
    [CYCLES, INSTRUCTIONS, fetch, DATA_WALKS]
}

const FIRST_LEVEL: &[Event] = &[CYCLES, INSTRUCTIONS, FETCH_HITS, DATA_MISSES];
const ZEN: &[&[Event]] = &[&walks(0x07), FIRST_LEVEL];
const ZEN3: &[&[Event]] = &[&walks(0xff), FIRST_LEVEL];
const ZEN4: &[&[Event]] = &[&walks(0x0f), FIRST_LEVEL];

const ANY: std::ops::RangeInclusive<u32> = 0..=u32::MAX;

macro_rules! zen {
    ($name:literal, $source:literal, $family:literal, $models:expr, $groups:expr) => {
        Model {
            name: concat!("AMD ", $name),
            source: $source,
            cpus: Cpus::X86 { vendor: "AuthenticAMD", family: $family, models: &$models },
            pmus: &["cpu"],
            groups: $groups,
            formulas: Formulas::Misses,
            note: Some(
                "AMD has no event for the cycles of page walks: misses only, and no bound on the gain",
            ),
        }
    };
}

pub(super) const MODELS: &[Model] = &[
    zen!("Zen 1", "Linux pmu-events, amdzen1", 0x17, [(0x00..=0x2f, ANY)], ZEN),
    zen!("Zen 2", "Linux pmu-events, amdzen2", 0x17, [(0x30..=0xff, ANY)], ZEN),
    zen!("Zen 3", "Linux pmu-events, amdzen3", 0x19, [(0x00..=0x0f, ANY), (0x20..=0x5f, ANY)], ZEN3),
    zen!("Zen 4", "Linux pmu-events, amdzen4", 0x19, [(0x10..=0x1f, ANY), (0x60..=0xaf, ANY)], ZEN4),
    zen!(
        "Zen 5",
        "Linux pmu-events, amdzen5",
        0x1a,
        [(0x00..=0x2f, ANY), (0x40..=0x4f, ANY), (0x60..=0x7f, ANY)],
        ZEN4
    ),
];
