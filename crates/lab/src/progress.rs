// SPDX-License-Identifier: Apache-2.0
//! Shows how far an experiment is, stops it, and repeats steps that other programs disturbed.

use crate::disturbance::{AGAIN, PAUSE, Taken, Total, Watch};
use crate::results::Ended;
use crate::results::disturbance::Disturbance;
use anyhow::Result;
use hugelift_measure::interrupt;
use std::time::{Duration, Instant};

/// Shows the share that is done (0 to 1) and the next step.
type Show<'a> = Box<dyn FnMut(f64, &str) + 'a>;

/// The receiver of an experiment's progress, which also decides when the experiment stops.
pub struct Progress<'a> {
    deadline: Instant,
    stopped: Option<Ended>,
    show: Show<'a>,
    taken: Total,
}

impl<'a> Progress<'a> {
    /// Makes a value that stops the experiment when `budget` is over or ctrl-C was pressed
    /// ([`interrupt::prepare`]).
    pub fn new(budget: Duration, show: impl FnMut(f64, &str) + 'a) -> Progress<'a> {
        Progress {
            deadline: Instant::now() + budget,
            stopped: None,
            show: Box::new(show),
            taken: Total::default(),
        }
    }

    /// Reports that `share` of all (0 to 1) is done and `what` comes next; is called before each step.
    /// Returns whether to go on. Once it has returned `false` it never returns `true` again.
    pub fn go_on(&mut self, share: f64, what: &str) -> bool {
        let go_on = !self.is_over();
        if go_on {
            (self.show)(share.clamp(0.0, 1.0), what);
        }
        go_on
    }

    /// Whether the experiment must stop. Shows nothing and is cheap, for inner loops.
    pub fn is_over(&mut self) -> bool {
        if self.stopped.is_none() {
            if interrupt::check().is_err() {
                self.stopped = Some(Ended::Interrupted);
            } else if Instant::now() >= self.deadline {
                self.stopped = Some(Ended::TimeOver);
            }
        }
        self.stopped.is_some()
    }

    /// Sleeps for `time`, or until the experiment must stop. Returns whether it may go on.
    pub fn pause(&mut self, time: Duration) -> bool {
        // A signal does not end a sleep, so the time is slept in short turns.
        const TURN: Duration = Duration::from_millis(50);
        let end = Instant::now() + time;
        while !self.is_over() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(TURN));
        }
        false
    }

    /// Runs a step of the experiment, and again while other programs disturb it, up to three times if there
    /// is time. While most steps stay disturbed even so, none is repeated: that would only take time.
    /// Returns the result of the least disturbed run, and whether that was disturbed.
    ///
    /// A step takes at least some tens of milliseconds: `/proc/stat` counts in ticks. It measures on the
    /// calling thread, or lets no more tasks run at once than there are CPUs.
    ///
    /// # Errors
    /// Those of the step.
    pub fn undisturbed<T>(
        &mut self,
        mut step: impl FnMut(&mut Progress<'a>) -> Result<T>,
    ) -> Result<(T, bool)> {
        let began = Instant::now();
        let mut best: Option<(T, Taken)> = None;
        let mut runs = 0;
        loop {
            let watch = Watch::start();
            let result = step(self)?;
            // Where /proc does not say, it is not known whether the step was disturbed.
            let Some(taken) = watch.taken() else { return Ok((result, true)) };
            runs += 1;
            let kept = match best.take() {
                // A repetition that the end of the time has cut short does not replace a whole run.
                Some(before) if before.1.degree() <= taken.degree() || self.is_over() => before,
                _ => (result, taken),
            };
            let each = began.elapsed() / u32::try_from(runs).unwrap_or(1);
            // Repetitions must leave time for the steps that are still to come.
            let more = runs <= AGAIN
                && !self.taken.is_hopeless()
                && began.elapsed() + each + PAUSE < self.left() / 10;
            if !kept.1.is_disturbed() || !more || !self.pause(PAUSE) {
                self.taken.add(&kept.1, runs);
                return Ok((kept.0, kept.1.is_disturbed()));
            }
            best = Some(kept);
        }
    }

    /// Returns what other programs took from all steps so far; `None` before the first step.
    pub fn disturbance(&self) -> Option<Disturbance> {
        self.taken.disturbance()
    }

    /// Returns whether other programs have disturbed the experiment so far, or may have: nothing is known
    /// before the first step, or without /proc. What it states is then not sure.
    pub fn is_disturbed(&self) -> bool {
        self.disturbance().is_none_or(|disturbance| disturbance.is_disturbed())
    }

    /// Returns the time that is left for measuring.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Returns how the experiment ended: complete, unless it was stopped.
    pub fn ended(&self) -> Ended {
        self.stopped.unwrap_or(Ended::Complete)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbed_step_runs_again() {
        let mut progress = Progress::new(Duration::from_secs(600), |_, _| {});
        let mut runs = 0;
        let (kept, disturbed) = progress
            .undisturbed(|_| {
                runs += 1;
                let began = Instant::now();
                while began.elapsed() < Duration::from_millis(50) {
                    std::hint::spin_loop();
                }
                Ok(runs)
            })
            .unwrap();
        assert!((1..=4).contains(&runs) && (1..=runs).contains(&kept), "{runs} {kept}");
        assert!(!disturbed || runs == 4, "a disturbed step was not repeated");
        let found = progress.disturbance().unwrap();
        assert_eq!((found.steps, found.repeated, found.disturbed), (1, runs - 1, u64::from(disturbed)));
        assert_eq!(progress.is_disturbed(), disturbed);

        // A step fails as it is.
        assert!(progress.undisturbed(|_| anyhow::bail!("no memory") as Result<()>).is_err());
    }

    #[test]
    fn it_stops_when_the_time_is_over_and_for_good() {
        let mut shown = 0;
        let mut progress = Progress::new(Duration::from_secs(1), |_, _| shown += 1);
        assert!(progress.go_on(0.0, "first") && progress.ended() == Ended::Complete);
        assert!(!progress.pause(Duration::from_secs(60)));
        assert!(!progress.go_on(0.1, "second") && progress.is_over());
        assert_eq!((progress.ended(), progress.left()), (Ended::TimeOver, Duration::ZERO));
        drop(progress);
        assert_eq!(shown, 1);
    }
}
