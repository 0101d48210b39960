// SPDX-License-Identifier: Apache-2.0
//! Finds where two reports contradict each other. The tests of this crate and of the command share this file.

use super::{Answer, Claim};

/// Returns the pairs of sure claims about the same subject that cannot both be true.
pub fn contradictions<'a>(these: &'a [Claim], those: &'a [Claim]) -> Vec<(&'a Claim, &'a Claim)> {
    let sure = |claims: &'a [Claim]| claims.iter().filter(|claim| claim.sure);
    sure(these)
        .flat_map(|a| sure(those).filter(|b| b.subject == a.subject).map(move |b| (a, b)))
        .filter(|(a, b)| !agree(&a.answer, &b.answer))
        .collect()
}

/// Returns whether both can be true of one machine. A word and a range, or ranges in different units, cannot.
fn agree(one: &Answer, other: &Answer) -> bool {
    match (one, other) {
        (Answer::Word(a), Answer::Word(b)) => a == b,
        (
            Answer::Between { low, high, unit },
            Answer::Between { low: other_low, high: other_high, unit: other_unit },
        ) => unit == other_unit && low <= other_high && other_low <= high,
        _ => false,
    }
}
