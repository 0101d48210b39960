// SPDX-License-Identifier: Apache-2.0
//! Whether a copy of a program's text and rodata is worth what it costs.
//!
//! ```text
//!   CPU time of a run  0 ----------------|---------------------|----------------->
//!   copied               nothing         |  what past runs     |   all of it
//!                                        |  touched            |
//!                          cost(seen) = 1/20           cost(all) = 1/100
//! ```
//!
//! A program of which nothing is known is copied whole: it may be a server, which is started only once.

use crate::addr::human_bytes;
use std::fmt;
use std::time::Duration;

/// What it costs to put 1 MB on huge pages: to zero it, and to copy it, once. Of 160 starts of clang
/// (224 MB) and node (76 MB) the middle half took between 0.29 and 0.47 ms a MB more CPU time than bare
/// ones, the median 0.33, in a guest whose host also has to find the memory. This is the upper end.
pub const COPY_NS_PER_MB: u64 = 450_000;
/// A copy may cost 1/20 of the run: 5 %, the most that huge pages for text and rodata gained a real
/// program on the machine where this was measured. (On bare metal the literature has 4 to 11 %.)
pub const WORTH: u32 = 20;
/// A copy that costs at most 1/100 of the run is made without weighing what was touched.
pub const NEGLIGIBLE: u32 = 100;

/// What there is to copy, in bytes of huge pages.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Stake {
    /// All that the plan would copy.
    pub whole: u64,
    /// The part of it that past runs have touched, or of which nothing is recorded.
    pub seen: u64,
}

/// Runs of the same program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Past {
    /// How many; older ones count less.
    pub runs: u32,
    /// The CPU time of one, on average.
    pub cpu: Duration,
}

/// How much is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// All of it.
    Whole,
    /// What past runs have touched.
    Seen,
    /// Nothing.
    Nothing,
}

/// A verdict, with the figures that it rests on; displayed as one line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Weighed {
    /// What there is to copy.
    pub stake: Stake,
    /// What is known of the program.
    pub past: Option<Past>,
    /// How much of it is copied.
    pub verdict: Verdict,
}

