// SPDX-License-Identifier: Apache-2.0
//! `hugelift attach --hot`: samples which code a process uses, and lets only that be copied.

use crate::options::{BudgetArgs, heading};
use clap::Args;
use hugelift_core::addr::human_bytes;
use hugelift_core::heat::follow::Limits;
use hugelift_core::heat::{HOT_PERCENT, Heat};
use hugelift_core::policy::Copies;
use hugelift_core::printable::thousands;
use hugelift_core::quantity;
use hugelift_lift::attach::{AttachOptions, Change, Chosen};
use hugelift_measure::heat;
use hugelift_measure::perf::workload::Signals;
use std::cell::Cell;
use std::time::Duration;

#[derive(Args, Debug)]
pub(super) struct HotArgs {
    /// Copy only the code in use: each process is sampled for TIME first, and of text and rodata only the huge
    /// pages that hold 99 % of its samples are copied. What the page cache or the store has is used as ever. With
    /// --watch TIME is CPU time of the process, at least, and code that it uses later is copied when that is worth it
    #[arg(long, value_name = "TIME", value_parser = quantity::positive_duration, help_heading = heading::WHAT)]
    hot: Option<Duration>,

    #[command(flatten)]
    budget: BudgetArgs,
}

impl HotArgs {
    /// Returns how each process is sampled, if that is asked for.
    pub(super) fn sampling(&self) -> Option<Sampling> {
        let budget = self.budget.bytes();
        self.hot.map(|time| Sampling { time, budget, interrupted: Cell::new(false) })
    }

    /// Returns the limits for processes that are watched, if only their code in use is to be copied.
    pub(super) fn limits(&self) -> Option<Limits> {
        self.hot.map(|least| Limits { budget: self.budget.bytes(), least })
    }
}

/// Samples process after process.
pub(super) struct Sampling {
    time: Duration,
    budget: u64,
    /// A signal has ended one of them, and so all.
    interrupted: Cell<bool>,
}

impl Sampling {
    /// Makes a change of a process, with copies of the code alone that it is seen to use.
    ///
    /// # Errors
    /// It cannot be sampled, or used no code of its files; those of `change`. It is then as before.
    pub(super) fn change(
        &self,
        chosen: Chosen,
        options: &AttachOptions,
        change: impl Fn(Chosen, &AttachOptions) -> Result<Change, String>,
    ) -> Result<Change, String> {
        const INTERRUPTED: &str = "a signal has ended the sampling; it is as before";
        if self.interrupted.get() {
            return Err(INTERRUPTED.into());
        }
        let signals = Signals::block().map_err(|e| format!("signalfd: {e}"))?;
        let heat = heat::sample(chosen.pid, self.time, &signals);
        signals.restore();
        let heat = heat.map_err(|why| format!("cannot be sampled: {why}"))?;
        if heat.ended {
            return Err("it ended while it was sampled".into());
        }
        if u128::from(heat.milliseconds) < self.time.as_millis() {
            self.interrupted.set(true);
            return Err(INTERRUPTED.into());
        }
        let hot = heat.hot(self.budget);
        let line = line(&heat, hot.bytes());
        if heat.objects.is_empty() {
            return Err(format!(
                "{line}; it is as before ('hugelift attach {}' lifts all of it)",
                chosen.pid
            ));
        }
        let options = AttachOptions { copies: Copies::Hot(hot), ..options.clone() };
        let mut change = change(chosen, &options)?;
        change.lines.insert(0, line);
        Ok(change)
    }
}

/// Returns "4 812 samples in 5.0 s: 99 % of those in its files are in 28 huge pages (56 MB) of 114 that hold its code".
fn line(heat: &Heat, chosen: u64) -> String {
    let seconds = heat.milliseconds as f64 / 1000.0;
    let samples = thousands(heat.samples);
    if heat.objects.is_empty() {
        return format!("{samples} samples in {seconds:.1} s, none of them in code of its files");
    }
    let all: u64 = heat.objects.iter().map(|object| object.huge_pages).sum();
    let all_hot = heat.hot(u64::MAX).bytes();
    let within = match chosen < all_hot {
        true => format!("; the budget allows {}", human_bytes(chosen)),
        false => String::new(),
    };
    format!(
        "{samples} samples in {seconds:.1} s: {HOT_PERCENT} % of those in its files are in {} huge pages ({}) of the \
         {all} of these objects{within}",
        all_hot / heat.huge_page_size.max(1),
        human_bytes(all_hot),
    )
}
