// SPDX-License-Identifier: Apache-2.0
//! Figures of the measurements that tables and statements share.

use crate::cow::case::Pattern;
use crate::cow::write::Forked;
use crate::latency::Latencies;
use hugelift_measure::stats::median;

pub(super) const NS: f64 = 1e-9;

/// The percentiles of a latency table: key, title and share.
pub(super) const SHARES: [(&str, &str, f64); 4] =
    [("p50", "p50", 0.5), ("p99", "p99", 0.99), ("p999", "p99.9", 0.999), ("max", "max", 1.0)];

pub(super) fn name(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::OnePerHuge => "one write per huge page",
        Pattern::Random => "an eighth, at random",
        Pattern::Every => "every page",
    }
}

/// Returns the median over the runs of a case.
pub(super) fn middle(runs: &[Forked], of: impl Fn(&Forked) -> Option<f64>) -> Option<f64> {
    median(&runs.iter().filter_map(of).collect::<Vec<f64>>()).ok()
}

pub(super) fn latencies(runs: &[Forked]) -> Latencies {
    Latencies::new(runs.iter().flat_map(|run| run.writes.iter().copied()).collect())
}

/// Returns the time of all writes of a run in seconds.
pub(super) fn total(run: &Forked) -> f64 {
    run.writes.iter().map(|ns| f64::from(*ns)).sum::<f64>() * NS
}
