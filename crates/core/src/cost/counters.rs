// SPDX-License-Identifier: Apache-2.0
//! What the machine did for huge pages, from `/proc/vmstat` (Documentation/admin-guide/mm/transhuge.rst in Linux,
//! "Monitoring usage"). The counters are of all processes.

use std::collections::BTreeMap;

/// Counters, or what they begin with: some have a line for each zone.
const NAMES: [&str; 12] = [
    "thp_fault_alloc",
    "thp_fault_fallback",
    "thp_split_page",
    "thp_split_page_failed",
    "thp_split_pmd",
    "thp_collapse_alloc",
    "thp_collapse_alloc_failed",
    "thp_zero_page_alloc",
    "compact_stall",
    "compact_fail",
    "compact_success",
    ALLOCSTALL,
];

/// Times that an allocation had to free pages itself, which the kernel counts by zone.
const ALLOCSTALL: &str = "allocstall";

/// Counters of the machine by their names in `/proc/vmstat`; those of the zones are added up.
#[derive(Clone, Default, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(transparent)]
pub struct Counters(pub BTreeMap<String, u64>);

/// Reads the counters from the text of `/proc/vmstat`. What a kernel does not count is not there.
pub fn parse(text: &str) -> Counters {
    let mut all: BTreeMap<String, u64> = BTreeMap::new();
    for line in text.lines() {
        let Some((name, value)) = line.split_once(' ') else { continue };
        let name = if name.starts_with("allocstall_") { ALLOCSTALL } else { name };
        if let (true, Ok(value)) = (NAMES.contains(&name), value.trim().parse::<u64>()) {
            let sum = all.entry(name.to_string()).or_default();
            *sum = sum.saturating_add(value);
        }
    }
    Counters(all)
}

impl Counters {
    /// Returns a counter; `None` if the kernel has none of this name.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    /// Returns what came between `before` and this.
    #[must_use]
    pub fn since(&self, before: &Counters) -> Counters {
        let new = |(name, now): (&String, &u64)| Some((name.clone(), now.saturating_sub(before.get(name)?)));
        Counters(self.0.iter().filter_map(new).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "nr_free_pages 5494\nallocstall_dma 0\nallocstall_normal 7\nallocstall_movable 5\n\
        compact_stall 31\ncompact_fail 30\nthp_fault_alloc 12\nthp_fault_fallback_charge 9\nthp_split_pmd x\n";

    #[test]
    fn issue_31_9_counters_of_vmstat() {
        let all = parse(TEXT);
        let get = |name| all.get(name);
        assert_eq!(
            (get("allocstall"), get("compact_stall"), get("thp_fault_alloc")),
            (Some(12), Some(31), Some(12))
        );
        assert_eq!(
            (get("thp_split_pmd"), get("thp_fault_fallback_charge"), get("nr_free_pages")),
            (None, None, None)
        );
        let later = parse("allocstall_normal 20\ncompact_stall 30\nthp_split_page 4\n").since(&all);
        // A counter that only one of them has says nothing.
        assert_eq!(
            later.0.into_iter().collect::<Vec<_>>(),
            [("allocstall".into(), 8), ("compact_stall".into(), 0)]
        );
    }

    proptest! {
        #[test]
        fn issue_31_9_no_text_hurts(text in "(allocstall_[a-z]{0,3}|thp_fault_alloc|x| |[0-9]{0,25}|\n){0,40}") {
            let _ = parse(&text);
        }
    }
}
