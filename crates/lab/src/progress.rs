// SPDX-License-Identifier: Apache-2.0
//! Shows how far an experiment is, and stops it.

use crate::results::Ended;
use hugelift_measure::interrupt;
use std::time::{Duration, Instant};

/// Shows the share that is done (0 to 1) and the next step.
type Show<'a> = Box<dyn FnMut(f64, &str) + 'a>;

/// The receiver of an experiment's progress, which also decides when the experiment stops.
pub struct Progress<'a> {
    deadline: Instant,
    stopped: Option<Ended>,
    show: Show<'a>,
}

impl<'a> Progress<'a> {
    /// Makes a value that stops the experiment when `budget` is over or ctrl-C was pressed
    /// ([`interrupt::prepare`]).
    pub fn new(budget: Duration, show: impl FnMut(f64, &str) + 'a) -> Progress<'a> {
        Progress { deadline: Instant::now() + budget, stopped: None, show: Box::new(show) }
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
    fn it_stops_when_the_time_is_over_and_for_good() {
        let mut shown = 0;
        let mut progress = Progress::new(Duration::from_millis(20), |_, _| shown += 1);
        assert!(progress.go_on(0.0, "first") && progress.ended() == Ended::Complete);
        assert!(!progress.pause(Duration::from_secs(60)));
        assert!(!progress.go_on(0.1, "second") && progress.is_over());
        assert_eq!((progress.ended(), progress.left()), (Ended::TimeOver, Duration::ZERO));
        drop(progress);
        assert_eq!(shown, 1);
    }
}
