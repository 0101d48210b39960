// SPDX-License-Identifier: Apache-2.0
//! Which copies of code are cold, so that their memory may be given back while memory is short.
//!
//! ```text
//!   memory    enough  | short                                          | enough
//!   samples   rests   | a window .... | cold pages given back | rests ......... | a window: they may be copied again
//! ```
//!
//! Old samples say nothing about now. So when memory becomes short a process that rests is sampled again, and only a
//! window that began since counts. A huge page without a sample in a whole window of 400 uses less than 0.75 % of the
//! CPU time of the process (with 95 % confidence). Each copy begins a new window, so what was just copied is not cold.
//!
//! A process that sleeps has no samples. It has executed nothing for [`ASLEEP`], and its copies are memory that the kernel
//! could only swap out. To give them back frees it at once. So all of them count as cold.
//!
//! What was given back is not copied again until memory is no longer short and the process has rested since. So a page
//! goes to and fro once in a rest at most.

use crate::addr::{Addr, PageSize, Range};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// A process sleeps when it has used no CPU time for this long while memory is short.
pub const ASLEEP: Duration = Duration::from_secs(30);

/// Why copies are cold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// So many samples were elsewhere.
    Elsewhere(u64),
    /// The process has used no CPU time for so long.
    Asleep(Duration),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Elsewhere(samples) => write!(f, "no sample in {samples}"),
            Why::Asleep(time) => write!(f, "no CPU time for {} s", time.as_secs()),
        }
    }
}

/// Copies that are cold: whole huge pages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ColdCode {
    /// Where they are, by address, none beside another.
    pub ranges: Vec<Range>,
    /// Why they are cold.
    pub why: Why,
}

/// What is known of the cold copies of a process.
#[derive(Clone, Default, Debug)]
pub(super) struct Cold {
    /// Memory is short.
    is_short: bool,
    /// The window of samples began since it is.
    is_recent: bool,
    /// What the process had used when it was seen to do something last, and when that was.
    active: Option<(Activity, Duration)>,
    /// The process sleeps, for so long.
    sleeps: Option<Duration>,
    /// It has slept since it had used this CPU time, and what was cold then was found.
    slept: Option<Duration>,
    found: Option<ColdCode>,
    /// The numbers of the huge pages that were given back, and are not copied again yet.
    kept_small: BTreeSet<u64>,
}

/// What changes while a process, or one that it has forked, does something: its CPU time and the samples of the window.
type Activity = (Duration, u64);

impl Cold {
    /// Takes account of whether memory is short at this time. Returns whether it has just become so.
    pub(super) fn press(&mut self, is_short: bool, at: Duration, activity: Activity) -> bool {
        let begins = is_short && !self.is_short;
        self.is_short = is_short;
        self.sleeps = None;
        if !is_short {
            (self.active, self.slept, self.found) = (None, None, None);
            return false;
        }
        match self.active {
            Some((last, since)) if last == activity => {
                let time = at.saturating_sub(since);
                self.sleeps = Some(time).filter(|time| *time >= ASLEEP && self.slept != Some(activity.0));
            }
            _ => self.active = Some((activity, at)),
        }
        begins
    }

    /// Returns whether memory is short.
    pub(super) fn is_short(&self) -> bool {
        self.is_short
    }

    /// Begins a window of samples.
    pub(super) fn begin(&mut self) {
        self.is_recent = self.is_short;
    }

    /// Begins a window after a rest.
    pub(super) fn begin_rested(&mut self) {
        self.begin();
        if !self.is_short {
            self.kept_small.clear();
        }
    }

    /// Finds all of `copies` cold if the process, which has used `cpu`, sleeps.
    pub(super) fn judge_sleep(&mut self, copies: &[Range], cpu: Duration) {
        if let Some(time) = self.sleeps.take() {
            self.slept = Some(cpu);
            self.find(copies.to_vec(), Why::Asleep(time));
        }
    }

    /// Finds what of `copies` has no sample in a window that is over: `counts` holds the samples by the number of their huge
    /// page, and the window had `samples` in all.
    pub(super) fn judge_window(
        &mut self,
        copies: &[Range],
        counts: &BTreeMap<u64, u64>,
        samples: u64,
        page: PageSize,
    ) {
        if !self.is_short || !self.is_recent {
            return;
        }
        let bytes = page.bytes();
        let whole = copies.iter().filter_map(|copy| copy.inner(page));
        let numbers = whole.flat_map(|copy| copy.start.0 / bytes..copy.end.0 / bytes);
        let cold = numbers.filter(|n| !counts.contains_key(n));
        let ranges = cold.filter_map(|n| Range::sized(Addr(n.checked_mul(bytes)?), bytes));
        self.find(ranges.collect(), Why::Elsewhere(samples));
    }

    fn find(&mut self, mut ranges: Vec<Range>, why: Why) {
        ranges.sort();
        ranges.dedup_by(|next, last| {
            let joins = next.start <= last.end;
            last.end = if joins { last.end.max(next.end) } else { last.end };
            joins
        });
        self.found = (!ranges.is_empty()).then_some(ColdCode { ranges, why });
    }

    /// Returns what is cold.
    pub(super) fn found(&self) -> Option<&ColdCode> {
        self.found.as_ref()
    }

    /// Takes account of what was given back.
    pub(super) fn given_back(&mut self, ranges: &[Range], page: PageSize) {
        self.found = None;
        let bytes = page.bytes();
        self.kept_small.extend(ranges.iter().flat_map(|r| r.start.0 / bytes..r.end.0.div_ceil(bytes)));
    }

    /// Returns whether the huge page of this number may be copied.
    pub(super) fn may_copy(&self, number: u64) -> bool {
        !self.kept_small.contains(&number)
    }
}

#[cfg(test)]
mod tests;
