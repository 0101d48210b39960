// SPDX-License-Identifier: Apache-2.0
//! Lines `name: value`, as many files of /proc and /sys have them (proc(5)).

/// Returns the value of the first line `name: value`, without the space around it.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|l| l.strip_prefix(name)?.trim_start().strip_prefix(':')).map(str::trim)
}
