// SPDX-License-Identifier: Apache-2.0
//! What is counted of the processes of an experiment, if that was asked for.

use hugelift_core::proc_stat::Identity;
use hugelift_heat::refusal::PerfError;
use hugelift_linux::proc::procfs::Process;
use hugelift_measure::perf::counters::{Later, Start};
use hugelift_measure::perf::watch::Watch;
use hugelift_measure::pmu::counts::{About, Counts};
use std::collections::BTreeMap;

/// The counters of each process.
#[derive(Default, Debug)]
pub struct Counted {
    watches: BTreeMap<Identity, Watch>,
    about: About,
    /// Why a process is not counted.
    refused: Option<String>,
}

/// The counts of each process at one moment.
pub type Moment = BTreeMap<Identity, Counts>;

impl Counted {
    /// Begins to count a process, and none that it starts: those are counted by themselves if they belong to the experiment. One that cannot be counted is left out, and a note says why.
    pub fn begin(&mut self, identity: Identity) {
        let process = Process::new(identity.0);
        match Watch::open(Some(process), &process.threads(), Start::Asked, Later::Threads) {
            Ok(mut watch) => {
                watch.enable();
                self.about = watch.about().clone();
                self.watches.insert(identity, watch);
            }
            Err(PerfError::Vanished) => {}
            Err(why) => self.refused = Some(format!("process {}: {why}", identity.0)),
        }
    }

    /// Ends to count those that are not among `living`.
    pub fn keep(&mut self, living: impl Fn(&Identity) -> bool) {
        self.watches.retain(|identity, _| living(identity));
    }

    /// Returns the counts so far.
    pub fn now(&self) -> Moment {
        self.watches.iter().map(|(identity, watch)| (*identity, watch.counts())).collect()
    }

    /// Returns what the counts are of.
    pub fn about(&self) -> About {
        let mut about = self.about.clone();
        about.notes.extend(self.refused.iter().map(|why| format!("not counted: {why}")));
        about
    }
}

/// Returns what was counted between two moments, of the processes that were there at both. What the kernel counts for the whole
/// machine is that of one of them.
pub fn between(first: &Moment, last: &Moment) -> Counts {
    let both = last.iter().filter_map(|(identity, last)| Some(last.since(first.get(identity)?)));
    both.fold(Counts::default(), |mut sum, counts| {
        sum.add_process(&counts);
        sum
    })
}
