// SPDX-License-Identifier: Apache-2.0
//! Every run of a comparison as a line of comma-separated values.

use crate::failure::Failure;
use crate::output;
use anyhow::Context as _;
use hugelift_measure::comparison::Comparison;

const TITLES: [&str; 22] = [
    "side",
    "pair",
    "position",
    "wall_s",
    "user_s",
    "system_s",
    "helper_s",
    "minor_faults",
    "major_faults",
    "status",
    "peak_bytes",
    "text_whole_bytes",
    "text_huge_bytes",
    "rodata_whole_bytes",
    "rodata_huge_bytes",
    "writable_huge_bytes",
    "metric",
    "server_cpu_s",
    "figure",
    "options",
    "cpu_per_s",
    "wall_error_s",
];

/// Returns the table, with a line of titles. A value that was not seen is empty.
///
/// # Errors
/// csv reports an error, which does not happen in memory.
pub fn csv(comparison: &Comparison) -> Result<String, Failure> {
    let figure = serde_json::to_value(comparison.setting.figure).context("CSV")?;
    let figure = figure.as_str().unwrap_or_default();
    let mut rows = vec![TITLES.map(String::from)];
    for side in &comparison.sides {
        let options = side.options.as_ref().map_or_else(String::new, shell_words::join);
        for run in &side.runs {
            let memory =
                |of: fn(&hugelift_measure::comparison::Memory) -> u64| text(run.memory.as_ref().map(of));
            rows.push([
                side.name.clone(),
                run.pair.to_string(),
                run.position.to_string(),
                run.wall.to_string(),
                run.user.to_string(),
                run.system.to_string(),
                run.helper.to_string(),
                run.minor_faults.to_string(),
                run.major_faults.to_string(),
                run.status.to_string(),
                text(run.peak_bytes),
                memory(|m| m.text.whole),
                memory(|m| m.text.huge),
                memory(|m| m.rodata.whole),
                memory(|m| m.rodata.huge),
                memory(|m| m.writable_huge),
                text(run.metric),
                text(run.server_cpu),
                figure.to_string(),
                options.clone(),
                text(run.cpu_per_second),
                text(run.wall_error),
            ]);
        }
    }
    output::csv(rows)
}

fn text(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}
