// SPDX-License-Identifier: Apache-2.0
//! How much `lab cow` measures, and for how long.

use super::ratios::FEWEST;
use super::redis;

/// How much is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sizes of the memory in huge pages, in the order in which they are measured.
    pub huge_pages: Vec<u64>,
    /// How often each case of up to `OFTEN` huge pages is repeated.
    pub rounds: u64,
    /// The memory of whole processes in huge pages; empty if they are not measured.
    pub whole: Vec<u64>,
    /// How redis is measured; `None` if it is not.
    pub redis: Option<redis::Options>,
}

/// The largest size in huge pages that is measured in all rounds.
const OFTEN: u64 = 64;

/// Cases with more huge pages than this take long enough to be run once.
const LARGE: u64 = 512;

impl Options {
    /// Returns the default options.
    pub fn usual(quick: bool) -> Options {
        if quick {
            let redis = Some(redis::Options::QUICK);
            Options { huge_pages: vec![16, 1, 4], rounds: 10, whole: vec![1, 32], redis }
        } else {
            let huge_pages = (0..=6).map(|i| 1 << (2 * i)).collect();
            let redis = Some(redis::Options::THOROUGH);
            Options { huge_pages, rounds: 30, whole: vec![1, 64, 128, 256, 512], redis }
        }
    }

    /// Returns the shares of the time for the forks, and for the whole processes after them. The rest is for redis.
    pub(super) fn shares(&self) -> (f64, f64) {
        let parts = [
            (!self.huge_pages.is_empty(), 0.45),
            (!self.whole.is_empty(), 0.15),
            (self.redis.is_some(), 0.4),
        ];
        let shares = parts.map(|(is_measured, share)| if is_measured { share } else { 0.0 });
        let all: f64 = shares.iter().sum();
        if all > 0.0 { (shares[0] / all, shares[1] / all) } else { (0.0, 0.0) }
    }

    pub(super) fn rounds(&self, huge_pages: u64) -> u64 {
        if huge_pages <= OFTEN {
            self.rounds
        } else if huge_pages <= LARGE {
            self.rounds.min(FEWEST)
        } else {
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_alone_has_all_of_the_time() {
        let usual = Options::usual(false);
        let (forks, whole) = usual.shares();
        assert!((forks - 0.45).abs() < 1e-9 && (whole - 0.15).abs() < 1e-9, "{forks} {whole}");
        let processes = Options { huge_pages: vec![], redis: None, ..usual.clone() };
        assert_eq!(processes.shares(), (0.0, 1.0));
        let redis = Options { whole: vec![], huge_pages: vec![], ..usual };
        assert_eq!(redis.shares(), (0.0, 0.0));
    }

    #[test]
    fn small_sizes_have_enough_rounds_for_an_interval() {
        for quick in [true, false] {
            let options = Options::usual(quick);
            let sizes = options.huge_pages.iter().filter(|size| **size <= OFTEN);
            assert!(sizes.clone().count() >= 3, "{options:?}");
            assert!(sizes.clone().all(|size| options.rounds(*size) >= 10), "{options:?}");
        }
    }
}
