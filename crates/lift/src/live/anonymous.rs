// SPDX-License-Identifier: Apache-2.0
//! Collapses the anonymous memory of the processes that are watched, from time to time.
//!
//! The budget is that of the whole watch, for all processes together. CPU time that was used is gone. Memory that
//! was added is free again when its process has ended. Within the budget the rule of text and rodata holds: a
//! process gets the CPU time that its account affords ([`hugelift_core::worth`]).

use super::process_set::ProcessSet;
use crate::attach::{Change, Chosen, collapse_once};
use crate::options::Seccomp;
use crate::unused;
use hugelift_core::collapse::{Budget, Collapsed, Stopped, Why};
use hugelift_core::snapshot::Part;
use hugelift_core::worth::RATIO;
use hugelift_linux::proc::procfs::is_whole;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A process has its next turn this long after its memory was collapsed.
const AGAIN: Duration = Duration::from_secs(10);
/// After each time that brings nothing it is left alone twice as long, up to this.
const AGAIN_AT_MOST: Duration = Duration::from_secs(600);
/// Less CPU time than this is not worth a walk over the memory of a process.
const LEAST: Duration = Duration::from_millis(10);
/// Where the CPU time did not suffice, a process gets twice as much the next time, up to this: then the walks are a
/// small part of it.
const ENOUGH: Duration = Duration::from_millis(80);

/// The anonymous memory of the processes that are watched.
#[derive(Debug)]
pub(super) struct Anonymous {
    parts: Vec<Part>,
    seccomp: Seccomp,
    eager: bool,
    /// What may be used in all.
    budget: Budget,
    /// CPU time that was used.
    used: Duration,
    processes: BTreeMap<u32, Turns>,
    /// It was said that the budget is used up.
    told: bool,
}

/// What was done to one process.
#[derive(Clone, Copy, Debug)]
struct Turns {
    /// When it was started.
    start: u64,
    next: Instant,
    pause: Duration,
    /// The CPU time that it must afford.
    least: Duration,
    /// Bytes that were added to its memory.
    added: u64,
    /// It was refused, and somebody was told.
    refused: bool,
}

/// What came of a turn.
#[derive(Debug)]
pub(super) enum Turn {
    /// Something is huge that was not.
    Collapsed(Box<Change>),
    /// Nothing was there to collapse.
    Nothing,
    /// It is not possible, for a reason that was not told yet.
    Refused(String),
}

impl Anonymous {
    pub(super) fn new(parts: Vec<Part>, seccomp: Seccomp, budget: Budget, eager: bool) -> Anonymous {
        let (used, processes, told) = (Duration::ZERO, BTreeMap::new(), false);
        Anonymous { parts, seccomp, eager, budget, used, processes, told }
    }

    /// Forgets processes that have ended, or have become others.
    pub(super) fn retain(&mut self, set: &ProcessSet) {
        self.processes.retain(|pid, turns| set.start_of(*pid) == Some(turns.start));
    }

    /// Returns whether memory of the processes' own is collapsed, not shared memory alone.
    pub(super) fn has_private(&self) -> bool {
        self.parts.iter().any(|part| unused::PARTS.contains(part))
    }

    /// Returns the processes that had a turn.
    pub(super) fn pids(&self) -> BTreeSet<u32> {
        self.processes.keys().copied().collect()
    }

    /// Returns the processes whose turn it is.
    pub(super) fn due(&self, set: &ProcessSet) -> BTreeSet<u32> {
        let now = Instant::now();
        let is_due = |pid: &u32| {
            let turns = self.processes.get(pid);
            turns.is_none_or(|turns| turns.next <= now)
                && self.affordable(set, *pid) >= turns.map_or(LEAST, |turns| turns.least)
        };
        set.pids().into_iter().filter(is_due).collect()
    }

    /// Returns the CPU time that the next turn of a process may take.
    fn affordable(&self, set: &ProcessSet, pid: u32) -> Duration {
        let rest = self.budget.cpu.saturating_sub(self.used);
        let accounts = set.accounts_of(pid);
        let of_accounts = accounts.map(|account| (account.used / RATIO).saturating_sub(account.spent));
        if self.eager { rest } else { of_accounts.into_iter().fold(rest, Duration::min) }
    }

