// SPDX-License-Identifier: Apache-2.0
//! Whether a verdict was right, by the gain that was measured.

use hugelift_measure::stats::Interval;
use std::fmt;

/// A gain that a verdict of "nothing" must not miss: 1 %.
const MISSED: f64 = 0.99;
/// A gain that a verdict of "little" must not miss: 5 %.
const NOT_LITTLE: f64 = 0.95;
/// What is above gains less than could matter.
const NO_GAIN: f64 = 0.995;

/// What became of a verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Judgement {
    Right,
    Wrong,
    Undecided,
    /// The verdict said nothing that could be wrong.
    Apart,
    /// No code could be lifted, so that nothing was measured.
    NotLifted,
}

/// Returns whether a verdict was right, by the interval of the ratio of CPU times and the bytes of code that were huge.
pub fn judgement(verdict: &str, ratio: Option<Interval>, huge: u64) -> Judgement {
    let Some(Interval { low, high }) = ratio else { return Judgement::Undecided };
    match verdict {
        _ if huge == 0 => Judgement::NotLifted,
        "little" if high < NOT_LITTLE => Judgement::Wrong,
        "little" if low >= NOT_LITTLE => Judgement::Right,
        "nothing" if high < MISSED => Judgement::Wrong,
        "nothing" if low >= MISSED => Judgement::Right,
        "probably" if high < 1.0 => Judgement::Right,
        "probably" if low > NO_GAIN => Judgement::Wrong,
        "nothing" | "little" | "probably" => Judgement::Undecided,
        _ => Judgement::Apart,
    }
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Judgement::Right => "right",
            Judgement::Wrong => "WRONG",
            Judgement::Undecided => "undecided",
            Judgement::Apart => "",
            Judgement::NotLifted => "not lifted",
        })
    }
}

/// How often verdicts were right.
#[derive(Default)]
pub struct Tally(Vec<Judgement>);

impl Tally {
    /// Counts a verdict.
    pub fn add(&mut self, judgement: Judgement) {
        self.0.push(judgement);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |wanted: Judgement| self.0.iter().filter(|found| **found == wanted).count();
        write!(
            f,
            "{} programs: {} verdicts right, {} wrong, {} undecided; of {} it could not tell, {} could not be lifted",
            self.0.len(),
            count(Judgement::Right),
            count(Judgement::Wrong),
            count(Judgement::Undecided),
            count(Judgement::Apart),
            count(Judgement::NotLifted)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_31_5_a_verdict_is_judged_by_the_whole_interval() {
        let judge = |verdict, low, high| judgement(verdict, Some(Interval { low, high }), 2 << 20);
        assert_eq!(judge("nothing", 0.97, 0.989), Judgement::Wrong);
        assert_eq!(judge("nothing", 0.97, 1.01), Judgement::Undecided);
        assert_eq!(judge("nothing", 0.99, 1.01), Judgement::Right);
        assert_eq!(judge("probably", 0.90, 0.99), Judgement::Right);
        assert_eq!(judge("probably", 0.99, 1.01), Judgement::Undecided);
        assert_eq!(judge("probably", 0.996, 1.01), Judgement::Wrong);
        assert_eq!(judge("cannot-tell", 0.5, 0.6), Judgement::Apart);
        assert_eq!(judge("little", 0.951, 0.98), Judgement::Right);
        assert_eq!(judge("little", 0.90, 0.94), Judgement::Wrong);
        assert_eq!(judgement("nothing", None, 2 << 20), Judgement::Undecided);
        assert_eq!(judgement("nothing", Some(Interval { low: 1.0, high: 1.0 }), 0), Judgement::NotLifted);
        let mut tally = Tally::default();
        for found in [Judgement::Right, Judgement::Right, Judgement::Apart] {
            tally.add(found);
        }
        assert_eq!(
            tally.to_string(),
            "3 programs: 2 verdicts right, 0 wrong, 0 undecided; of 1 it could not tell, 0 could not be lifted"
        );
    }
}
