// SPDX-License-Identifier: Apache-2.0
//! Parsers of the files of /proc that only a diagnosis reads (proc(5)). Lines that are not as described
//! there are left out.

use crate::facts::{Limit, Zone};
use std::collections::BTreeMap;

const COUNTERS: [&str; 5] =
    ["compact_stall", "compact_fail", "thp_fault_alloc", "thp_fault_fallback", "thp_collapse_alloc"];

/// Reads the lines `Node 0, zone   Normal   305   325 ...` of /proc/buddyinfo.
pub fn zones(buddyinfo: &str) -> Vec<Zone> {
    let zone = |line: &str| {
        let (node, rest) = line.strip_prefix("Node ")?.split_once(", zone")?;
        let mut words = rest.split_whitespace();
        let name = words.next()?.to_string();
        let free = words.map(str::parse).collect::<Result<Vec<u64>, _>>().ok()?;
        Some(Zone { node: node.trim().parse().ok()?, name, free })
    };
    buddyinfo.lines().filter_map(zone).collect()
}

/// Reads the lines `name value` of /proc/vmstat on the allocation of huge pages.
pub fn counters(vmstat: &str) -> BTreeMap<String, u64> {
    let count = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        COUNTERS.contains(&name).then_some((name.to_string(), value.trim().parse().ok()?))
    };
    vmstat.lines().filter_map(count).collect()
}

/// Reads the line `Max locked memory   8388608   unlimited   bytes` of /proc/PID/limits.
pub fn memlock(limits: &str) -> Option<Limit> {
    let line = limits.lines().find_map(|l| l.strip_prefix("Max locked memory"))?;
    let mut words = line.split_whitespace();
    let mut next = || match words.next()? {
        "unlimited" => Some(None),
        number => Some(Some(number.parse::<u64>().ok()?)),
    };
    Some(Limit { soft: next()?, hard: next()? })
}

/// Reads a list such as `0-3,8`.
pub fn numbers(text: &str) -> Option<Vec<u32>> {
    /// More nodes than any kernel supports (2^10).
    const MOST: u32 = 1 << 12;
    let mut all = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last >= MOST {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::fields::field;
    use proptest::prelude::*;

    #[test]
    fn lines_of_proc() {
        let zone = |node, name: &str, free: &[u64]| Zone { node, name: name.into(), free: free.to_vec() };
        let text = "Node 0, zone      DMA      1      0      3 \nNode 12, zone Normal\nNode x, zone A 1\nno\nNode 1, zone B 1 -1\n";
        assert_eq!(zones(text), [zone(0, "DMA", &[1, 0, 3]), zone(12, "Normal", &[])]);
        let limits = "Max locked memory         65536                unlimited            bytes\n";
        assert_eq!(memlock(limits), Some(Limit { soft: Some(65536), hard: None }));
        assert_eq!(memlock("Max locked memory  x y bytes"), None);
        assert_eq!(numbers("0-2,5"), Some(vec![0, 1, 2, 5]));
        for odd in ["", "x", "0-4294967295", "3-", "-"] {
            assert_eq!(numbers(odd), None, "{odd}");
        }
        assert_eq!(numbers("3-1"), Some(vec![]));
        let vmstat = "thp_fault_alloc 5\nnr_free_pages 1\ncompact_stall x\n";
        assert_eq!(counters(vmstat), BTreeMap::from([("thp_fault_alloc".to_string(), 5)]));
        assert_eq!(field("model name\t: A: B\n", "model name"), Some("A: B"));
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "(Node [0-9]{1,12}, zone [a-z]{0,3}( -?[0-9]{1,22}){0,4}\n|Max locked memory [a-z0-9 ]{0,20}\n|[0-9,-]{0,12}|\\PC{0,9}\n){0,6}") {
            let read = zones(&text);
            prop_assert!(read.len() <= text.lines().count());
            counters(&text);
            memlock(&text);
            prop_assert!(numbers(&text).is_none_or(|all| all.len() < 1 << 16));
            field(&text, "Node 0, zone");
        }
    }
}
