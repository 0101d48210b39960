// SPDX-License-Identifier: Apache-2.0
//! Prints the results as a table in Markdown.

use super::inputs::Inputs;
use super::totals::{Step, Totals};
use std::fmt::Write as _;

const HEAD: &str = "\
| step | CPU saved | of the fleet's | CPU paid | copies | read to prime | huge on the new image: 50, 90, 99 % after |
|---|---|---|---|---|---|---|
";

/// Returns the table.
pub fn table(inputs: &Inputs, results: &[(Step, Totals)]) -> String {
    let mut text = HEAD.to_string();
    for (step, totals) in results {
        let _ = writeln!(text, "{}", row(inputs, *step, totals));
    }
    text
}

fn row(inputs: &Inputs, step: Step, totals: &Totals) -> String {
    let [low, middle, high] = totals.saved;
    let all = inputs.busy_cpus() * inputs.nodes() as f64;
    let share = |cpus: f64| if all > 0.0 { 100.0 * cpus / all } else { 0.0 };
    format!(
        "| {} | {middle:.1} CPUs [{low:.1}, {high:.1}] | {:.2} % [{:.2}, {:.2}] | {:.2} CPUs | {:.1} GB | {:.0} GB | {} |",
        name(step),
        share(middle),
        share(low),
        share(high),
        totals.paid,
        totals.memory_mb / 1024.0,
        totals.read_mb / 1024.0,
        [0.5, 0.9, 0.99].map(|part| minutes(totals.ready_after(part, inputs.nodes()))).join(", "),
    )
}

fn minutes(seconds: Option<f64>) -> String {
    seconds.map_or("not".into(), |seconds| format!("{:.1} min", seconds / 60.0))
}

fn name(step: Step) -> &'static str {
    match step {
        Step::Cache => "1: page cache everywhere",
        Step::Verify => "2: also `verify` on some",
        Step::Code => "3: copies of what pays",
        Step::Blind => "(copies of all, unverified)",
    }
}
