// SPDX-License-Identifier: Apache-2.0
//! Why processes are not lifted, in a few words.

use hugelift_core::printable::Untrusted;
use std::collections::BTreeMap;

/// Returns how often there is each reason.
pub fn count<'a>(reasons: impl Iterator<Item = &'a Untrusted>) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for why in reasons {
        // A reason with a number or a path in it would be another one each time, and is no one else's business.
        let why = why.to_string();
        let key = if why.contains(|c: char| c.is_ascii_digit() || c == '/') { "other".into() } else { why };
        *all.entry(key).or_default() += 1;
    }
    all
}
