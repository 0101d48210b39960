// SPDX-License-Identifier: Apache-2.0
//! What a sample costs the thread that is sampled: an interrupt of a timer, setting the timer again, and what the program
//! has to load again into caches and TLBs. A guest, whose timer is the host's, pays many times what a plain machine does.

use crate::event::Event;
use crate::records::Batch;
use crate::ring::Ring;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The time between two samples while the price is measured.
const PERIOD: Duration = Duration::from_micros(211);
/// How long it is measured: the CPU time that this takes.
pub const MEASURING: Duration = Duration::from_millis(10);
/// A shorter time between two readings of the clock is none in which the thread was interrupted.
const GAP: Duration = Duration::from_nanos(300);
/// With fewer samples nothing is known.
const FEWEST: usize = 8;
/// What is taken for the price where it cannot be measured.
const ASSUMED: Duration = Duration::from_micros(10);

/// Returns the time that a sample takes from the thread that is sampled, measured once on the calling thread.
pub fn of_a_sample() -> Duration {
    static PRICE: OnceLock<Duration> = OnceLock::new();
    *PRICE.get_or_init(|| measure().map_or(ASSUMED, in_all))
}

/// Returns for how long a sample stops a thread. Reads the clock all the time while the calling thread is sampled. The samples are the longest gaps between two readings, except
/// for the few in which the thread had no CPU.
fn measure() -> Option<Duration> {
    // 0: the calling thread.
    let mut ring = Ring::open(0, &Event::cpu_clock(PERIOD), true).ok()?;
    let began = Instant::now();
    let (mut last, mut gaps) = (began, Vec::with_capacity(1 << 10));
    while last - began < MEASURING {
        let now = Instant::now();
        if now - last >= GAP && gaps.len() < gaps.capacity() {
            gaps.push(now - last);
        }
        last = now;
    }
    let mut batch = Batch::default();
    ring.read(&mut batch, &mut Vec::new());
    typical(gaps, batch.user.len())
}

/// Adds what the program loses besides, as it goes on with colder caches and TLBs: with a gap of 12.7 us a loop that only
/// computes lost 13.3 us a sample, and one that reads 64 MB at random 15 us.
fn in_all(gap: Duration) -> Duration {
    gap * 5 / 4
}

/// Returns the median of the longest gaps, one for each sample.
fn typical(mut gaps: Vec<Duration>, samples: usize) -> Option<Duration> {
    gaps.sort_unstable_by(|one, two| two.cmp(one));
    gaps.truncate(samples);
    if gaps.len() < FEWEST {
        return None;
    }
    gaps.get(gaps.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_31_the_price_is_that_of_most_samples() {
        let micros = |all: &[u64]| all.iter().copied().map(Duration::from_micros).collect::<Vec<_>>();
        // Twice it had no CPU, and a few gaps are none of a sample.
        let gaps = micros(&[3, 50, 2, 51, 4000, 49, 50, 52, 3, 50, 9000, 48, 50, 3]);
        assert_eq!(typical(gaps, 10), Some(Duration::from_micros(50)));
        assert_eq!(typical(micros(&[50; 7]), 7), None);
        assert_eq!(typical(Vec::new(), 40), None);
        assert_eq!(typical(micros(&[50; 40]), 0), None);
    }

    #[test]
    fn issue_31_the_price_is_measured_here() {
        let _alone = crate::alone();
        let price = of_a_sample();
        assert!(price >= GAP && price < Duration::from_millis(10), "{price:?}");
        assert_eq!(of_a_sample(), price, "it is measured once");
    }
}
