// SPDX-License-Identifier: Apache-2.0
//! The result of `hugelift stat`, as data.

use super::count::Sample;
use super::cpu::Cpu;
use super::metric::{Metric, metrics};
use serde::Serialize;

/// Version of the JSON schema.
pub const VERSION: u32 = 1;

/// Where the counts are from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// Counted by this machine, now.
    Measured,
    /// Told by somebody.
    Given,
}

/// One counter of one group.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Counter {
    /// The maker's name.
    pub event: &'static str,
    /// Which group; events of one group were on the PMU together.
    pub group: usize,
    /// As counted; `None` if the PMU did not take the event.
    pub value: Option<u64>,
    /// Estimated for the whole time; `None` if it was never on the PMU.
    pub scaled: Option<f64>,
    /// Part of the time that it was on the PMU.
    pub running_share: f64,
}

/// Whom a count of the kernel is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// The program alone.
    Program,
    /// Everything on the machine.
    Machine,
}

/// Something that the kernel counts by itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct KernelCount {
    /// Stable name for scripts.
    pub key: &'static str,
    /// For people.
    pub label: &'static str,
    /// How many.
    pub value: u64,
    /// Of whom.
    pub scope: Scope,
}

/// Everything that `hugelift stat` has to tell.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StatReport {
    /// [`VERSION`]
    pub version: u32,
    /// Where the counts are from.
    pub origin: Origin,
    /// What was counted, in words; with given counts, where they are from.
    pub subject: String,
    /// For how long, in seconds.
    pub seconds: Option<f64>,
    /// The CPU.
    pub cpu: Option<Cpu>,
    /// Its name.
    pub model: Option<&'static str>,
    /// What its event codes were checked against.
    pub source: Option<&'static str>,
    /// The kernel's name for its PMU.
    pub pmu: Option<String>,
    /// Why there are no hardware counts.
    pub no_pmu: Option<String>,
    /// Only what ran in user space was counted.
    pub user_only: bool,
    /// Each counter.
    pub counters: Vec<Counter>,
    /// What follows from them.
    pub metrics: Vec<Metric>,
    /// The most that huge pages can bring, as a share of cycles.
    pub bound: Option<f64>,
    /// What the kernel counts by itself.
    pub kernel: Vec<KernelCount>,
    /// What a reader must know.
    pub notes: Vec<String>,
}

impl StatReport {
    /// A report without any counts yet.
    pub fn new(origin: Origin, subject: String) -> StatReport {
        StatReport {
            version: VERSION,
            origin,
            subject,
            seconds: None,
            cpu: None,
            model: None,
            source: None,
            pmu: None,
            no_pmu: None,
            user_only: false,
            counters: Vec::new(),
            metrics: Vec::new(),
            bound: None,
            kernel: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Puts in the counters and what follows from them.
    pub fn add(&mut self, sample: &Sample<'_>) {
        let model = sample.model;
        self.model = Some(model.name);
        self.source = Some(model.source);
        for (group, (events, counts)) in model.groups.iter().zip(&sample.groups).enumerate() {
            self.counters.extend(events.iter().zip(counts).map(|(event, count)| Counter {
                event: event.name,
                group,
                value: count.map(|c| c.value),
                scaled: count.and_then(|c| c.scaled()),
                running_share: count.map_or(0.0, |c| c.running_share()),
            }));
        }
        let never = self.counters.iter().any(|c| c.value.is_some() && c.scaled.is_none());
        if never && self.origin == Origin::Measured {
            self.notes.push(
                "some events were never on the PMU: it ran too short, or others hold counters \
                 (another perf; the NMI watchdog: echo 0 > /proc/sys/kernel/nmi_watchdog)"
                    .into(),
            );
        }
        self.notes.extend(model.note.map(String::from));
        (self.metrics, self.bound) = metrics(sample);
    }
}
