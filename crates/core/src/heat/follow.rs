// SPDX-License-Identifier: Apache-2.0
//! Which code of a process that runs on is worth a copy, as its samples arrive.
//!
//! ```text
//!   samples  |..... first choice |.. copied ..|... new hot pages |.. copied ..|....... nothing new |
//!   events   | one in 100         one in 500                                                       | closed: rests
//! ```
//!
//! A window of samples begins with the first one, after each copy and after each rest. A window that brings nothing new ends,
//! and the process rests until it has used twice its CPU time. So sampling takes less and less of a process that stays as it is,
//! and one that changes is followed. The windows between two rests are counted together as well: of a page that is used seldom four
//! samples come together over time. While memory is short the copies that are no longer in use are found ([`super::cold`]).

use super::cold::{Cold, ColdCode};
use super::hot::HotCode;
use crate::addr::{Addr, PageSize, Range};
use std::collections::BTreeMap;
use std::time::Duration;

/// The first choice needs this many samples in code that could be copied.
pub const FIRST: u64 = 100;
/// Beside what is copied a huge page is hot with this many samples, in a window or since the last rest: a stray one brings no
/// copy.
const NEW: u64 = 4;
/// A window ends with this many samples, wherever they are.
const WINDOW: u64 = 400;
/// So does one without a choice so far: of a process that is mostly in other code few samples count.
const LONG_WINDOW: u64 = 1000;
/// The longest rest, in CPU time of the process.
const REST_AT_MOST: Duration = Duration::from_secs(600);

/// The code of a process, as far as copies matter.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Code {
    /// What could be copied and is not: whole huge pages, sorted, none over another.
    pub left: Vec<Range>,
    /// Bytes of it that are copies.
    pub copied: u64,
    /// Copies that are memory of the process alone, also where the program has split their huge pages: whole huge pages,
    /// sorted.
    pub anonymous: Vec<Range>,
}

impl Code {
    /// Returns the bytes of `hot` that could be copied.
    pub fn left_of(&self, hot: &HotCode) -> u64 {
        let shared = |hot: &Range| {
            self.left.iter().filter_map(|left| left.intersect(*hot)).map(Range::len).sum::<u64>()
        };
        hot.ranges().iter().map(shared).sum()
    }

    /// Returns those of the huge pages `spans`, each with its first byte and its samples, that could be copied.
    pub fn among(
        &self,
        spans: impl Iterator<Item = (u64, u64)>,
        page: PageSize,
    ) -> impl Iterator<Item = (u64, u64)> {
        spans.filter(move |(start, _)| {
            let Some(page) = Range::sized(Addr(*start), page.bytes()) else { return false };
            let after = self.left.partition_point(|range| range.start <= page.start);
            after.checked_sub(1).and_then(|at| self.left.get(at)).is_some_and(|left| left.covers(page))
        })
    }

    /// Moves these copies back to what could be copied.
    pub fn give_back(&mut self, given: &[Range]) {
        for given in given {
            let without = |all: &mut Vec<Range>| {
                let before: u64 = all.iter().map(|range| range.len()).sum();
                *all = std::mem::take(all).into_iter().flat_map(|range| range.minus(*given)).collect();
                before - all.iter().map(|range| range.len()).sum::<u64>()
            };
            without(&mut self.anonymous);
            let split = without(&mut self.left);
            self.copied = self.copied.saturating_sub(given.len() - split);
            self.left.push(*given);
        }
        self.left.sort();
    }

    /// Moves `hot` from what could be copied to what is.
    pub fn copy(&mut self, hot: &HotCode) {
        self.copied = self.copied.saturating_add(self.left_of(hot));
        for hot in hot.ranges() {
            let left = std::mem::take(&mut self.left);
            self.left = left.into_iter().flat_map(|left| left.minus(*hot)).collect();
        }
    }
}

/// How often a process is sampled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// Until the first choice.
    Fast,
    /// From then on.
    Slow,
}

/// What is asked of the choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes that copies of the process may take.
    pub budget: u64,
    /// Bytes that copies of all processes may take that are watched together.
    pub total: u64,
    /// CPU time for which the process is sampled at least before the first choice.
    pub least: Duration,
}