/// Returns the CPU time that copying `bytes` takes.
pub fn cost(bytes: u64) -> Duration {
    let nanos = (u128::from(bytes) * u128::from(COPY_NS_PER_MB)) >> 20;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Weighs what there is to copy against what past runs took.
pub fn weigh(stake: Stake, past: Option<Past>) -> Weighed {
    let is_within = |bytes: u64, part: u32| past.is_none_or(|past| cost(bytes) <= past.cpu / part);
    let verdict = if is_within(stake.whole, NEGLIGIBLE) {
        Verdict::Whole
    } else if stake.seen == 0 || !is_within(stake.seen, WORTH) {
        Verdict::Nothing
    } else if stake.seen < stake.whole {
        Verdict::Seen
    } else {
        Verdict::Whole
    };
    Weighed { stake, past, verdict }
}

impl Weighed {
    /// Returns the bytes that are copied.
    pub fn copied(&self) -> u64 {
        match self.verdict {
            Verdict::Whole => self.stake.whole,
            Verdict::Seen => self.stake.seen,
            Verdict::Nothing => 0,
        }
    }
}

/// Returns a time such as "120 ms".
fn ms(time: Duration) -> String {
    match time.as_secs_f64() * 1e3 {
        ms @ 0.0..10.0 => format!("{ms:.1} ms"),
        ms @ 10.0..10_000.0 => format!("{ms:.0} ms"),
        ms => format!("{:.0} s", ms / 1e3),
    }
}

impl fmt::Display for Weighed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stake { whole, seen } = self.stake;
        write!(f, "to copy {} takes about {}", human_bytes(whole), ms(cost(whole)))?;
        match self.past {
            None => f.write_str(", and nothing is known of past runs: ")?,
            Some(Past { runs: 1, cpu }) => write!(f, ", and a past run took {} of CPU time: ", ms(cpu))?,
            Some(Past { runs, cpu }) => {
                write!(f, ", and {runs} past runs took {} of CPU time each: ", ms(cpu))?;
            }
        }
        match self.verdict {
            Verdict::Whole => f.write_str("worth it"),
            Verdict::Seen => {
                write!(f, "worth it for the {} that were touched ({})", human_bytes(seen), ms(cost(seen)))
            }
            Verdict::Nothing => f.write_str("not worth it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MB: u64 = 1 << 20;

    fn verdict(whole: u64, seen: u64, cpu: u64) -> Verdict {
        let past = Some(Past { runs: 3, cpu: Duration::from_millis(cpu) });
        weigh(Stake { whole: whole * MB, seen: seen * MB }, past).verdict
    }

    #[test]
    fn what_these_programs_get() {
        // clang --version, a small file, a large one; 224 MB, of which 40 are touched.
        assert_eq!(verdict(224, 224, 20), Verdict::Nothing);
        assert_eq!(verdict(224, 40, 300), Verdict::Nothing);
        assert_eq!(verdict(224, 40, 400), Verdict::Seen);
        assert_eq!(verdict(224, 224, 3000), Verdict::Whole);
        // Laid out by BOLT, for seconds; and a server.
        assert_eq!(verdict(276, 34, 5000), Verdict::Seen);
        assert_eq!(verdict(276, 34, 64_000), Verdict::Whole);
        // 64 MB of jumps, for less than a second.
        assert_eq!(verdict(62, 62, 750), Verdict::Whole);
        let unknown = weigh(Stake { whole: 224 * MB, seen: 224 * MB }, None);
        assert_eq!(unknown.verdict, Verdict::Whole);
    }

    #[test]
    fn one_line_with_the_figures() {
        let stake = Stake { whole: 200 * MB, seen: 20 * MB };
        let past = |runs, ms| Some(Past { runs, cpu: Duration::from_millis(ms) });
        for (past, line) in [
            (None, "to copy 200 MB takes about 90 ms, and nothing is known of past runs: worth it"),
            (
                past(1, 20),
                "to copy 200 MB takes about 90 ms, and a past run took 20 ms of CPU time: not worth it",
            ),
            (
                past(7, 200),
                "to copy 200 MB takes about 90 ms, and 7 past runs took 200 ms of CPU time each: worth it \
                 for the 20 MB that were touched (9.0 ms)",
            ),
            (
                past(2, 36_000),
                "to copy 200 MB takes about 90 ms, and 2 past runs took 36 s of CPU time each: worth it",
            ),
        ] {
            assert_eq!(weigh(stake, past).to_string(), line);
        }
    }

    fn stake() -> impl Strategy<Value = Stake> {
        let bytes = || prop_oneof![0..1_u64 << 32, any::<u64>()];
        (bytes(), bytes()).prop_map(|(a, b)| Stake { whole: a.max(b), seen: a.min(b) })
    }

    fn past() -> impl Strategy<Value = Past> {
        let cpu = prop_oneof![0..10_000_000_u64, any::<u64>()];
        (1..100_u32, cpu).prop_map(|(runs, cpu)| Past { runs, cpu: Duration::from_micros(cpu) })
    }

    proptest! {
        /// Whatever is copied of a known program costs at most its share of the run.
        #[test]
        fn a_copy_never_costs_more_than_it_may(stake in stake(), past in past()) {
            let weighed = weigh(stake, Some(past));
            prop_assert!(cost(weighed.copied()) <= past.cpu / WORTH);
            prop_assert!(!weighed.to_string().contains('\n'));
        }

        /// A program that runs longer never gets fewer bytes copied.
        #[test]
        fn monotone_in_the_lifetime(stake in stake(), a in past(), b in past()) {
            let (short, long) = if a.cpu <= b.cpu { (a, b) } else { (b, a) };
            let copied = |past| weigh(stake, Some(past)).copied();
            prop_assert!(copied(short) <= copied(long) && copied(long) <= weigh(stake, None).copied());
        }

        /// If a copy is not worth its cost, neither is a larger one; if the whole of a larger one is worth
        /// its cost, so is the whole of a smaller one.
        #[test]
        fn monotone_in_the_size(stake in stake(), by in (0..1_u64 << 32, 0..1_u64 << 32), past in past()) {
            let whole = stake.whole.saturating_add(by.0.max(by.1));
            let larger = Stake { whole, seen: stake.seen.saturating_add(by.0.min(by.1)).min(whole) };
            let verdict = |stake| weigh(stake, Some(past)).verdict;
            if verdict(stake) == Verdict::Nothing {
                prop_assert_eq!(verdict(larger), Verdict::Nothing);
            }
            if verdict(larger) == Verdict::Whole {
                prop_assert_eq!(verdict(stake), Verdict::Whole);
            }
        }
    }
}
