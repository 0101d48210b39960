// SPDX-License-Identifier: Apache-2.0
//! What counts the work of the processes that are compared with themselves.

use super::batch::Batch;
use super::options::Options;
use anyhow::{Result, bail};
use hugelift_measure::live::{Metric, Reading, WINDOWS, choose, never_waited, observe};
use std::time::{Duration, Instant};

/// How long the process is observed in each state before the experiment, at first.
const OBSERVED: Duration = Duration::from_secs(1);

/// What the verdict is on, and what counts it.
pub struct MeasureOfWork {
    /// What the verdict is on.
    pub metric: Metric,
}

impl MeasureOfWork {
    /// Takes what the user has named, else what the process shows to be steady. `wait` waits until a moment.
    ///
    /// # Errors
    /// The process has ended, cannot be brought into one of the states, or never waits and has no work that can be counted.
    pub fn of(
        batch: &mut Batch,
        options: &Options,
        wait: fn(Instant) -> Result<()>,
    ) -> Result<MeasureOfWork> {
        if let Some(metric) = options.metric.clone() {
            return Ok(MeasureOfWork { metric });
        }
        batch.count_work();
        let mut observe_for = |time: Duration| {
            let [one, two] = options.sides().map(|state| {
                let in_state = |batch: &mut Batch| {
                    batch.switch(state)?;
                    wait(Instant::now() + options.settle)?;
                    observe(|| batch.observed(), || wait(Instant::now() + time / WINDOWS as u32))
                };
                in_state(batch).map_err(|error| batch.cause(error))
            });
            anyhow::Ok(choose([&one?, &two?]))
        };
        // What is too rare, or has too little of a CPU, for the short windows may be steady in longer ones.
        let found = match observe_for(OBSERVED)? {
            Err(_) => observe_for(4 * OBSERVED)?,
            steady => steady,
        };
        let why = match found {
            Ok(steady) => return Ok(MeasureOfWork { metric: Metric::CpuPerWork(steady) }),
            Err(why) => why,
        };
        batch.count_no_work();
        let before = batch.threads();
        wait(Instant::now() + OBSERVED / 2)?;
        if never_waited(&before, &batch.threads()) {
            bail!(
                "it never waits, so that its CPU time per second is the same however fast it runs, and no other measure \
                 of its work was found ({why}): name a counter of its own by --cpu-per CMD or --metric CMD, or compare \
                 whole runs by 'hugelift compare -- COMMAND'"
            );
        }
        Ok(MeasureOfWork { metric: Metric::Cpu { why } })
    }

    /// Reads the processes at an end of a period.
    ///
    /// # Errors
    /// The command fails, or the kernel's number cannot be read.
    pub fn read(&self, batch: &Batch) -> Result<Reading> {
        batch.read(self.metric.work(), self.metric.counter())
    }
}