impl Limits {
    /// Copies may take any memory, and the first choice waits for no CPU time.
    pub const NONE: Limits = Limits { budget: u64::MAX, total: u64::MAX, least: Duration::ZERO };

    /// Returns whether copies may take any memory.
    pub fn is_unlimited(self) -> bool {
        (self.budget, self.total) == (u64::MAX, u64::MAX)
    }

    /// Returns the limits of a process where the copies of all others take so many bytes.
    #[must_use]
    pub fn beside(self, others: u64) -> Limits {
        Limits { budget: self.budget.min(self.total.saturating_sub(others)), ..self }
    }
}

/// The samples of one process, and what follows from them.
#[derive(Clone, Debug)]
pub struct Follow {
    page: PageSize,
    code: Code,
    /// The samples of the window by number of their huge page.
    counts: BTreeMap<u64, u64>,
    /// The same of all windows since the last rest.
    since_rest: BTreeMap<u64, u64>,
    /// All samples of the window.
    samples: u64,
    /// The CPU time of the process when it was sampled first.
    since: Option<Duration>,
    /// Code of the process was copied because it is hot.
    is_copied: bool,
    chosen: HotCode,
    /// The process is not sampled until it has used this CPU time.
    rests: Option<Duration>,
    cold: Cold,
}

impl Follow {
    /// Returns what is known of a process with this code.
    pub fn new(page: PageSize, code: Code) -> Follow {
        Follow {
            page,
            code,
            counts: BTreeMap::new(),
            since_rest: BTreeMap::new(),
            samples: 0,
            since: None,
            is_copied: false,
            chosen: HotCode::default(),
            rests: None,
            cold: Cold::default(),
        }
    }

    /// Takes account of whether memory is short at the time `at`, when the process has used `cpu`.
    pub fn press(&mut self, is_short: bool, at: Duration, cpu: Duration) {
        let begins = self.cold.press(is_short, at, (cpu, self.samples));
        if begins && self.may_give_back() {
            self.begin();
        }
    }

    /// Returns whether it has copies whose memory could be given back.
    pub fn may_give_back(&self) -> bool {
        !self.code.anonymous.is_empty()
    }

    /// Returns its code, as far as copies matter.
    #[cfg(test)]
    pub(super) fn code(&self) -> &Code {
        &self.code
    }

    /// Returns what is to be given back now.
    pub fn cold(&self) -> Option<&ColdCode> {
        self.cold.found()
    }

    /// Takes account of what was given back of a process that has used `cpu`. It rests from now on. What was chosen and not
    /// copied yet may have been given back, so it is chosen anew.
    pub fn given_back(&mut self, given: &[Range], cpu: Duration) {
        self.cold.given_back(given, self.page);
        self.code.give_back(given);
        self.is_copied |= !given.is_empty();
        self.chosen = HotCode::default();
        self.rests.get_or_insert(rest_after(cpu));
    }

    /// Takes account of what an attempt to copy has found, and has left.
    pub fn found(&mut self, code: Code) {
        // No window says anything of copies that somebody else has made meanwhile.
        if code.anonymous != self.code.anonymous && self.cold.is_short() {
            self.begin();
        }
        self.code = code;
        if self.chosen.bytes() > 0 && self.code.left_of(&self.chosen) == 0 {
            self.is_copied = true;
            self.chosen = HotCode::default();
            self.begin();
        }
    }

    /// Returns how often a process that has used `cpu` is to be sampled; `None` if that would bring nothing now.
    pub fn pace(&mut self, cpu: Duration, limits: Limits) -> Option<Pace> {
        let may_copy = !self.code.left.is_empty() && self.rest_of(limits.budget) >= self.page.bytes();
        let gives_back = self.cold.is_short() && self.may_give_back();
        if !may_copy && !gives_back {
            return None;
        }
        if let Some(until) = self.rests {
            if cpu < until {
                return None;
            }
            self.begin();
            self.since_rest.clear();
            self.cold.begin_rested();
        }
        self.since.get_or_insert(cpu);
        Some(if self.has_chosen() { Pace::Slow } else { Pace::Fast })
    }

    /// Counts a sample at this address.
    pub fn add(&mut self, address: u64) {
        let number = address / self.page.bytes();
        *self.counts.entry(number).or_default() += 1;
        *self.since_rest.entry(number).or_default() += 1;
        self.samples += 1;
    }

