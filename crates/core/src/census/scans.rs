// SPDX-License-Identifier: Apache-2.0
//! When /proc is listed.

use super::settings::Settings;
use std::time::Duration;

/// The scans of /proc.
#[derive(Debug)]
pub(super) struct Scans {
    /// When the last one was asked for; `None` before the first.
    last: Option<Duration>,
    /// The CPU time that it took.
    took: Duration,
    /// Events tell what happens between scans.
    has_events: bool,
    /// Events were lost after the last scan.
    lost: bool,
}

impl Scans {
    pub(super) fn new(has_events: bool) -> Scans {
        Scans { last: None, took: Duration::ZERO, has_events, lost: false }
    }

    pub(super) fn has_events(&self) -> bool {
        self.has_events
    }

    /// Notes that there are no events any more.
    pub(super) fn without_events(&mut self) {
        self.has_events = false;
    }

    /// Notes that events are missing.
    pub(super) fn lost(&mut self) {
        self.lost = true;
    }

    /// Returns when the next scan is due.
    pub(super) fn due(&self, settings: &Settings) -> Duration {
        let Some(last) = self.last else { return Duration::ZERO };
        let waits =
            if self.has_events && !self.lost { settings.scan_beside_events } else { settings.scan_every };
        last.saturating_add(waits.max(affordable(self.took, settings.scan_share)))
    }

    /// Notes that a scan was asked for.
    pub(super) fn asked(&mut self, now: Duration) {
        self.last = Some(now);
        self.lost = false;
    }

    /// Notes the CPU time that a scan took.
    pub(super) fn took(&mut self, cpu: Duration) {
        self.took = cpu;
    }
}

/// Returns the time of which `cpu` is this share.
fn affordable(cpu: Duration, share: f64) -> Duration {
    Duration::try_from_secs_f64(cpu.as_secs_f64() / share).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_33_a_scan_takes_its_share_at_most() {
        let (settings, ms) = (Settings::default(), Duration::from_millis);
        let mut scans = Scans::new(false);
        assert_eq!(scans.due(&settings), Duration::ZERO);
        scans.asked(ms(5000));
        assert_eq!(scans.due(&settings), ms(6000));
        scans.took(ms(4));
        assert_eq!(scans.due(&settings), ms(9000), "0.1 %");
        let mut scans = Scans::new(true);
        scans.asked(ms(5000));
        assert_eq!(scans.due(&settings), ms(35_000));
        scans.lost();
        assert_eq!(scans.due(&settings), ms(6000));
        scans.took(ms(4));
        assert_eq!(scans.due(&settings), ms(9000), "lost events do not make it dearer");
        scans.asked(ms(9000));
        assert_eq!(scans.due(&settings), ms(39_000));
        let free = Settings { scan_share: 0.0, ..settings };
        assert_eq!(scans.due(&free), Duration::MAX);
    }
}
