// SPDX-License-Identifier: Apache-2.0
//! Untrusted names as values of labels.
//!
//! Others choose the names of programs, units and reasons. A value of a label is printable UTF-8 of a limited length, and a
//! family has a limited number of values: each is a time series that Prometheus stores.

use hugelift_core::printable::Escape;
use std::collections::BTreeMap;

/// Bytes of a value at most, before quotes and backslashes are escaped in the text format.
pub const MAX_BYTES: usize = 128;
/// The value that stands for all that have none of their own.
pub const OTHER: &str = "other";

/// The labels of a sample: names and values.
pub type Labels = Vec<(&'static str, String)>;

/// Shows what a cut value lacks.
const CUT: &str = "...";

/// Returns a name as the value of a label. Of a long path the end tells more, so the beginning is cut.
pub fn value(name: &(impl Escape + ?Sized)) -> String {
    let text = name.escaped().to_string();
    let Some(over) = text.len().checked_sub(MAX_BYTES).filter(|over| *over > 0) else { return text };
    let start = (over + CUT.len()..text.len()).find(|at| text.is_char_boundary(*at));
    format!("{CUT}{}", &text[start.unwrap_or(text.len())..])
}

/// Returns counts by name as counts by value. The `limit` largest keep their value, and [`OTHER`] has the sum of the rest.
pub fn limited(counts: &BTreeMap<String, u64>, limit: usize) -> BTreeMap<String, u64> {
    let mut by_value: BTreeMap<String, u64> = BTreeMap::new();
    for (name, count) in counts {
        add(&mut by_value, value(name.as_str()), *count);
    }
    let mut rest: Vec<(String, u64)> = by_value.into_iter().collect();
    rest.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let rare = rest.split_off(limit.min(rest.len()));
    let mut kept: BTreeMap<String, u64> = rest.into_iter().collect();
    for (_, count) in rare {
        add(&mut kept, OTHER.into(), count);
    }
    kept
}

fn add(counts: &mut BTreeMap<String, u64>, value: String, more: u64) {
    let count = counts.entry(value).or_default();
    *count = count.saturating_add(more);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn issue_33_a_long_path_keeps_its_end() {
        let path = format!("/{}/bin/program", "folder/".repeat(40));
        let shown = value(path.as_str());
        assert_eq!(shown.len(), MAX_BYTES);
        assert!(shown.starts_with("...") && shown.ends_with("/bin/program"), "{shown}");
    }

    #[test]
    fn issue_33_a_short_name_stays() {
        assert_eq!(value("/usr/bin/redis-server"), "/usr/bin/redis-server");
        assert_eq!(value(&b"a\nb\xff"[..]), "a\\nb\\xff");
    }

    #[test]
    fn issue_33_rare_reasons_are_summed() {
        let counts = (0..10).map(|i| (format!("reason-{i}"), i)).collect();
        let limited = limited(&counts, 3);
        assert_eq!(limited.len(), 4);
        assert_eq!((limited["reason-9"], limited[OTHER]), (9, (0..7).sum::<u64>()));
    }

    proptest! {
        #[test]
        fn issue_33_no_value_is_long_or_unprintable(name: Vec<u8>, times in 1..100usize) {
            let shown = value(&name.repeat(times)[..]);
            prop_assert!(shown.len() <= MAX_BYTES);
            prop_assert!(!shown.chars().any(char::is_control));
        }
    }
}
