// SPDX-License-Identifier: Apache-2.0
//! Gives back the zeros on huge pages while memory is short, of the processes whose private memory the watcher collapses.
//!
//! What this takes is put on the account of the process. It does not wait until the account affords it: other programs wait for
//! memory meanwhile.

use super::apart::{Attempt, Done};
use super::event::Event;
use super::pressure::Pressures;
use super::{LiveLift, other_user};
use crate::attach::{Chosen, give_back_unused};
use hugelift_core::pressure::Pressure;
use hugelift_linux::proc::clock::own_cpu_time;
use hugelift_linux::proc::procfs::Process;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A process whose zeros were given back has its next turn after this time.
const AGAIN: Duration = Duration::from_secs(10);
/// After each turn that frees nothing it is left alone twice as long, up to this.
const AGAIN_AT_MOST: Duration = Duration::from_secs(600);
/// The CPU time of a turn. The rest follows in the next one.
const TURN: Duration = Duration::from_secs(1);

/// When the zeros of the processes are given back.
#[derive(Debug, Default)]
pub(super) struct Zeros {
    pressures: Pressures,
    turns: BTreeMap<u32, Turns>,
}

#[derive(Debug)]
struct Turns {
    /// When the process was started.
    start: u64,
    next: Instant,
    pause: Duration,
}

impl Zeros {
    /// Reads how short memory is for these processes. Returns those whose turn it is, and how short memory is.
    fn due(&mut self, pids: &BTreeSet<u32>) -> Vec<(u32, Pressure)> {
        self.pressures.read(pids);
        self.turns.retain(|pid, _| pids.contains(pid));
        let now = Instant::now();
        let is_due = |pid: &u32| self.turns.get(pid).is_none_or(|turns| turns.next <= now);
        pids.iter()
            .filter(|pid| is_due(pid))
            .filter_map(|pid| Some((*pid, self.pressures.of(*pid)?)))
            .collect()
    }

    /// Returns whether memory is short for a process: nothing of it is collapsed then.
    pub(super) fn is_short(&self, pid: u32) -> bool {
        self.pressures.of(pid).is_some()
    }

    /// Takes account of a turn that has freed so many bytes.
    fn had(&mut self, pid: u32, start: u64, freed: u64) {
        let (next, pause) = (Instant::now(), AGAIN / 2);
        let turns = self.turns.entry(pid).or_insert(Turns { start, next, pause });
        if turns.start != start {
            *turns = Turns { start, next, pause };
        }
        turns.pause = if freed > 0 { AGAIN } else { (turns.pause * 2).min(AGAIN_AT_MOST) };
        turns.next = Instant::now() + turns.pause;
    }
}

impl LiveLift {
    /// Gives back the zeros of the processes for which memory is short, until `stops` says so.
    pub(super) fn give_back_zeros(&mut self, stops: &dyn Fn() -> bool) {
        let Some(anonymous) = self.wanted.anonymous.as_ref().filter(|anonymous| anonymous.has_private())
        else {
            return;
        };
        for (pid, pressure) in self.zeros.due(&anonymous.pids()) {
            if stops() || !self.is_heard {
                return;
            }
            let Some(start) = self.processes.start_of(pid) else { continue };
            let before = own_cpu_time();
            let done = match other_user(pid) {
                None => self.try_give_back_zeros(pid, start, pressure),
                Some(user) => {
                    let mut apart = std::mem::take(&mut self.apart);
                    let done = apart.run(user, || {
                        let done = self.try_give_back_zeros(pid, start, pressure);
                        Done { cpu: own_cpu_time(), ..done }
                    });
                    self.apart = apart;
                    done
                }
            };
            let spent = own_cpu_time().saturating_sub(before) + done.cpu;
            self.lifting += spent;
            self.processes.spend(pid, spent);
            self.is_heard &= done.is_heard;
            tracing::debug!(pid, ?done, ?spent, "gave zeros back");
            let freed = done.result.unwrap_or_else(|why| {
                let is_there = Process::new(pid).stat().is_ok_and(|stat| !stat.has_ended());
                if is_there {
                    self.say(Event::Detail(&format!("process {pid}: zeros on its huge pages stay: {why}")));
                }
                Attempt::default()
            });
            self.zeros.had(pid, start, freed.copied);
        }
    }

    /// Gives back the zeros of a process, and says what was done. The attempt has the bytes that were freed.
    fn try_give_back_zeros(&mut self, pid: u32, start: u64, pressure: Pressure) -> Done {
        let chosen = Chosen { pid, start: Some(start) };
        let result = give_back_unused(chosen, self.wanted.seccomp, Some(TURN)).map(|mut change| {
            let freed = change.unused.as_ref().map_or(0, |given| given.freed_bytes);
            if freed > 0 {
                if let Some(line) = change.lines.first_mut() {
                    line.push_str(&format!("; {pressure}"));
                }
                self.say(Event::GivenBack { pid, change: &change });
            }
            Attempt { copied: freed, ..Attempt::default() }
        });
        Done { result, cpu: Duration::ZERO, is_heard: self.is_heard }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_32_4_a_process_that_wastes_nothing_is_left_alone_longer_each_time() {
        let mut zeros = Zeros::default();
        for (freed, pause) in [(0, 10), (0, 20), (0, 40), (1, 10), (0, 20)] {
            zeros.had(7, 1, freed);
            assert_eq!(zeros.turns[&7].pause, Duration::from_secs(pause));
        }
        // Another process has its id.
        zeros.had(7, 2, 0);
        assert_eq!(zeros.turns[&7].pause, AGAIN);
        assert_eq!((zeros.due(&BTreeSet::new()), zeros.turns.len()), (Vec::new(), 0));
    }
}
