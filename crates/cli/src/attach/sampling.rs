// SPDX-License-Identifier: Apache-2.0
//! Which code `hugelift attach` copies: that which a process is seen to use, or all of it.

use crate::options::{CopyArgs, heading, size};
use clap::Args;
use hugelift_core::addr::human_bytes;
use hugelift_core::heat::follow::{Code, Limits};
use hugelift_core::heat::hot::HotCode;
use hugelift_core::heat::{HOT_PERCENT, Heat};
use hugelift_core::policy::Copies;
use hugelift_core::printable::thousands;
use hugelift_core::quantity;
use hugelift_lift::attach::{AttachOptions, Change, Chosen, code_to_copy};
use hugelift_measure::heat::{Refusal, Sampled, Until, sample_all};
use hugelift_measure::perf::workload::Signals;
use std::time::Duration;

/// How long a process is sampled if no time is given. Of 2000 samples the hundredth part that stays on small pages is 20.
const UNTIL: Until = Until { least: Duration::from_secs(1), enough: 2000, most: Duration::from_secs(5) };

/// So many processes are sampled at the same time: they share the events that one process may have.
const TOGETHER: usize = 16;

const INTERRUPTED: &str = "a signal has ended the sampling; it is as before";

#[derive(Args, Debug)]
pub(super) struct SampleArgs {
    #[command(flatten)]
    copies: CopyArgs,

    /// Sample each process for TIME before its code in use is copied. Without it, sampling ends when 2000 samples are in its
    /// files, or after 5s. With --watch, TIME is the least CPU time of the process
    #[arg(long, value_name = "TIME", value_parser = quantity::positive_duration, conflicts_with = "whole",
          help_heading = heading::WHAT)]
    sample: Option<Duration>,

    /// With --watch: memory that copies of the code in use may take in all processes together, as in 1G. What several of them
    /// share counts for each
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "whole", requires = "watch",
          help_heading = heading::WATCH)]
    total: Option<u64>,
}

impl SampleArgs {
    /// Returns how processes are sampled, unless all of their code is wanted.
    pub(super) fn sampling(&self) -> Option<Sampling> {
        let limits = self.copies.limits()?;
        Some(Sampling { until: self.sample.map_or(UNTIL, Until::time), budget: limits.budget })
    }

    /// Returns the limits for processes that are watched, unless all of their code is wanted. What is lifted at once has no
    /// samples yet, unless these are asked for.
    pub(super) fn limits(&self, at_once: bool) -> Option<Limits> {
        let limits = Limits { total: self.total.unwrap_or(u64::MAX), ..self.copies.limits()? };
        let samples = !at_once || self.sample.is_some() || !limits.is_unlimited();
        samples.then_some(Limits { least: self.sample.unwrap_or_default(), ..limits })
    }
}

/// How processes are sampled before they are lifted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sampling {
    until: Until,
    budget: u64,
}

/// What may be copied of a process, and what is said of it.
pub(super) struct Choice {
    copies: Copies,
    line: Option<String>,
    complaint: Option<String>,
}

impl Sampling {
    /// Samples the processes of which a lift would copy code. Returns what may be copied of each, or why it cannot be told.
    pub(super) fn choices(
        self,
        chosen: &[Chosen],
        options: &AttachOptions,
    ) -> Result<Vec<Result<Choice, String>>, String> {
        // What cannot be read is refused by the lift, which says why.
        let codes: Vec<Code> =
            chosen.iter().map(|one| code_to_copy(*one, options).unwrap_or_default()).collect();
        let is_sampled = |(one, code): (&Chosen, &Code)| (!code.left.is_empty()).then_some(one.pid);
        let sampled: Vec<u32> = chosen.iter().zip(&codes).filter_map(is_sampled).collect();
        let signals = Signals::block().map_err(|e| format!("signalfd: {e}"))?;
        let mut heats = Vec::new();
        let mut is_interrupted = false;
        for pids in sampled.chunks(TOGETHER) {
            let Sampled { heats: more, is_interrupted: ends } = sample_all(pids, self.until, &signals);
            heats.extend(pids.iter().copied().zip(more));
            is_interrupted = ends;
            if is_interrupted {
                break;
            }
        }
        signals.restore();
        let choice = |(one, code): (&Chosen, &Code)| {
            if is_interrupted {
                return Err(INTERRUPTED.into());
            }
            match heats.iter().find(|(pid, _)| *pid == one.pid) {
                None => Ok(nothing()),
                Some((pid, Ok(heat))) => self.of_heat(*pid, heat, code),
                Some((pid, Err(why))) => self.unsampled(*pid, why),
            }
        };
        Ok(chosen.iter().zip(&codes).map(choice).collect())
    }

