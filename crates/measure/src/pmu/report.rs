// SPDX-License-Identifier: Apache-2.0
//! The result of `hugelift stat`, as data.

use super::count::Sample;
use super::cpu::Cpu;
use super::metric::{Metric, metrics};
use serde::Serialize;

/// Version of the JSON schema.
pub const VERSION: u32 = 1;

/// The source of the counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// Counted by this machine, now.
    Measured,
    /// Read from a file.
    Given,
}

/// One counter of one group.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Counter {
    /// The maker's name.
    pub event: &'static str,
    /// The group; events of one group were on the PMU together.
    pub group: usize,
    /// As counted; `None` if the PMU did not take the event.
    pub value: Option<u64>,
    /// Estimated for the whole time; `None` if it was never on the PMU.
    pub scaled: Option<f64>,
    /// Share of the time that it was on the PMU.
    pub running_share: f64,
}

/// What a count of the kernel covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// The program alone.
    Program,
    /// Everything on the machine.
    Machine,
}

/// A count that the kernel keeps itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct KernelCount {
    /// Stable name for scripts.
    pub key: &'static str,
    /// Its name in the text.
    pub label: &'static str,
    /// The count.
    pub value: u64,
    /// What it covers.
    pub scope: Scope,
}

/// The result of `hugelift stat`.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StatReport {
    /// [`VERSION`]
    pub version: u32,
    /// The source of the counts.
    pub origin: Origin,
    /// What was counted, in words; for counts from a file, their source.
    pub subject: String,
    /// For how long, in seconds.
    pub seconds: Option<f64>,
    /// The CPU.
    pub cpu: Option<Cpu>,
    /// Its name.
    pub model: Option<&'static str>,
    /// The published table that its event codes were checked against.
    pub source: Option<&'static str>,
    /// The kernel's name for its PMU.
    pub pmu: Option<String>,
    /// Why there are no hardware counts.
    pub no_pmu: Option<String>,
    /// Whether only user space was counted.
    pub user_only: bool,
    /// Each counter.
    pub counters: Vec<Counter>,
    /// What follows from them.
    pub metrics: Vec<Metric>,
    /// The most time that huge pages can save, as a share of cycles.
    pub bound: Option<f64>,
    /// The counts of the kernel.
    pub kernel: Vec<KernelCount>,
    /// Remarks on the counts.
    pub notes: Vec<String>,
}

impl StatReport {
    /// Makes a report without counts.
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

    /// Adds the counters and what follows from them.
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
                "some events were never on the PMU: the program ran too short, or other users hold counters \
                 (another perf; the NMI watchdog: echo 0 > /proc/sys/kernel/nmi_watchdog)"
                    .into(),
            );
        }
        self.notes.extend(model.note.map(String::from));
        (self.metrics, self.bound) = metrics(sample);
    }
}
