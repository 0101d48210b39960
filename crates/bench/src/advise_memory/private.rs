// SPDX-License-Identifier: Apache-2.0
//! Heap and anonymous memory: a program that runs on is asked about, then compared with itself, this memory on huge pages and on
//! small ones in periods of 50 ms.

use super::said::{Row, Said};
use super::workloads::Running;
use crate::options::Options;
use crate::programs::hugelift;
use anyhow::{Context as _, Result, ensure};
use hugelift_measure::stats::{Estimate, Interval};
use serde_json::Value;
use std::process::Command;

/// How long it is asked about. The verdict on data needs no samples.
const ASKED: &str = "1s";
/// How long it is compared, in seconds.
const SECONDS: &str = "20";
/// What compare says of a process of whose memory nothing can be made huge.
const NOTHING: &str = "there is nothing to compare";

/// Asks about a program and measures it.
///
/// # Errors
/// It could not be compared, or ended.
pub fn row(options: &Options, running: &Running) -> Result<Row> {
    let said = Said::of(running.pid(), ASKED)?;
    let mut compare = Command::new(hugelift()?);
    compare.args(["compare", "--same-copy", "--parts", "heap,anon", "--json"]);
    match options.rounds {
        Some(pairs) => compare.args(["--pairs", &pairs.to_string()]),
        None => compare.args(["--time", SECONDS]),
    };
    let out = compare.arg("--pid").arg(running.pid().to_string()).output().context("hugelift compare")?;
    let why = String::from_utf8_lossy(&out.stderr);
    if !out.status.success() && why.contains(NOTHING) {
        return Ok(Row { said, huge: 0, ratio: None });
    }
    ensure!(out.status.success(), "hugelift compare: {why}");
    let seen: Value = serde_json::from_slice(&out.stdout).context("what compare prints")?;
    let (huge, ratio) = measured(&seen)?;
    Ok(Row { said, huge, ratio: Some(ratio) })
}

/// Returns how much more was huge in the lifted periods, and the ratio of CPU time per unit of work.
fn measured(seen: &Value) -> Result<(u64, Estimate)> {
    let kind = &seen["live"]["metric"]["kind"];
    ensure!(kind == "cpu-per-work", "compare found no measure of its work, only {kind}");
    let huge = |side: usize| seen["sides"][side]["memory"]["writable_huge"].as_u64();
    let huge = huge(1).zip(huge(0)).context("no memory in what compare prints")?;
    let ratios = seen["variants"][0]["ratios"].as_array().context("no ratios in what compare prints")?;
    let ratio =
        ratios.iter().find(|ratio| ratio["figure"] == "cpu-per-unit").context("no ratio of CPU time")?;
    let ends = ratio["low"].as_f64().zip(ratio["high"].as_f64());
    let estimate = Estimate {
        point: ratio["point"].as_f64().context("no estimate")?,
        interval: ends.map(|(low, high)| Interval { low, high }),
        count: ratio["pairs"].as_u64().unwrap_or_default() as usize,
    };
    Ok((huge.0.saturating_sub(huge.1), estimate))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn issue_31_a_ratio_counts_only_per_unit_of_work() {
        let seen = |kind: &str| {
            json!({
                "live": { "metric": { "kind": kind } },
                "sides": [{ "memory": { "writable_huge": 2 << 20 } }, { "memory": { "writable_huge": 8 << 20 } }],
                "variants": [{ "ratios": [
                    { "figure": "rate", "point": 1.1, "low": 1.0, "high": 1.2, "pairs": 9 },
                    { "figure": "cpu-per-unit", "point": 0.9, "low": 0.8, "high": 0.95, "pairs": 9 },
                ] }],
            })
        };
        let (huge, ratio) = measured(&seen("cpu-per-work")).unwrap();
        assert_eq!((huge, ratio.point, ratio.count), (6 << 20, 0.9, 9));
        assert_eq!(ratio.interval, Some(Interval { low: 0.8, high: 0.95 }));
        assert!(measured(&seen("cpu-per-second")).is_err());
    }
}
