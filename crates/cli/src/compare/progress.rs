// SPDX-License-Identifier: Apache-2.0
//! The progress bar on stderr, with the estimate so far. It is hidden if stderr is not a terminal.

use hugelift_measure::stats::Estimate;
use hugelift_measure::stopping::Rule;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// Steps of the bar.
const STEPS: u64 = 1000;

/// The bar.
pub struct Progress {
    bar: ProgressBar,
    rule: Rule,
}

impl Progress {
    /// Makes an empty bar for a measurement that ends by `rule`.
    pub fn new(rule: Rule) -> Progress {
        let bar = ProgressBar::new(STEPS);
        if let Ok(style) = ProgressStyle::with_template("{bar:24} {msg}") {
            bar.set_style(style);
        }
        Progress { bar, rule }
    }

    /// Shows that a side has a run that is not timed.
    pub fn warming_up(&self, side: &str) {
        self.bar.set_message(format!("warm-up: {side}"));
        self.bar.tick();
    }

    /// Shows that `count` pairs are done.
    pub fn after(
        &self,
        count: usize,
        elapsed: Duration,
        names: &[&str],
        estimates: impl Fn() -> Vec<Option<Estimate>>,
    ) {
        // Computing the estimates takes time.
        if self.bar.is_hidden() {
            return;
        }
        let estimates = estimates();
        let width = estimates.iter().flatten().filter_map(Estimate::half_width).reduce(f64::max);
        let shown = names.iter().zip(&estimates).filter_map(|(name, e)| {
            let e = e.as_ref()?;
            Some(match e.interval {
                Some(_) => format!("{name} {e:.3}"),
                None => format!("{name} {:.3}", e.point),
            })
        });
        let message = format!("pair {count}: {}", shown.collect::<Vec<_>>().join(", "));
        self.bar.set_position((self.rule.progress(count, elapsed, width) * STEPS as f64) as u64);
        self.bar.set_message(message);
        self.bar.tick();
    }

    /// Removes the bar.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}
