// SPDX-License-Identifier: Apache-2.0
//! The progress bar on stderr. It is hidden if stderr is not a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// Steps of the bar.
const STEPS: u64 = 1000;

/// The bar, which is removed when dropped.
pub struct Bar {
    bar: ProgressBar,
}

impl Bar {
    /// Makes an empty bar for an experiment.
    pub fn new(name: &str) -> Bar {
        let bar = ProgressBar::new(STEPS);
        if let Ok(style) = ProgressStyle::with_template("{prefix} {bar:24} {msg}") {
            bar.set_style(style);
        }
        bar.set_prefix(format!("lab {name}"));
        Bar { bar }
    }

    /// Shows that this share (0 to 1) is done, and what comes now.
    pub fn show(&self, share: f64, what: &str) {
        self.bar.set_position((share * STEPS as f64) as u64);
        self.bar.set_message(what.to_string());
        self.bar.tick();
    }

    /// Removes the bar.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.end();
    }
}
