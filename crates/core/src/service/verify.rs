// SPDX-License-Identifier: Apache-2.0
//! Which programs are lifted because an experiment has shown a gain, for rules with `verify = true`.
//!
//! ```text
//!   unknown ---- its turn ---> in an experiment ----> pays         its processes are lifted
//!      ^                            |   |'----------> pays not     they stay as they are
//!      |                            |   '-----------> harms        so here
//!      |                            '---------------> unmeasured   no result: tried again soon
//!      '------------- the time is over (until) ----------'
//! ```
//!
//! There is one experiment at a time, and a pause after each. All times are given, in seconds since 1970: a result is
//! remembered beyond the service.

mod settings;
#[cfg(test)]
mod tests;

pub use settings::Settings;

use std::collections::BTreeMap;

/// For so long an experiment without a result is not made again: a day, in seconds.
const AFTER_FAILURE: u64 = 24 * 3600;
/// The most programs of which a result is remembered. Beyond it the ones that end first are forgotten.
const MOST: usize = 10_000;

/// No service has ended an experiment before this time, the start of 2026: an earlier clock has not been set yet, as where a
/// machine has no clock of its own.
const FIRST: u64 = 1_767_225_600;

/// A program in a unit. What is found out about it holds for all its processes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Program {
    /// The build-id of its executable, or what stands for one.
    pub build_id: String,
    /// Its unit of the system's manager, if it runs in one.
    pub unit: Option<String>,
}

/// What follows from an experiment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Verdict {
    /// The whole interval of the ratio lifted / bare is below 1.
    Pays,
    /// The interval contains 1, or there is nothing to lift.
    PaysNot,
    /// The whole interval is above 1.
    Harms,
    /// The experiment gave no result.
    Unmeasured,
}

impl Verdict {
    /// All of them.
    pub const ALL: [Verdict; 4] = [Verdict::Pays, Verdict::PaysNot, Verdict::Harms, Verdict::Unmeasured];

    /// Returns the word that stands for it in the ledger and in JSON.
    pub fn key(self) -> &'static str {
        match self {
            Verdict::Pays => "pays",
            Verdict::PaysNot => "pays-not",
            Verdict::Harms => "harms",
            Verdict::Unmeasured => "unmeasured",
        }
    }

    /// Returns the verdict of a word.
    pub fn of_key(key: &str) -> Option<Verdict> {
        Verdict::ALL.into_iter().find(|verdict| verdict.key() == key)
    }

    /// Returns the verdict on a ratio lifted / bare by the ends of its interval.
    pub fn of_interval(low: f64, high: f64) -> Verdict {
        match (low, high) {
            _ if !(low.is_finite() && high.is_finite() && 0.0 < low && low <= high) => Verdict::Unmeasured,
            (_, ..1.0) => Verdict::Pays,
            (low, _) if low > 1.0 => Verdict::Harms,
            _ => Verdict::PaysNot,
        }
    }
}

/// What is done with a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// It is lifted.
    Lift,
    /// It waits for an experiment.
    Wait,
    /// It stays as it is.
    Leave,
}

/// The results that hold, and the experiment that runs.
#[derive(Clone, Debug)]
pub struct Verifier {
    settings: Settings,
    /// Verdicts, and until when they hold.
    known: BTreeMap<Program, (Verdict, u64)>,
    running: Option<Program>,
    /// No experiment begins before.
    next: u64,
    /// Results were remembered while the clock was not set yet.
    is_clock_new: bool,
}

impl Verifier {
    /// Returns one that knows nothing.
    pub fn new(settings: Settings) -> Verifier {
        Verifier { settings, known: BTreeMap::new(), running: None, next: 0, is_clock_new: false }
    }

    /// Changes the settings. Results hold as long as they were to hold.
    pub fn obey(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// Takes a result of an earlier service, which has ended its experiment `at`. A time that lies further in the future than
    /// the settings allow is cut: the clock was wrong, or `again` was longer. A clock that has not been set yet says nothing of that:
    /// [`Verifier::check_clock`] cuts it later.
    pub fn remember(&mut self, program: Program, verdict: Verdict, at: u64, until: u64, now: u64) {
        self.is_clock_new |= now < FIRST;
        let until =
            if now < FIRST { until } else { until.min(now.saturating_add(holds(self.settings, verdict))) };
        self.next = self.next.max(at.min(now).saturating_add(self.settings.pause));
        self.learn(program, verdict, until);
    }

    /// Cuts what was remembered before the clock was set, once it is.
    pub fn check_clock(&mut self, now: u64) {
        if now < FIRST || !std::mem::take(&mut self.is_clock_new) {
            return;
        }
        let settings = self.settings;
        for (verdict, until) in self.known.values_mut() {
            *until = (*until).min(now.saturating_add(holds(settings, *verdict)));
        }
    }

    /// Returns what is done with the processes of a program.
    pub fn advise(&self, program: &Program, now: u64) -> Advice {
        match self.known.get(program) {
            Some((Verdict::Pays, until)) if now < *until => Advice::Lift,
            Some((_, until)) if now < *until => Advice::Leave,
            _ => Advice::Wait,
        }
    }

    /// Returns whether an experiment may begin.
    pub fn may_begin(&self, now: u64) -> bool {
        // A time further away than a pause was taken from a clock that was wrong.
        let is_due = now >= self.next || self.next > now.saturating_add(self.settings.pause);
        self.running.is_none() && is_due
    }

    /// Begins an experiment. Returns whether it may.
    pub fn begin(&mut self, program: &Program, now: u64) -> bool {
        let may = self.may_begin(now) && self.advise(program, now) == Advice::Wait;
        if may {
            self.running = Some(program.clone());
        }
        may
    }

    /// Ends the experiment with this verdict. Returns of what it was, and until when the verdict holds.
    pub fn end(&mut self, verdict: Verdict, now: u64) -> Option<(Program, u64)> {
        let program = self.running.take()?;
        let until = now.saturating_add(holds(self.settings, verdict));
        self.next = now.saturating_add(self.settings.pause);
        // No result takes no gain away that was measured before.
        let before = self.known.get(&program).map(|(before, _)| *before);
        let verdict = match (verdict, before) {
            (Verdict::Unmeasured, Some(Verdict::Pays)) => Verdict::Pays,
            _ => verdict,
        };
        self.learn(program.clone(), verdict, until);
        Some((program, until))
    }

    /// Gives up the experiment, of which nothing is known then.
    pub fn give_up(&mut self, now: u64) {
        if self.running.take().is_some() {
            self.next = now.saturating_add(self.settings.pause);
        }
    }

    /// Returns the programs with a verdict that holds, by the verdict.
    pub fn count(&self, verdict: Verdict, now: u64) -> u64 {
        self.known.values().filter(|(is, until)| *is == verdict && now < *until).count() as u64
    }

    fn learn(&mut self, program: Program, verdict: Verdict, until: u64) {
        self.known.insert(program, (verdict, until));
        while self.known.len() > MOST {
            let first =
                self.known.iter().min_by_key(|(_, (_, until))| *until).map(|(program, _)| program.clone());
            first.into_iter().for_each(|program| _ = self.known.remove(&program));
        }
    }
}

/// Returns how long a verdict holds, in seconds.
fn holds(settings: Settings, verdict: Verdict) -> u64 {
    match verdict {
        Verdict::Unmeasured => settings.again.min(AFTER_FAILURE),
        _ => settings.again,
    }
}