    fn of_heat(self, pid: u32, heat: &Heat, code: &Code) -> Result<Choice, String> {
        if heat.ended {
            return Err("it ended while it was sampled".into());
        }
        let hot = heat.hot_of(code, self.budget);
        let is_short = hot.bytes() < heat.hot_of(code, u64::MAX).bytes();
        let line = line(heat, is_short.then_some(hot.bytes()));
        Ok(match heat.objects.is_empty() {
            true => {
                let complaint =
                    format!("{line}: no code is copied ('hugelift attach --whole {pid}' copies all)");
                Choice { complaint: Some(complaint), ..nothing() }
            }
            false => Choice { copies: Copies::Hot(hot), line: Some(line), complaint: None },
        })
    }

    /// Without samples all code is copied, as that is what is known to help; but not if its memory is limited.
    fn unsampled(self, pid: u32, why: &Refusal) -> Result<Choice, String> {
        match self.budget {
            u64::MAX => Ok(Choice {
                copies: Copies::All,
                line: None,
                complaint: Some(format!("it cannot be sampled, so all of its code is copied: {why}")),
            }),
            _ => Err(format!(
                "it cannot be sampled, so --budget cannot choose what is copied: {why}; 'hugelift attach --whole {pid}' \
                 copies all"
            )),
        }
    }
}

impl Choice {
    /// Makes a change of the process with these copies alone.
    ///
    /// # Errors
    /// Those of `change`.
    pub(super) fn change(
        self,
        chosen: Chosen,
        options: &AttachOptions,
        change: impl Fn(Chosen, &AttachOptions) -> Result<Change, String>,
    ) -> Result<Change, String> {
        let mut change = change(chosen, &AttachOptions { copies: self.copies, ..options.clone() })?;
        change.lines.splice(0..0, self.line);
        change.complaints.splice(0..0, self.complaint);
        Ok(change)
    }
}

/// Lets nothing be copied: there is nothing to copy, or nothing is in use.
fn nothing() -> Choice {
    Choice { copies: Copies::Hot(HotCode::default()), line: None, complaint: None }
}

/// Returns "4 812 samples in 5.0 s: 99 % of those in its files are in 28 huge pages (56 MB) of the 114 of these objects";
/// `allowed` bytes of what could be copied are within the budget, if that is not all.
fn line(heat: &Heat, allowed: Option<u64>) -> String {
    let seconds = heat.milliseconds as f64 / 1000.0;
    let samples = thousands(heat.samples);
    if heat.objects.is_empty() {
        return format!("{samples} samples in {seconds:.1} s, none of them in code of its files");
    }
    let all: u64 = heat.objects.iter().map(|object| object.huge_pages).sum();
    let all_hot = heat.hot(u64::MAX).bytes();
    let within =
        allowed.map_or(String::new(), |bytes| format!("; the budget allows {} more", human_bytes(bytes)));
    format!(
        "{samples} samples in {seconds:.1} s: {HOT_PERCENT} % of those in its files are in {} huge pages ({}) of the \
         {all} of these objects{within}",
        all_hot / heat.huge_page_size.max(1),
        human_bytes(all_hot),
    )
}
