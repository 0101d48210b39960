// SPDX-License-Identifier: Apache-2.0
//! `hugelift lab`: experiments that show what huge pages do on this machine.

mod bar;
mod cow;
mod memcpy;
mod munmap;
mod output;
mod reclaim;
mod tlb;
mod walks;

use crate::FAILED;
use crate::failure::{Exit, Failure};
use anyhow::Result;
use bar::Bar;
use clap::{Args, Subcommand};
use hugelift_lab::progress::Progress;
use hugelift_lab::results::{Ended, Outcome, Report};
use hugelift_lab::{ALL, Experiment, perform, saved};
use hugelift_linux::io::console::say;
use hugelift_measure::interrupt;
pub use output::OutputArgs;

/// Run an experiment that shows what huge pages do on this machine
///
/// Each experiment prints its figures, draws them (--html), and says in two sentences what they mean
/// on this machine. It takes at most 10 minutes (60 s with --quick), needs no root, and restores the
/// settings that it changes. ctrl-C ends it; what was measured before is shown. The last result is
/// stored for `hugelift doctor`.
#[derive(Args, Debug)]
pub struct LabArgs {
    #[command(subcommand)]
    experiment: Which,
}

#[derive(Subcommand, Debug)]
enum Which {
    Tlb(tlb::TlbArgs),
    Munmap(munmap::MunmapArgs),
    Reclaim(reclaim::ReclaimArgs),
    Memcpy(memcpy::MemcpyArgs),
    Cow(cow::CowArgs),
    Walks(walks::WalksArgs),
    All(AllArgs),
}

/// Run every experiment in turn, and make one report
#[derive(Args, Debug)]
struct AllArgs {
    #[command(flatten)]
    output: OutputArgs,
}

/// Performs the experiments, and prints their reports.
///
/// # Errors
/// An experiment cannot be done, or its report cannot be written.
pub fn run(args: &LabArgs) -> Result<Exit, Failure> {
    match &args.experiment {
        Which::Tlb(args) => {
            let options = args.options()?;
            one("tlb", &args.output, |p| hugelift_lab::tlb::run(&options, p))
        }
        Which::Munmap(args) => {
            let options = args.options()?;
            one("munmap", &args.output, |p| hugelift_lab::munmap::run(&options, p))
        }
        Which::Reclaim(args) => {
            let options = hugelift_lab::reclaim::Options { quick: args.output.quick };
            one("reclaim", &args.output, |p| hugelift_lab::reclaim::run(&options, p))
        }
        Which::Memcpy(args) => one("memcpy", &args.output, |p| hugelift_lab::memcpy::run(&args.options(), p)),
        Which::Cow(args) => one("cow", &args.output, |p| hugelift_lab::cow::run(&args.options(), p)),
        Which::Walks(args) => walks::run(args),
        Which::All(args) => all(&args.output),
    }
}

/// Performs the experiment called `name` as `run` does it, and prints its report.
fn one(
    name: &str,
    output: &OutputArgs,
    run: impl FnOnce(&mut Progress) -> Result<Outcome>,
) -> Result<Exit, Failure> {
    output.check()?;
    interrupt::prepare()?;
    let experiment = ALL.iter().find(|e| e.name == name);
    let experiment = experiment.ok_or_else(|| format!("there is no experiment '{name}'"))?;
    let report = measured(experiment, output.quick, run)?;
    output.print(std::slice::from_ref(&report))?;
    Ok(if report.ended == Ended::Interrupted { Exit::INTERRUPTED } else { Exit::SUCCESS })
}

fn all(output: &OutputArgs) -> Result<Exit, Failure> {
    output.check()?;
    interrupt::prepare()?;
    let (mut reports, mut failed) = (Vec::new(), false);
    for experiment in ALL {
        match measured(experiment, output.quick, |progress| (experiment.run)(output.quick, progress)) {
            Ok(report) => reports.push(report),
            // The other experiments may work.
            Err(error) => {
                say(&format!("{error:#}"));
                failed = true;
            }
        }
        if interrupt::check().is_err() {
            break;
        }
    }
    output.print(&reports)?;
    let interrupted = reports.iter().any(|r| r.ended == Ended::Interrupted) || interrupt::check().is_err();
    Ok(match (interrupted, failed) {
        (true, _) => Exit::INTERRUPTED,
        (false, true) => Exit(FAILED),
        (false, false) => Exit::SUCCESS,
    })
}

fn measured(
    experiment: &Experiment,
    quick: bool,
    run: impl FnOnce(&mut Progress) -> Result<Outcome>,
) -> Result<Report> {
    let bar = Bar::new(experiment.name);
    let report = perform(experiment, quick, |share, what| bar.show(share, what), run)?;
    bar.end();
    // An incomplete or doubtful result must not replace a good one.
    if report.ended == Ended::Complete
        && report.is_sure()
        && let Some(folder) = saved::folder()
        && let Err(error) = saved::save(&folder, &report)
    {
        say(&format!("the result is not stored for hugelift doctor: {error:#}"));
    }
    Ok(report)
}
