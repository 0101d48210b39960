// SPDX-License-Identifier: Apache-2.0
//! Gives back copies that are no longer in use, and the zeros on huge pages, while memory is short.
//!
//! What this takes is put on the account of the process, as a lift is. But it does not wait until the account affords it:
//! other programs wait for memory meanwhile. It happens once in a rest of a process at most.

use super::LiveLift;
use super::apart::{Attempt, Done};
use super::event::Event;
use super::zeros::TURN;
use crate::attach::{Chosen, GivenBack, give_back, give_back_unused};
use hugelift_core::addr::{Addr, Range};
use hugelift_core::pressure::Pressure;
use hugelift_linux::machine::split::frees_zeros;
use hugelift_linux::proc::clock::own_cpu_time;
use hugelift_linux::proc::procfs::is_whole;
use hugelift_linux::proc::turn::turn_of_change;
use std::time::Duration;

impl LiveLift {
    /// Gives back what is cold of all processes, until `stops` says so.
    pub(super) fn give_back(&mut self, stops: &dyn Fn() -> bool) {
        let cold = self.wanted.hot.as_ref().map(|hot| hot.cold()).unwrap_or_default();
        for (pid, ranges, why) in cold {
            if stops() || !self.is_heard {
                return;
            }
            let Some(start) = self.processes.start_of(pid) else { continue };
            // It is compared: that comes first.
            let Some(_turn) = turn_of_change(pid) else { continue };
            self.give_back_of(pid, start, &ranges, &why);
        }
    }

    fn give_back_of(&mut self, pid: u32, start: u64, cold: &[Range], why: &str) {
        let before = own_cpu_time();
        let done = self.work_on(pid, |live| live.try_give_back(pid, start, cold, why));
        let spent = own_cpu_time().saturating_sub(before) + done.cpu;
        self.lifting += spent;
        self.processes.spend(pid, spent);
        self.is_heard &= done.is_heard;
        tracing::debug!(pid, ?done, ?spent, "gave back what is cold");
        // A process that could not be changed keeps its copies until its next rest is over.
        let given = match done.result {
            Ok(attempt) => attempt.given,
            Err(why) => {
                if is_whole((pid, start)) {
                    let line = format!("process {pid}: copies that are no longer in use stay: {why}");
                    self.say(Event::Detail(&line));
                }
                Vec::new()
            }
        };
        self.processes.given_back(pid, given.iter().map(|range| range.len()).sum());
        if let Some(hot) = &mut self.wanted.hot {
            hot.given_back(pid, &given);
        }
    }

    /// Gives back copies of a process, and says what was done.
    fn try_give_back(&mut self, pid: u32, start: u64, cold: &[Range], why: &str) -> Done {
        let chosen = Chosen { pid, start: Some(start) };
        let result = give_back(chosen, self.wanted.seccomp, cold, why).map(|GivenBack { change, ranges }| {
            if let Some(change) = &change {
                self.say(Event::GivenBack { pid, change });
            }
            Attempt { given: ranges, ..Attempt::default() }
        });
        Done { result, cpu: Duration::ZERO, is_heard: self.is_heard }
    }

    /// Gives back the zeros of one process for which memory is short: polls, lifts and samples go on between the turns.
    pub(super) fn give_back_zeros(&mut self) {
        let Some(anonymous) = self.wanted.anonymous.as_ref().filter(|anonymous| anonymous.has_private())
        else {
            return;
        };
        let before = own_cpu_time();
        let due = self.zeros.due(&anonymous.pids());
        self.polling += own_cpu_time().saturating_sub(before);
        let Some((pid, pressure, from)) = due else { return };
        let Some(start) = self.processes.start_of(pid) else { return };
        let Some(_turn) = turn_of_change(pid) else { return };
        // Children know it then.
        let _ = frees_zeros();
        let before = own_cpu_time();
        let chosen = Chosen { pid, start: Some(start) };
        let done = self.work_on(pid, |live| live.try_give_back_zeros(chosen, pressure, from));
        let spent = own_cpu_time().saturating_sub(before) + done.cpu;
        self.lifting += spent;
        self.processes.spend(pid, spent);
        self.is_heard &= done.is_heard;
        tracing::debug!(pid, ?done, ?spent, "gave zeros back");
        let Attempt { copied: freed, next, .. } = done.result.unwrap_or_else(|why| {
            if is_whole((pid, start)) {
                self.say(Event::Detail(&format!("process {pid}: zeros on its huge pages stay: {why}")));
            }
            Attempt::default()
        });
        self.zeros.had(pid, start, freed, spent, next);
    }

    /// Gives back the zeros of a process, and says what was done. The attempt has the bytes that were freed.
    fn try_give_back_zeros(&mut self, chosen: Chosen, pressure: Pressure, from: Addr) -> Done {
        let pid = chosen.pid;
        let result = give_back_unused(chosen, self.wanted.seccomp, Some((TURN, from))).map(|mut change| {
            let freed = change.unused.as_ref().map_or(0, |given| given.freed_bytes);
            if freed > 0 {
                if let Some(line) = change.lines.first_mut() {
                    line.push_str(&format!("; {pressure}"));
                }
                self.say(Event::GivenBack { pid, change: &change });
            }
            let next = change.unused.as_ref().and_then(|given| given.next);
            Attempt { copied: freed, next, ..Attempt::default() }
        });
        Done { result, cpu: Duration::ZERO, is_heard: self.is_heard }
    }
}
