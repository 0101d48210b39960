// SPDX-License-Identifier: Apache-2.0
//! Counts from a file instead of this machine: published ones, or ones written to test the
//! formulas.

use super::count::{Count, Sample};
use super::cpu::Cpu;
use super::metric::{Metric, Unit};
use super::report::{Counter, StatReport};
use super::tables::{Event, Model, Role, model_of};
use serde::Deserialize;
use std::collections::BTreeMap;

/// A file of counts.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Given {
    /// The source of the counts; shown with every result.
    pub note: String,
    /// The CPU that counted them, or that the formulas are to be tried for.
    pub cpu: Cpu,
    /// By the maker's event name: a number, or a number with the times of multiplexing. It counts for
    /// each group that has the event.
    pub counters: BTreeMap<String, Value>,
}

/// The count of one event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(untagged, expecting = "a count is a number, or {\"value\", \"enabled_ns\", \"running_ns\"}")]
pub enum Value {
    /// Counted all the time.
    Whole(u64),
    /// Counted some of the time.
    Part(Count),
}

/// Why counts from a file have no result.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GivenError {
    /// No event table.
    #[error("there is no event table for {0}")]
    UnknownCpu(Cpu),
    /// A name that the CPU's table does not have.
    #[error("{model} has no event '{name}'; it has {known}")]
    UnknownEvent {
        /// The CPU.
        model: &'static str,
        /// The name as given.
        name: String,
        /// The names that the table has.
        known: String,
    },
}

/// Events that publications give and that no formula of the tables needs, each with its kind, for
/// [`Given::literature`]: those of Intel, then perf(1)'s own, which every CPU has.
const LITERATURE: [(&str, Literature); 15] = [
    ("ITLB_MISSES.MISS_CAUSES_A_WALK", Literature::FetchWalks),
    ("DTLB_LOAD_MISSES.MISS_CAUSES_A_WALK", Literature::DataWalks),
    ("DTLB_STORE_MISSES.MISS_CAUSES_A_WALK", Literature::DataWalks),
    ("PAGE_WALKER_LOADS.ITLB_L1", Literature::WalkerLoads),
    ("PAGE_WALKER_LOADS.ITLB_L2", Literature::WalkerLoads),
    ("PAGE_WALKER_LOADS.ITLB_L3", Literature::WalkerLoads),
    ("PAGE_WALKER_LOADS.ITLB_MEMORY", Literature::WalkerLoadsFromMemory),
    ("PAGE_WALKER_LOADS.DTLB_L1", Literature::WalkerLoads),
    ("PAGE_WALKER_LOADS.DTLB_L2", Literature::WalkerLoads),
    ("PAGE_WALKER_LOADS.DTLB_L3", Literature::WalkerLoads),
    ("PAGE_WALKER_LOADS.DTLB_MEMORY", Literature::WalkerLoadsFromMemory),
    ("iTLB-loads", Literature::FetchLookups),
    ("iTLB-load-misses", Literature::FetchMisses),
    ("dTLB-loads", Literature::DataLookups),
    ("dTLB-load-misses", Literature::DataMisses),
];

/// The first of the events that are perf(1)'s.
const OF_PERF: usize = 11;

/// Other names of Intel's events in the tables. The first two are the fixed counters. The others are the names that the same
/// codes had up to Broadwell: the event counts walks in progress, and publications go on to use its old name.
const ALIASES: [(&str, &str); 5] = [
    ("CPU_CLK_UNHALTED.THREAD", "CPU_CLK_UNHALTED.THREAD_P"),
    ("INST_RETIRED.ANY", "INST_RETIRED.ANY_P"),
    ("ITLB_MISSES.WALK_DURATION", "ITLB_MISSES.WALK_PENDING"),
    ("DTLB_LOAD_MISSES.WALK_DURATION", "DTLB_LOAD_MISSES.WALK_PENDING"),
    ("DTLB_STORE_MISSES.WALK_DURATION", "DTLB_STORE_MISSES.WALK_PENDING"),
];

/// The names of perf(1) for two events of each table.
const GENERIC: [(&str, Role); 2] = [("cycles", Role::Cycles), ("instructions", Role::Instructions)];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Literature {
    /// Misses of the iTLB that started a walk.
    FetchWalks,
    /// Misses of the dTLB that started a walk, by loads or by stores.
    DataWalks,
    /// Page table entries that a walker has read from a cache.
    WalkerLoads,
    /// Page table entries that a walker has read from memory.
    WalkerLoadsFromMemory,
    /// What perf(1) counts as lookups of the iTLB, and as misses: on Intel, fetches that the second level had, and that it had not.
    FetchLookups,
    FetchMisses,
    /// The same of the dTLB, by loads.
    DataLookups,
    DataMisses,
}

impl Value {
    fn count(self) -> Count {
        match self {
            Value::Whole(value) => Count::whole(value),
            Value::Part(count) => count,
        }
    }
}

impl Given {
    fn of_event(&self, name: &str) -> Option<Count> {
        let alias = ALIASES.iter().find(|(_, table)| *table == name).map(|(alias, _)| *alias);
        let value = self.counters.get(name).or_else(|| self.counters.get(alias?));
        value.map(|value| value.count())
    }

