// SPDX-License-Identifier: Apache-2.0
//! What the machine's units are at one time: their processes, and how much of their code is huge.

use std::collections::BTreeMap;

const MB: u64 = 1 << 20;

/// A unit, as sample.sh prints it.
#[derive(Clone, Debug)]
pub struct Unit {
    /// The main process, the time of its start, the number of restarts, and the state.
    pub identity: String,
    /// Bytes of code on huge pages in the process of the unit with the most.
    pub huge: u64,
    /// Bytes of code of that process that are in memory.
    pub code: u64,
}

/// Reads what sample.sh has printed.
pub fn units(text: &str) -> BTreeMap<String, Unit> {
    text.lines().filter_map(unit).collect()
}

fn unit(line: &str) -> Option<(String, Unit)> {
    let words: Vec<&str> = line.split(' ').collect();
    let [name, identity @ .., huge, code] = words.as_slice() else { return None };
    let bytes = |kib: &str| Some(kib.parse::<u64>().ok()? << 10);
    let unit = Unit { identity: identity.join(" "), huge: bytes(huge)?, code: bytes(code)? };
    (identity.len() == 4).then_some((name.to_string(), unit))
}

/// Returns the coverage of each unit before and after, as a table.
pub fn table(before: &BTreeMap<String, Unit>, after: &BTreeMap<String, Unit>) -> String {
    let mut text = format!("{:24} {:>9} {:>9} {:>9}\n", "unit", "before", "after", "code");
    let megabytes = |bytes: u64| format!("{:.1} MB", bytes as f64 / MB as f64);
    for (name, first) in before {
        let Some(last) = after.get(name) else { continue };
        let [begin, end, all] = [first.huge, last.huge, last.code].map(megabytes);
        text += &format!("{name:24} {begin:>9} {end:>9} {all:>9}\n");
    }
    text
}
