// SPDX-License-Identifier: Apache-2.0
//! What an experiment states, in a form that two reports can be compared by.
//!
//! The sentences of a report are for people. Each statement behind them is also a [`Claim`] with a subject
//! that is the same in every report. An experiment calls a claim sure only if its own repetitions carry it
//! and no other program disturbed them. Two reports of one machine then must not contradict each other, which tests check.

#[cfg(test)]
pub(crate) mod contradictions;

use super::unit::Unit;
use serde::{Deserialize, Serialize};

/// One statement of an experiment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Claim {
    /// What the statement is about, as in `tlb.load.small.entries`.
    pub subject: String,
    /// What was found.
    pub answer: Answer,
    /// Whether the measurements carry the statement. What is not sure is shown as such, and
    /// `hugelift doctor` does not use it.
    pub sure: bool,
}

/// What a claim says of its subject.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// One of a few words, as in `faster`.
    Word(String),
    /// A value between two bounds.
    Between {
        /// The lower bound.
        low: f64,
        /// The upper bound.
        high: f64,
        /// The unit of both.
        unit: Unit,
    },
}

impl Claim {
    /// Returns a claim of a word.
    pub fn word(subject: impl Into<String>, word: impl Into<String>, sure: bool) -> Claim {
        Claim { subject: subject.into(), answer: Answer::Word(word.into()), sure }
    }

    /// Returns a claim of a value between `low` and `high`. A bound that is not finite makes it unsure.
    pub fn between(subject: impl Into<String>, (low, high): (f64, f64), unit: Unit, sure: bool) -> Claim {
        let sure = sure && low.is_finite() && high.is_finite();
        Claim { subject: subject.into(), answer: Answer::Between { low, high, unit }, sure }
    }
}

#[cfg(test)]
mod tests {
    use super::contradictions::contradictions;
    use super::*;

    #[test]
    fn only_sure_claims_contradict_each_other() {
        let between = |low, high, sure| Claim::between("x", (low, high), Unit::Ratio, sure);
        let found =
            |a: &Claim, b: &Claim| contradictions(std::slice::from_ref(a), std::slice::from_ref(b)).len();
        assert_eq!(found(&between(1.0, 2.0, true), &between(2.0, 3.0, true)), 0);
        assert_eq!(found(&between(1.0, 2.0, true), &between(2.1, 3.0, true)), 1);
        assert_eq!(found(&between(1.0, 2.0, true), &between(2.1, 3.0, false)), 0);
        assert_eq!(found(&between(1.0, f64::NAN, true), &between(2.1, 3.0, true)), 0);
        let word = |word| Claim::word("x", word, true);
        assert_eq!((found(&word("a"), &word("a")), found(&word("a"), &word("b"))), (0, 1));
        assert_eq!(found(&word("a"), &between(1.0, 2.0, true)), 1);
        assert_eq!(found(&word("a"), &Claim::word("y", "b", true)), 0);
    }

    #[test]
    fn claims_are_read_from_json() {
        let claims = [Claim::word("a", "b", true), Claim::between("c", (1.0, 2.0), Unit::Bytes, false)];
        let json = serde_json::to_string(&claims).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Claim>>(&json).unwrap(), claims);
    }
}
