// SPDX-License-Identifier: Apache-2.0
//! Runs an experiment and makes a report of its outcome.

use crate::clock::utc_now;
use crate::progress::Progress;
use crate::read_machine::read_machine;
use crate::results::{Outcome, Report, VERSION};
use anyhow::{Context as _, Result};
use hugelift_linux::machine::tree::Tree;
use std::time::{Duration, Instant};

/// The most time that an experiment may take with `--quick`.
const QUICK: Duration = Duration::from_secs(60);

/// The most time that it may take without `--quick`.
const THOROUGH: Duration = Duration::from_secs(600);

/// One part in this many is kept for the end: to finish a step and to put back settings.
const RESERVE: u32 = 10;

/// An experiment, as `hugelift lab all` runs it.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// The word after `hugelift lab`.
    pub name: &'static str,
    /// What it is about, in one line.
    pub title: &'static str,
    /// Runs it with its usual options; `true` stands for `--quick`.
    pub run: fn(bool, &mut Progress) -> Result<Outcome>,
}

/// Returns the time that an experiment has for measuring: nine tenths of what it may take.
fn budget(quick: bool) -> Duration {
    let all = if quick { QUICK } else { THOROUGH };
    all - all / RESERVE
}

/// Runs an experiment and adds the machine, the date and the duration. `show` is called from time to time
/// with the share that is done (0 to 1) and what is being measured.
///
/// # Errors
/// The errors of the experiment. An experiment that was stopped is not an error.
pub fn perform(
    experiment: &Experiment,
    quick: bool,
    show: impl FnMut(f64, &str),
    run: impl FnOnce(&mut Progress) -> Result<Outcome>,
) -> Result<Report> {
    let date = utc_now();
    let began = Instant::now();
    let mut progress = Progress::new(budget(quick), show);
    let outcome = run(&mut progress).with_context(|| format!("lab {}", experiment.name))?;
    Ok(Report {
        version: VERSION,
        experiment: experiment.name.into(),
        title: experiment.title.into(),
        quick,
        ended: progress.ended(),
        seconds: began.elapsed().as_secs_f64(),
        date,
        machine: read_machine(&Tree::default()),
        disturbance: progress.disturbance(),
        outcome,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Ended;

    #[test]
    fn a_report_says_where_when_and_how() {
        let experiment = Experiment { name: "x", title: "nothing", run: |_, _| Ok(Outcome::default()) };
        let mut seen = Vec::new();
        let report = perform(
            &experiment,
            true,
            |share, what| seen.push((share, what.to_string())),
            |progress| {
                assert!(progress.go_on(0.5, "half"));
                assert!(progress.left() <= QUICK);
                Ok(Outcome { notes: vec!["n".into()], ..Outcome::default() })
            },
        );
        let report = report.unwrap();
        assert_eq!((report.ended, report.quick, report.version), (Ended::Complete, true, VERSION));
        assert!(report.date.len() == 20 && report.date.ends_with('Z'), "{}", report.date);
        assert!(report.machine.cpus > 0 && report.machine.base_page_bytes >= 4096);
        assert_eq!(seen, [(0.5, "half".to_string())]);
        let failed = perform(&experiment, true, |_, _| {}, |_| anyhow::bail!("no memory"));
        assert_eq!(format!("{:#}", failed.unwrap_err()), "lab x: no memory");
    }
}