    /// Returns a line once the budget is used up, the first time.
    pub(super) fn exhausted(&mut self) -> Option<String> {
        let is_used_up = self.budget.cpu.saturating_sub(self.used) < LEAST;
        if !is_used_up || self.told {
            return None;
        }
        self.told = true;
        Some(format!(
            "the CPU time for collapsing anonymous memory is used up (--cpu-budget {}): no more of it is collapsed",
            self.budget.cpu.as_secs_f64()
        ))
    }

    /// Collapses memory of a process.
    pub(super) fn turn(&mut self, set: &ProcessSet, pid: u32) -> Turn {
        let Some(start) = set.start_of(pid) else { return Turn::Nothing };
        // Lifts of other processes may have taken time since the last poll.
        if !is_whole((pid, start)) {
            return Turn::Nothing;
        }
        let added: u64 = self.processes.values().map(|turns| turns.added).sum();
        let budget = Budget {
            cpu: self.affordable(set, pid),
            added: self.budget.added.saturating_sub(added),
            spare: self.budget.spare.saturating_sub(added),
        };
        let result =
            collapse_once(Chosen { pid, start: Some(start) }, self.seccomp, &self.parts, &[], &budget);
        let (next, pause, least) = (Instant::now(), AGAIN / 2, LEAST);
        let first = Turns { start, next, pause, least, added: 0, refused: false };
        let turns = self.processes.entry(pid).or_insert(first);
        let is_unfinished = result.as_ref().is_ok_and(|(collapsed, _)| lacked_time(collapsed));
        let turn = match result {
            Ok((collapsed, change)) => {
                self.used += collapsed.cpu;
                turns.added = turns.added.saturating_add(collapsed.added);
                change.map_or(Turn::Nothing, |change| Turn::Collapsed(Box::new(change)))
            }
            Err(_) if turns.refused || !is_whole((pid, start)) => Turn::Nothing,
            Err(why) => {
                turns.refused = true;
                Turn::Refused(why)
            }
        };
        turns.set_next(is_unfinished, matches!(turn, Turn::Collapsed(_)), budget.cpu);
        turn
    }
}

impl Turns {
    /// Decides when it is the process's turn again, after a turn that was given `cpu` of CPU time.
    fn set_next(&mut self, is_unfinished: bool, has_collapsed: bool, cpu: Duration) {
        (self.pause, self.least) = match (is_unfinished, has_collapsed) {
            (true, true) => (self.pause, (cpu * 2).clamp(LEAST, ENOUGH)),
            // The walk alone took all of it.
            (true, false) => (self.pause, (cpu * 2).max(LEAST)),
            (false, true) => (AGAIN, LEAST),
            (false, false) => ((self.pause * 2).min(AGAIN_AT_MOST), LEAST),
        };
        let pause = if is_unfinished { Duration::ZERO } else { self.pause };
        self.next = Instant::now() + pause;
    }
}

/// Returns whether more CPU time would have brought more.
fn lacked_time(collapsed: &Collapsed) -> bool {
    matches!(collapsed.stopped, Some((Stopped::Cpu(_), _)))
        || collapsed.left.iter().any(|left| left.why == Why::NoTime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_follows_as_soon_as_it_is_afforded() {
        let (now, pause, least) = (Instant::now(), AGAIN / 2, LEAST);
        let mut turns = Turns { start: 1, next: now, pause, least, added: 0, refused: false };
        for (given, least) in [(0, 10), (10, 20), (20, 40), (40, 80), (80, 80), (500, 80)] {
            turns.set_next(true, true, Duration::from_millis(given));
            assert!(turns.next <= Instant::now());
            assert_eq!(turns.least, Duration::from_millis(least));
        }
        turns.set_next(true, false, Duration::from_millis(500));
        assert_eq!(turns.least, Duration::from_millis(1000));
        for (has_collapsed, pause) in [(true, 10), (false, 20), (false, 40), (true, 10)] {
            turns.set_next(false, has_collapsed, LEAST);
            assert!(turns.next > Instant::now() + Duration::from_secs(pause) / 2);
            assert_eq!((turns.pause, turns.least), (Duration::from_secs(pause), LEAST));
        }
    }
}
