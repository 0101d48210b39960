// SPDX-License-Identifier: Apache-2.0
//! Compares running processes with themselves. They are lifted and restored in turn, and each period is compared with
//! the next one. This module reads the processes. Its caller lifts and restores them.

pub mod by_part;
mod command;
mod cpu_clock;
mod metric;
mod observed;
mod reading;
mod waited_for;
mod waiting;
mod work;

pub use command::Command;
pub use cpu_clock::CpuClock;
pub use metric::Metric;
pub use observed::{Observed, observe};
pub use reading::{NoWork, OfProcess, Reading, Source, run};
pub use waited_for::WaitedFor;
pub use waiting::{Threads, never_waited};
pub use work::{Steady, WINDOWS, Window, Work, WorkCounter, choose};

use crate::run::Run;
use serde::Serialize;

/// Whether code and read-only data of a process are copies on huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// They are the pages of their files.
    Bare,
    /// Some of them are copies.
    Lifted,
    /// Some of them are the same copies, mapped by small pages.
    Small,
}

impl State {
    /// Returns the name of its side.
    pub fn name(self) -> &'static str {
        match self {
            State::Bare => "bare",
            State::Lifted => "lifted",
            State::Small => "small",
        }
    }
}

/// What lifting and restoring cost.
#[derive(Clone, Default, PartialEq, Debug, Serialize)]
pub struct Switching {
    /// The first lift of each process, which also makes entries of the store, in milliseconds.
    pub first_lift_ms: f64,
    /// Each further lift, or change to huge pages of the same copies.
    pub lift_ms: Vec<f64>,
    /// Each restoring, or change to small pages.
    pub restore_ms: Vec<f64>,
    /// How often a thread of the process was borrowed.
    pub borrowed: u64,
    /// The longest time for which one was stopped, in microseconds.
    pub longest_stop_us: u64,
}

/// The processes that are compared with themselves.
#[derive(Clone, Copy, Default, PartialEq, Debug, Serialize)]
pub struct Processes {
    /// How many were measured, also those that came later.
    pub measured: u64,
    /// How many of them were lifted. The others count, but nothing of them can be lifted.
    pub lifted: u64,
    /// How many of the lifted ones were lifted when they were found.
    pub found_lifted: u64,
    /// How many came after the first lift.
    pub joined: u64,
    /// How many ended before the experiment was over.
    pub ended: u64,
    /// CPU time of processes that began or ended within a period, in seconds, which is in no period.
    pub not_counted_s: f64,
}

/// How the experiment was made.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Live {
    /// The process; of several the first.
    pub pid: u32,
    /// Its name and id, or what the processes have in common, for people.
    pub name: String,
    /// How `hugelift attach` and `hugelift restore` are told which processes they are.
    pub chosen_by: String,
    /// How many there were.
    pub processes: Processes,
    /// What the verdict is on.
    pub metric: Metric,
    /// Seconds of a period.
    pub period_s: f64,
    /// Seconds after a switch that are in no period.
    pub settle_s: f64,
    /// The seed of the orders.
    pub seed: u64,
    /// Both sides have the same copies, and differ in the page size alone.
    pub same_copy: bool,
    /// The memory that the program writes was switched too.
    pub memory: bool,
    /// Bytes of the copies that stayed as they were on both sides.
    pub left_out_bytes: u64,
    /// Why they stayed, of one of them.
    pub left_out_why: Option<String>,
    /// What the first lift left alone, and why: a line each. It is the same on both sides.
    pub not_lifted: Vec<String>,
    /// How it was found; of several, whether any was lifted.
    pub found: State,
    /// How it was left; none if it has ended. Of several, whether any is lifted.
    pub left: Option<State>,
    /// Whether each process was left as it was found.
    pub left_as_found: bool,
    /// What the experiment cost.
    pub switching: Switching,
}

/// Returns whether each lifted period had more on huge pages than every bare one: text and read-only data, and with `memory` also
/// what the program writes.
pub fn was_switched(bare: &[Run], lifted: &[Run], memory: bool) -> bool {
    let bytes = |run: &Run| Some(if memory { run.memory?.huge() } else { run.memory?.lifted() });
    let huge = |runs: &[Run]| -> Option<Vec<u64>> { runs.iter().map(bytes).collect() };
    let (Some(bare), Some(lifted)) = (huge(bare), huge(lifted)) else { return false };
    match (bare.iter().max(), lifted.iter().min()) {
        (Some(most), Some(least)) => least > most,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
