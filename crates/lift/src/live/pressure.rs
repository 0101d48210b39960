// SPDX-License-Identifier: Apache-2.0
//! How short memory is for the processes that have copies.

use hugelift_core::pressure::Pressure;
use hugelift_linux::machine::pressure::{OF_MACHINE, of_groups, of_machine};
use hugelift_linux::proc::procfs::Process;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How often pressure is read. Its shares are averages over the last ten seconds, which the kernel computes every two seconds.
const EVERY: Duration = Duration::from_secs(5);

/// How short memory is for the processes that have copies.
#[derive(Debug, Default)]
pub(super) struct Pressures {
    /// When it is read again.
    again: Option<Instant>,
    /// For whom memory is short, as it was read last.
    short: BTreeMap<u32, Pressure>,
    /// Nothing says how short memory is; `Some(true)` once that was said.
    lacks: Option<bool>,
}

impl Pressures {
    /// Reads the pressure for these processes, if it is time.
    pub(super) fn read(&mut self, pids: &BTreeSet<u32>) {
        let now = Instant::now();
        self.short.retain(|pid, _| pids.contains(pid));
        if pids.is_empty() || self.again.is_some_and(|again| now < again) {
            return;
        }
        self.again = Some(now + EVERY);
        let machine = of_machine();
        let mut is_said = machine.is_some();
        for pid in pids {
            let (short, has_groups) = read_of(*pid, machine, self.short.contains_key(pid));
            is_said |= has_groups;
            match short {
                Some(pressure) => _ = self.short.insert(*pid, pressure),
                None => _ = self.short.remove(pid),
            }
        }
        if !is_said && self.lacks.is_none() {
            self.lacks = Some(false);
        }
    }

    /// Returns how short memory is for a process; `None` if there is enough of it, or if nothing says so.
    pub(super) fn of(&self, pid: u32) -> Option<Pressure> {
        self.short.get(&pid).copied()
    }

    /// Reads whether memory is short for a process now, also for one that was not read before.
    pub(super) fn is_short_now(&self, pid: u32) -> bool {
        read_of(pid, of_machine(), self.short.contains_key(&pid)).0.is_some()
    }

    /// Returns a line the first time that nothing says how short memory is.
    pub(super) fn lacks(&mut self) -> Option<String> {
        let is_new = self.lacks == Some(false);
        self.lacks = self.lacks.map(|_| true);
        is_new.then(|| {
            format!(
                "nothing says whether memory is short ({OF_MACHINE} cannot be read), so copies that are no longer in use \
                 stay"
            )
        })
    }
}

/// Returns how short memory is for a process, and whether its control groups say so. `was` says whether it was so before.
fn read_of(pid: u32, machine: Option<Pressure>, was: bool) -> (Option<Pressure>, bool) {
    if let Some(machine) = machine.filter(|machine| machine.is_short(was)) {
        return (Some(machine), false);
    }
    let groups = of_groups(Process::new(pid));
    let has_groups = !groups.is_empty();
    (groups.into_iter().find(|group| group.is_short(was)), has_groups)
}
