// SPDX-License-Identifier: Apache-2.0
//! How much of files is read into memory, how fast, and that it waits while memory is short.
//!
//! A machine that is short of memory would drop pages that its programs use, to make room for the bytes that are read here.
//! The kernel says for which share of the time tasks wait for memory (Documentation/accounting/psi.rst). This share is read
//! before each stretch of a file.

use hugelift_core::pressure::Pressure;
use hugelift_core::prime::Obstacle;
use hugelift_linux::machine::pressure;
use hugelift_linux::proc::procfs::Process;
use std::time::{Duration, Instant};

/// How long priming waits in all until memory is not short any more. The kernel's share is an average of the last ten seconds.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often the share is read meanwhile.
const PAUSE: Duration = Duration::from_millis(250);
/// How much of a second's bytes is read at once.
const AT_ONCE: u64 = 4;

/// The limits of what priming reads.
#[derive(Debug)]
pub struct Pace {
    /// Bytes of data files that may still be read into memory.
    left: u64,
    /// Bytes of all files a second; `None` as fast as they are read.
    rate: Option<u64>,
    /// Until when what was read before takes at this rate.
    next: Instant,
    /// How long it may still wait for memory.
    patience: Duration,
    was_short: bool,
    /// Reads how short memory is.
    read: fn() -> Vec<Pressure>,
}

impl Pace {
    /// Allows to read `budget` bytes of data files into memory, and any number of files of code, at `rate` bytes a second.
    pub fn new(budget: u64, rate: Option<u64>) -> Pace {
        let (next, patience) = (Instant::now(), PATIENCE);
        Pace { left: budget, rate, next, patience, was_short: false, read: shares }
    }

    /// Does not wait while memory is short: what would be read then is left.
    pub fn without_patience(self) -> Pace {
        Pace { patience: Duration::ZERO, ..self }
    }

    /// Returns how many pages of `page` bytes are read at once, of at most `most`.
    pub(super) fn batch(&self, page: u64, most: usize) -> usize {
        let at_once = self.rate.map_or(usize::MAX, |rate| (rate / AT_ONCE / page) as usize);
        at_once.clamp(1, most)
    }

    /// Takes bytes of a data file from the budget.
    ///
    /// # Errors
    /// [`Obstacle::OverBudget`]: nothing is taken.
    pub(super) fn take(&mut self, need: u64) -> Result<(), Obstacle> {
        if need > self.left {
            return Err(Obstacle::OverBudget { left: self.left, need });
        }
        self.left -= need;
        Ok(())
    }

    /// Waits until so many bytes may be read.
    ///
    /// # Errors
    /// [`Obstacle::Pressure`]: memory is short, and it was waited for long enough.
    pub(super) fn wait(&mut self, bytes: u64) -> Result<(), Obstacle> {
        if bytes == 0 {
            return Ok(());
        }
        while let Some(short) = self.shortage() {
            if self.patience.is_zero() {
                return Err(Obstacle::Pressure(short));
            }
            let pause = PAUSE.min(self.patience);
            self.patience -= pause;
            std::thread::sleep(pause);
        }
        if let Some(rate) = self.rate {
            std::thread::sleep(self.next.saturating_duration_since(Instant::now()));
            self.next = Instant::now() + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
        }
        Ok(())
    }

    /// Returns how short memory is, if it is short.
    fn shortage(&mut self) -> Option<Pressure> {
        let was = self.was_short;
        let short = (self.read)().into_iter().find(|one| one.is_short(was));
        self.was_short = short.is_some();
        short
    }
}

/// Returns the shares of the time in which tasks wait for memory: of the machine, and of the control groups of this process.
fn shares() -> Vec<Pressure> {
    let all = pressure::of_machine().into_iter().chain(pressure::of_groups(Process::OWN));
    // What a limit leaves is known better: priming counts the pages that it needs.
    all.filter(|one| matches!(one, Pressure::Waits { .. })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    #[test]
    fn issue_32_1_a_rate_is_kept() {
        let mut pace = Pace { read: Vec::new, ..Pace::new(0, Some(100 * MB)) };
        let began = Instant::now();
        // The first is read at once, and takes its time before the second.
        (0..5).for_each(|_| pace.wait(5 * MB).expect("it waits"));
        assert!(began.elapsed() >= Duration::from_millis(200), "{:?}", began.elapsed());
        assert_eq!(pace.batch(2 * MB, 64), 12);
        assert_eq!(Pace::new(0, Some(1)).batch(2 * MB, 64), 1);
        assert_eq!(Pace::new(0, None).batch(2 * MB, 64), 64);
    }

    #[test]
    fn issue_32_1_a_budget_is_taken_as_a_whole_or_not() {
        let mut pace = Pace::new(10, None);
        assert_eq!(pace.take(8), Ok(()));
        assert_eq!(pace.take(3), Err(Obstacle::OverBudget { left: 2, need: 3 }));
        assert_eq!(pace.take(2), Ok(()));
        assert_eq!(pace.wait(0), Ok(()), "nothing is read");
    }

    #[test]
    fn issue_32_1_memory_that_stays_short_is_waited_for_once() {
        const SHORT: Pressure = Pressure::Waits { share: 4000, is_of_group: false };
        let (short, mut pace) = (Err(Obstacle::Pressure(SHORT)), Pace::new(0, None));
        (pace.read, pace.patience) = (|| vec![SHORT], Duration::from_millis(300));
        let began = Instant::now();
        assert_eq!(pace.wait(MB), short);
        assert!(began.elapsed() >= Duration::from_millis(300));
        assert_eq!((pace.wait(MB), pace.patience), (short.clone(), Duration::ZERO));
        assert_eq!(pace.wait(0), Ok(()));
        // It is short until the share falls below half of the limit.
        pace.read = || vec![Pressure::Waits { share: 700, is_of_group: false }];
        assert!(pace.wait(MB).is_err());
        pace.read = || vec![Pressure::Waits { share: 400, is_of_group: false }];
        assert_eq!(pace.wait(MB), Ok(()));
        pace.read = || vec![Pressure::Waits { share: 700, is_of_group: false }];
        assert_eq!(pace.wait(MB), Ok(()));
        pace.read = || vec![SHORT];
        assert_eq!(pace.without_patience().wait(MB), short);
    }
}
