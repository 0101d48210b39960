// SPDX-License-Identifier: Apache-2.0
//! A CPU model: its CPUs, its events and what they count.

use crate::pmu::cpu::Cpu;
use std::ops::RangeInclusive;

/// What an event counts, independent of the maker's name for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// Core cycles while a thread runs.
    Cycles,
    /// Instructions retired.
    Instructions,
    /// Cycles with at least one page walk for an instruction fetch.
    FetchWalkCycles,
    /// Cycles with at least one page walk for a load.
    LoadWalkCycles,
    /// Cycles with at least one page walk for a store.
    StoreWalkCycles,
    /// Page walks for instruction fetches.
    FetchWalks,
    /// Page walks for loads, or for all data where the CPU does not distinguish them.
    LoadWalks,
    /// Page walks for stores.
    StoreWalks,
    /// Walks in progress for instruction fetches, added up over the cycles.
    FetchWalksPending,
    /// Walks in progress for loads, or for all data, added up over the cycles.
    LoadWalksPending,
    /// Walks in progress for stores, added up over the cycles.
    StoreWalksPending,
    /// Walks in progress of a hypervisor's page tables, added up over the cycles.
    EptWalksPending,
    /// Cycles in which a fetch waits for the instruction cache's tags: mostly for the iTLB.
    TagStalls,
    /// Fetches that missed the first-level iTLB and hit the second.
    FetchSecondLevelHits,
    /// Fetches that missed the first-level iTLB.
    FetchFirstLevelMisses,
    /// Data accesses that missed the first-level dTLB.
    DataFirstLevelMisses,
}

/// One event of one model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// What it counts.
    pub role: Role,
    /// The maker's name for it.
    pub name: &'static str,
    /// `perf_event_attr.config` of a raw event of the core's PMU.
    pub config: u64,
}

/// The CPUs of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cpus {
    /// One vendor and family; ranges of models, each with the steppings.
    X86 {
        /// The vendor string of CPUID.
        vendor: &'static str,
        /// With the extended family added.
        family: u32,
        /// Models, and steppings of them.
        models: &'static [(RangeInclusive<u32>, RangeInclusive<u32>)],
    },
    /// Part numbers of one implementer.
    Arm {
        /// The implementer in MIDR_EL1.
        implementer: u32,
        /// Part numbers.
        parts: &'static [u32],
    },
}

impl Cpus {
    pub(super) fn has(&self, cpu: &Cpu) -> bool {
        match (self, cpu) {
            (Cpus::X86 { vendor, family, models }, Cpu::X86 { vendor: v, family: f, model, stepping }) => {
                vendor == v
                    && family == f
                    && models
                        .iter()
                        .any(|(models, steppings)| models.contains(model) && steppings.contains(stepping))
            }
            (Cpus::Arm { implementer, parts }, Cpu::Arm { implementer: i, part }) => {
                implementer == i && parts.contains(part)
            }
            _ => false,
        }
    }
}

/// The formulas for which a model has the events.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Formulas {
    /// Cycles with a walk in progress.
    WalkCycles {
        /// The number of page walkers of a core and the cycles to add for each finished walk, where
        /// there is a published formula of their utilization.
        walkers: Option<(f64, f64)>,
    },
    /// Walks in progress, added up over the cycles.
    WalksInProgress,
    /// Misses and walks, without their cycles.
    Misses,
}

/// A CPU model and its events.
#[derive(Clone, PartialEq, Debug)]
pub struct Model {
    /// Its common name.
    pub name: &'static str,
    /// The published table that the codes were checked against.
    pub source: &'static str,
    /// The CPUs that it covers.
    pub cpus: Cpus,
    /// Folders of its PMU in /sys/bus/event_source/devices, of which the first that exists is used; one
    /// that ends in `_` is a prefix.
    pub pmus: &'static [&'static str],
    /// Groups of events that are counted together. Each group begins with the cycles and has no more
    /// events than fit when another user (the NMI watchdog) holds a counter.
    pub groups: &'static [&'static [Event]],
    /// What follows from them.
    pub formulas: Formulas,
    /// A remark on these counts.
    pub note: Option<&'static str>,
}