    /// Counts samples outside of user space.
    pub fn add_outside(&mut self, samples: u64) {
        self.samples = self.samples.saturating_add(samples);
    }

    /// Decides again, of a process that has used `cpu`.
    pub fn decide(&mut self, cpu: Duration, limits: Limits) {
        self.cold.judge_sleep(&self.code.anonymous, cpu);
        if self.rests.is_some() {
            return;
        }
        let rest = self.rest_of(limits.budget);
        let waits = !self.is_copied && self.since.is_some_and(|since| cpu < since + limits.least);
        let choice = match self.is_copied {
            _ if waits => None,
            true => self.new_hot(rest),
            false => self.first_hot(rest),
        };
        if let Some(hot) = choice.filter(|hot| hot.bytes() > 0) {
            self.chosen = hot;
        }
        let most = if self.has_chosen() { WINDOW } else { LONG_WINDOW };
        if self.samples >= most && !waits {
            self.cold.judge_window(&self.code.anonymous, &self.counts, self.samples, self.page);
            self.rests = Some(rest_after(cpu));
        }
    }

    /// Returns what is to be copied, and is not yet.
    pub fn chosen(&self) -> &HotCode {
        &self.chosen
    }

    /// Returns the bytes of its copies, with those that are to be made.
    pub fn takes(&self) -> u64 {
        self.code.copied.saturating_add(self.chosen.bytes())
    }

    /// Returns the samples of the window in user space.
    pub fn samples(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Returns how many huge pages are chosen, and how many its code could have.
    pub fn pages(&self) -> (u64, u64) {
        let left: u64 = self.code.left.iter().map(|range| range.len()).sum();
        (self.chosen.bytes() / self.page.bytes(), (left + self.code.copied) / self.page.bytes())
    }

    fn has_chosen(&self) -> bool {
        self.is_copied || self.chosen.bytes() > 0
    }

    fn begin(&mut self) {
        self.counts.clear();
        (self.samples, self.rests) = (0, None);
        self.cold.begin();
    }

    fn rest_of(&self, budget: u64) -> u64 {
        budget.saturating_sub(self.code.copied)
    }

    /// Chooses among all that could be copied.
    fn first_hot(&self, rest: u64) -> Option<HotCode> {
        let samples: u64 = self.in_left(&self.counts).map(|(_, samples)| samples).sum();
        (samples >= FIRST).then(|| HotCode::choose(self.in_left(&self.counts), self.page, rest))
    }

    /// Chooses what could be copied among all that is hot, what is copied already included.
    fn new_hot(&self, rest: u64) -> Option<HotCode> {
        let mut new: BTreeMap<u64, u64> = self.hot_in_left(&self.since_rest).collect();
        // A process that does something else now has few samples there beside those of before.
        new.extend(self.hot_in_left(&self.counts));
        Some(HotCode::choose(new, self.page, rest))
    }

    /// Returns what could be copied of the hot huge pages, as [`Follow::in_left`] does.
    fn hot_in_left(&self, counts: &BTreeMap<u64, u64>) -> impl Iterator<Item = (u64, u64)> {
        let bytes = self.page.bytes();
        let hot =
            HotCode::choose(counts.iter().map(|(n, samples)| (n * bytes, *samples)), self.page, u64::MAX);
        let is_hot = move |start: u64| Range::sized(Addr(start), bytes).is_some_and(|page| hot.covers(page));
        self.in_left(counts).filter(move |(start, samples)| *samples >= NEW && is_hot(*start))
    }

    /// Returns the huge pages that could be copied and have samples: the first byte and the samples of each.
    fn in_left(&self, counts: &BTreeMap<u64, u64>) -> impl Iterator<Item = (u64, u64)> {
        let bytes = self.page.bytes();
        let may_copy = counts.iter().filter(|(n, _)| self.cold.may_copy(**n));
        let spans = may_copy.filter_map(move |(n, samples)| Some((n.checked_mul(bytes)?, *samples)));
        self.code.among(spans, self.page)
    }
}

/// Returns the CPU time until which a process rests that has used `cpu`.
fn rest_after(cpu: Duration) -> Duration {
    cpu.saturating_mul(2).min(cpu.saturating_add(REST_AT_MOST))
}

#[cfg(test)]
mod tests;
