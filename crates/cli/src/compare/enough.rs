// SPDX-License-Identifier: Apache-2.0
//! The options that say when there are enough pairs.

use clap::Args;
use hugelift_core::quantity;
use hugelift_measure::stopping::{LEAST_PAIRS, Rule};
use std::time::Duration;

/// When there are enough pairs.
#[derive(Args, Clone, Debug)]
pub struct EnoughArgs {
    /// The number of pairs [default: as many as 5 seconds allow, 10 to 200]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub pairs: Option<u32>,

    /// Stop when the half-width of the interval is below this, as in 1% (checked after 12 pairs and
    /// then at growing distances, because frequent checks would make the interval too narrow)
    #[arg(long, value_name = "PERCENT", value_parser = share)]
    pub until: Option<f64>,

    /// Stop after this time, as in 5 (seconds), 500ms, 90s or 2m [default with --pid: 60]
    #[arg(long, value_name = "TIME", value_parser = quantity::positive_duration)]
    pub time: Option<Duration>,
}

impl EnoughArgs {
    /// Returns the rule by which the measurement ends.
    pub fn rule(&self) -> Rule {
        Rule { pairs: self.pairs.map(|n| n as usize), until: self.until, time: self.time }
    }

    /// Returns the rule by which a measurement ends that takes `time` unless an option says otherwise.
    pub fn rule_or(&self, time: Duration) -> Rule {
        match self.rule() {
            rule if rule == Rule::default() => Rule { time: Some(time), ..rule },
            rule => rule,
        }
    }

    /// Returns a warning if there are too few pairs for a verdict.
    pub fn warning(&self) -> Option<String> {
        let few = self.pairs.filter(|&n| (n as usize) < LEAST_PAIRS)?;
        Some(format!(
            "{few} pairs are too few for an interval and a verdict: use --pairs {LEAST_PAIRS} or more"
        ))
    }
}

/// Parses `--until`: `1%` and `1` are 0.01.
fn share(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>().ok();
    let number = number.filter(|&n| n > 0.0 && n <= 100.0);
    number.map(|n| n / 100.0).ok_or_else(|| format!("'{text}' is not a percentage from 0 to 100, as in 1%"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares() {
        assert_eq!(share("1%"), Ok(0.01));
        assert_eq!(share("0.5"), Ok(0.005));
        for bad in ["", "%", "0", "-1%", "101%", "nan", "x"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }
}