    /// Returns the count of an event of a table, by the maker's name or by perf's.
    fn of_table(&self, event: &Event) -> Option<Count> {
        let generic = || GENERIC.iter().find(|(_, role)| *role == event.role);
        self.of_event(event.name).or_else(|| Some(self.counters.get(generic()?.0)?.count()))
    }

    /// Adds the events of publications to a report, and what follows from them.
    pub fn literature(&self, report: &mut StatReport) {
        let given: Vec<(&'static str, Literature, f64)> = LITERATURE
            .iter()
            .filter_map(|(name, kind)| Some((*name, *kind, self.of_event(name)?.scaled()?)))
            .collect();
        for (name, ..) in &given {
            let Some(count) = self.of_event(name) else { continue };
            report.counters.push(Counter {
                event: name,
                group: 0,
                value: Some(count.value),
                scaled: count.scaled(),
                running_share: count.running_share(),
            });
        }
        let sum = |kinds: &[Literature]| {
            let of = given.iter().filter(|(_, kind, _)| kinds.contains(kind)).map(|(.., count)| *count);
            let of: Vec<f64> = of.collect();
            (!of.is_empty()).then(|| of.iter().sum::<f64>())
        };
        let loads = sum(&[Literature::WalkerLoads, Literature::WalkerLoadsFromMemory]);
        if let Some(thousands) = self
            .of_event("INST_RETIRED.ANY_P")
            .or_else(|| Some(self.counters.get("instructions")?.count()))
            .and_then(Count::scaled)
            .filter(|n| *n > 0.0)
            .map(|n| n / 1000.0)
        {
            let mut rate = |key, label, count: Option<f64>, formula| {
                let unit = Unit::PerThousandInstructions;
                let metric = |count| Metric { key, label, value: count / thousands, unit, formula };
                report.metrics.extend(count.map(metric));
            };
            let formula = "misses that cause a walk / instructions";
            rate("itlb_walk_starts", "iTLB walks started", sum(&[Literature::FetchWalks]), formula);
            rate("dtlb_walk_starts", "dTLB walks started", sum(&[Literature::DataWalks]), formula);
            rate("page_walker_loads", "loads of page walkers", loads, "page walker loads / instructions");
        }
        let mut miss_rate = |key, label, misses, lookups, formula| {
            let both = sum(&[misses]).zip(sum(&[lookups]).filter(|n| *n > 0.0));
            let metric = |(misses, lookups)| Metric {
                key,
                label,
                value: misses / lookups,
                unit: Unit::ShareOfLookups,
                formula,
            };
            report.metrics.extend(both.map(metric));
        };
        let (fetch, data) = ("iTLB-load-misses / iTLB-loads", "dTLB-load-misses / dTLB-loads");
        miss_rate("itlb_miss_rate", "iTLB misses", Literature::FetchMisses, Literature::FetchLookups, fetch);
        miss_rate("dtlb_miss_rate", "dTLB misses", Literature::DataMisses, Literature::DataLookups, data);
        let memory = sum(&[Literature::WalkerLoadsFromMemory]).zip(loads.filter(|n| *n > 0.0));
        report.metrics.extend(memory.map(|(memory, all)| Metric {
            key: "page_walker_memory_share",
            label: "of these from memory",
            value: memory / all,
            unit: Unit::ShareOfLookups,
            formula: "page walker loads from memory / page walker loads that are given",
        }));
    }

    /// Returns the counts in the order of the CPU's table.
    ///
    /// # Errors
    /// The CPU has no table, or its table does not have an event.
    pub fn sample(&self) -> Result<Sample<'static>, GivenError> {
        let model = model_of(&self.cpu).ok_or_else(|| GivenError::UnknownCpu(self.cpu.clone()))?;
        let known = known_names(model, is_intel(&self.cpu));
        if let Some(name) = self.counters.keys().find(|name| !known.contains(&name.as_str())) {
            let name = name.chars().filter(|c| !c.is_control()).take(60).collect();
            return Err(GivenError::UnknownEvent { model: model.name, name, known: known.join(", ") });
        }
        let count = |event: &Event| self.of_table(event);
        let groups = model.groups.iter().map(|group| group.iter().map(count).collect()).collect();
        Ok(Sample { model, groups })
    }
}

/// Returns the names that a file may have, in the order of the alphabet.
fn known_names(model: &'static Model, is_intel: bool) -> Vec<&'static str> {
    let tables: Vec<&str> = events(model).map(|event| event.name).collect();
    let aliases =
        ALIASES.iter().filter(|(_, table)| is_intel && tables.contains(table)).map(|(alias, _)| *alias);
    let literature = LITERATURE.iter().skip(if is_intel { 0 } else { OF_PERF }).map(|(name, _)| *name);
    let generic = GENERIC.iter().map(|(name, _)| *name);
    let mut known: Vec<&str> = aliases.chain(literature).chain(generic).collect();
    known.extend(tables);
    known.sort_unstable();
    known.dedup();
    known
}

fn is_intel(cpu: &Cpu) -> bool {
    matches!(cpu, Cpu::X86 { vendor, .. } if vendor == "GenuineIntel")
}

fn events(model: &'static Model) -> impl Iterator<Item = &'static Event> {
    model.groups.iter().copied().flatten()
}
