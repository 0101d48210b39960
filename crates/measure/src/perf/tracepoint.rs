// SPDX-License-Identifier: Apache-2.0
//! The numbers by which perf_event_open(2) knows the tracepoints of the kernel.

/// Where tracefs may be mounted.
pub(super) const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Returns the number of a tracepoint, `SYSTEM/NAME`, if its file can be read.
pub(crate) fn number(name: &str) -> Option<u64> {
    let id =
        |root: &&str| std::fs::read_to_string(format!("{root}/events/{name}/id")).ok()?.trim().parse().ok();
    TRACEFS.iter().find_map(id)
}
