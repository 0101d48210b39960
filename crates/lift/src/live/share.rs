// SPDX-License-Identifier: Apache-2.0
//! The CPU time that a watcher may use for polling.

use std::time::Duration;

/// The watcher uses at most one part in this many of a CPU for polling.
const SHARE: u32 = 1000;
/// CPU time for polling that it may use at once: the share is saved up to this.
const ADVANCE: Duration = Duration::from_millis(5);

/// A bucket that fills by one part in [`SHARE`] of the time that passes, up to [`ADVANCE`].
#[derive(Debug)]
pub(super) struct Share {
    /// Seconds of CPU time that are left; negative if more was used.
    left: f64,
    /// What the last poll used.
    last: Duration,
}

impl Default for Share {
    fn default() -> Share {
        Share { left: ADVANCE.as_secs_f64(), last: Duration::ZERO }
    }
}

impl Share {
    /// Counts CPU time that a poll used, `passed` after the last one. Returns how long nothing more may be used.
    ///
    /// One poll may cost far more than the others: a host takes the CPU away meanwhile, or very many processes are new.
    /// Alone it must not make the watcher blind for minutes, so it counts as at most twice the poll before it, or [`ADVANCE`].
    pub(super) fn count(&mut self, used: Duration, passed: Duration) -> Duration {
        let counted = used.min(ADVANCE.max(self.last.saturating_mul(2)));
        self.last = used;
        let filled = self.left + passed.as_secs_f64() / f64::from(SHARE);
        self.left = filled.min(ADVANCE.as_secs_f64()) - counted.as_secs_f64();
        Duration::try_from_secs_f64(-self.left * f64::from(SHARE)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn one_expensive_poll_does_not_make_the_watcher_blind() {
        let mut share = Share::default();
        assert_eq!(share.count(MS, Duration::ZERO), Duration::ZERO);
        let pause = share.count(200 * MS, Duration::from_secs(1));
        assert!(pause <= Duration::from_secs(5), "{pause:?}");
    }

    #[test]
    fn polls_that_are_all_expensive_take_their_share_alone() {
        for each in [MS / 10, MS, 20 * MS, 200 * MS] {
            let mut share = Share::default();
            let mut time = Duration::ZERO;
            let mut passed = Duration::from_millis(20);
            for _ in 0..100 {
                passed = share.count(each, passed).max(Duration::from_millis(20));
                time += passed;
            }
            // The first poll and the advance are extra.
            let all = 98 * each;
            assert!(all <= time / SHARE + ADVANCE, "{each:?}: {all:?} in {time:?}");
        }
    }
}
