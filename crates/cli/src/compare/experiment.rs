// SPDX-License-Identifier: Apache-2.0
//! The measurement: first an inspection of each side, which also warms up, then timed rounds until
//! there are enough.

use super::cut::{Cut, Measured};
use super::known::{Known, shell_status};
use super::nothing;
use super::options::{CompareArgs, Variant, output};
use super::progress::Progress;
use super::under_load::UnderLoad;
use crate::FAILED;
use crate::failure::Exit;
use anyhow::{Context as _, Result, bail, ensure};
use hugelift_core::printable::Escape;
use hugelift_linux::io::console::say;
use hugelift_measure::comparison::{self, Comparison, Figure, Run, Setting, Side};
use hugelift_measure::perf::watch::Watch;
use hugelift_measure::pmu::counts::About;
use hugelift_measure::pmu::side_by_side::Per;
use hugelift_measure::program::Program;
use hugelift_measure::stopping::{Reached, Rule};
use hugelift_measure::timed::Seen;
use hugelift_measure::{child, host, inspection, interrupt, rounds, timed};
use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Instant;

/// What is the same for all runs.
pub struct Experiment {
    program: Program,
    hugelift: PathBuf,
    variants: Vec<Variant>,
    bare_4k: bool,
    ignore_failure: bool,
    force: bool,
    prepare: Option<String>,
    cleanup: Option<String>,
    under_load: Option<UnderLoad>,
    figure: Figure,
    rule: Rule,
    /// Whether events are counted, and what of them was said.
    counters: bool,
    about: RefCell<Option<About>>,
    /// The message about daemons was printed; it comes once.
    said_of_daemons: Cell<bool>,
}

/// What timing has given.
struct Rounds {
    /// The runs of each side.
    results: Vec<Vec<Run>>,
    /// The order of the sides in each round.
    orders: Vec<Vec<usize>>,
    /// Why there were enough rounds.
    reached: Reached,
    /// What has ended them too soon.
    cut: Option<Cut>,
}

impl Experiment {
    /// Prepares the experiment. `argv` is the command or the server.
    ///
    /// # Errors
    /// The path of hugelift itself is unknown, or an option makes no sense.
    pub fn new(args: &CompareArgs, argv: Vec<std::ffi::OsString>) -> Result<Experiment> {
        let mut variants = args.variant.clone();
        if variants.is_empty() {
            variants.push(Variant::usual());
        }
        for (i, variant) in variants.iter().enumerate() {
            ensure!(
                variants[..i].iter().all(|other| other.name != variant.name),
                "two variants are called '{}'",
                variant.name
            );
        }
        variants.iter().try_for_each(Variant::check)?;
        let under_load = UnderLoad::new(&args.server)?;
        let figure = match (&under_load, args.figure) {
            (Some(_), _) => Figure::Metric,
            (None, choice) => choice.unwrap_or(Figure::Wall),
        };
        let program = Program {
            argv,
            cpus: args.cpu.as_ref().map_or_else(Vec::new, |cpus| cpus.0.clone()),
            input: args.input.clone(),
            output: output(&args.output),
            ..Program::default()
        };
        program.check_cpus()?;
        Ok(Experiment {
            program,
            hugelift: std::env::current_exe().context("own path")?,
            variants,
            bare_4k: args.bare_4k,
            ignore_failure: args.ignore_failure,
            force: args.force,
            prepare: args.prepare.clone(),
            cleanup: args.cleanup.clone(),
            under_load,
            figure,
            rule: args.enough.rule(),
            counters: args.counters,
            about: RefCell::new(None),
            said_of_daemons: Cell::new(false),
        })
    }

    /// Measures, and runs `--cleanup` also after a failure. Nothing runs if the files of the program
    /// at `path` show that there is nothing to lift.
    ///
    /// # Errors
    /// A run failed, or ctrl-C ended the measurement, before the first round was complete.
    pub fn run(&self, path: &Path) -> Result<Measured> {
        // With --bare-4k the sides differ even where there is nothing to lift.
        let policies = if self.force || self.bare_4k { None } else { nothing::policies(&self.variants) };
        if let Some(why) = policies.as_ref().and_then(|policies| nothing::why(path, policies)) {
            return Ok(Measured::whole(self.nothing_to_lift(&why)));
        }
        interrupt::prepare()?;
        child::adopt_orphans()?;
        let measured = self.measure(policies.is_some());
        interrupt::accept();
        let cleaned = self.cleanup.as_deref().map_or(Ok(()), |line| hook("--cleanup", line, ""));
        let mut measured = measured?;
        if let Err(error) = cleaned {
            let line = format!("{error:#}");
            measured.said = Some(measured.said.map_or(line.clone(), |said| format!("{said}; {line}")));
            measured.exit = Exit(FAILED);
        }
        Ok(measured)
    }

    /// Inspects each side, then times rounds. With `files_alone` nothing is timed if the inspections
    /// show no whole huge page.
    fn measure(&self, files_alone: bool) -> Result<Measured> {
        let names: Vec<&str> =
            std::iter::once("bare").chain(self.variants.iter().map(|v| v.name.as_str())).collect();
        let progress = Progress::new(self.rule);
        let mut known: Vec<Known> = Vec::new();
        for (side, name) in names.iter().enumerate() {
            progress.warming_up(name);
            known.push(self.inspect(side).with_context(|| name.to_string())?);
        }

        // The files could not tell, but the loaded program can.
        if files_alone && known.iter().skip(1).all(|known| known.liftable == Some(0)) {
            progress.end();
            let why = "as it was loaded, no text and no read-only data fills a huge page";
            return Ok(Measured::whole(self.nothing_to_lift(why)));
        }

        let Rounds { results, orders, reached, cut } = self.rounds(&names, &progress)?;

        // Programs that were too short to be inspected while they were timed are inspected once more.
        let unseen = |runs: &[Run]| runs.iter().all(|run| run.memory.is_none());
        for (side, _) in results.iter().enumerate().filter(|(_, runs)| unseen(runs)) {
            progress.warming_up(names[side]);
            if self.under_load.is_none() && cut.is_none() {
                let more = self.inspect(side).with_context(|| names[side].to_string())?;
                known[side].add(more);
            }
        }
        progress.end();
        let sides = results.into_iter().enumerate().zip(known).map(|((side, runs), known)| {
            let runs = runs.into_iter().zip(&orders).enumerate().map(|(round, (run, order))| {
                let position = order.iter().position(|&s| s == side).map_or(0, |p| p + 1);
                Run { pair: round + 1, position, ..run }
            });
            self.side(side, names[side], known, runs.collect())
        });
        let said = cut.as_ref().map(|cut| cut.line(orders.len()));
        let exit = cut.map_or(Exit::SUCCESS, |cut| cut.exit);
        let mut comparison = Comparison::new(self.setting(), reached, sides.collect());
        let about = self.about.borrow();
        let per = if comparison.setting.counts_transactions { Per::Transaction } else { Per::Run };
        comparison.counters =
            about.as_ref().and_then(|about| comparison::side_by_side(about, &comparison.sides, per));
        Ok(Measured { comparison, said, exit })
    }

    /// Times rounds until the rule says that there are enough, or a run fails.
    fn rounds(&self, names: &[&str], progress: &Progress) -> Result<Rounds> {
        let began = Instant::now();
        let reached = Cell::new(Reached::Pairs);
        let mut sides: Vec<rounds::Side<Run>> = names
            .iter()
            .enumerate()
            .map(|(side, name)| rounds::Side::new(name, move || self.run_once(side)))
            .collect();
        let rounds::Rounds { results, orders, failed } =
            rounds::run_drawn(&mut sides, fastrand::Rng::new(), |results, _| {
                let count = results.first().map_or(0, Vec::len);
                let estimates = || self.estimates(results);
                progress.after(count, began.elapsed(), &names[1..], estimates);
                let done = self.rule.reached(count, began.elapsed(), || width(&estimates()));
                reached.set(done.unwrap_or(reached.get()));
                done.is_none()
            });
        let cut = failed.map(|error| Cut::after(orders.len(), error)).transpose()?;
        let reached = cut.as_ref().map_or(reached.get(), |cut| cut.reached);
        Ok(Rounds { results, orders, reached, cut })
    }

    /// Returns the comparison that says why nothing was measured.
    fn nothing_to_lift(&self, why: &str) -> Comparison {
        let side = |(side, name): (usize, &str)| {
            let lifted = self.options(side).is_some();
            let (liftable, why_not) = (lifted.then_some(0), lifted.then(|| why.to_string()));
            self.side(side, name, Known { liftable, why_not, ..Known::default() }, Vec::new())
        };
        let names = std::iter::once("bare").chain(self.variants.iter().map(|v| v.name.as_str()));
        Comparison::new(self.setting(), Reached::NothingToLift, names.enumerate().map(side).collect())
    }

    fn side(&self, side: usize, name: &str, known: Known, runs: Vec<Run>) -> Side {
        let seen = runs
            .iter()
            .fold(known.seen, |seen, run| seen.max(Seen { memory: run.memory, peak_bytes: run.peak_bytes }));
        Side {
            name: name.into(),
            options: self.options(side).map(<[String]>::to_vec),
            memory: seen.memory,
            peak_bytes: seen.peak_bytes,
            liftable: known.liftable,
            why_not: known.why_not,
            runs,
        }
    }

    fn setting(&self) -> Setting {
        Setting {
            host: host::describe(),
            command: self.program.argv.iter().map(|word| word.escaped().to_string()).collect(),
            load: self.under_load.as_ref().map(|u| u.load.clone()),
            figure: self.figure,
            higher_is_better: self.under_load.as_ref().is_some_and(|u| u.higher_is_better),
            bare_4k: self.bare_4k,
            counts_transactions: self.under_load.as_ref().is_some_and(UnderLoad::counts_transactions),
            has_latency: self.under_load.as_ref().is_some_and(UnderLoad::has_latency),
            live: None,
        }
    }

    /// Estimates the ratio of the verdict's figure for each variant.
    fn estimates(&self, results: &[Vec<Run>]) -> Vec<Option<hugelift_measure::stats::Estimate>> {
        let Some((bare, rest)) = results.split_first() else { return Vec::new() };
        rest.iter().map(|runs| comparison::ratio(self.figure, bare, runs)).collect()
    }

    /// Returns the options of `hugelift run`; `None` for the bare side, which is the first.
    fn options(&self, side: usize) -> Option<&[String]> {
        side.checked_sub(1).and_then(|i| self.variants.get(i)).map(|v| v.options.as_slice())
    }

    /// Returns the program of a side, ready to run; `more` are further options of `hugelift run`.
    pub fn program(&self, side: usize, more: &[String]) -> Program {
        match self.options(side) {
            None => Program { no_thp: self.bare_4k, ..self.program.clone() },
            Some(options) => self.program.lifted(&self.hugelift, &[options, more].concat()),
        }
    }

    fn name(&self, side: usize) -> &str {
        side.checked_sub(1).and_then(|i| self.variants.get(i)).map_or("bare", |v| v.name.as_str())
    }

    fn before(&self, side: usize) -> Result<()> {
        let name = self.name(side);
        self.prepare.as_deref().map_or(Ok(()), |line| hook("--prepare", line, name))
    }

    fn inspect(&self, side: usize) -> Result<Known> {
        interrupt::check()?;
        self.before(side)?;
        if let Some(under_load) = &self.under_load {
            return under_load.inspect(
                |more| self.program(side, more),
                self.options(side).is_some(),
                self.name(side),
            );
        }
        let inspection = match self.options(side) {
            None => inspection::bare(&self.program(side, &[]))?,
            Some(options) => inspection::lifted(&self.program, &self.hugelift, options)?,
        };
        self.check(inspection.status)?;
        Ok(Known::from_inspection(inspection))
    }

    fn run_once(&self, side: usize) -> Result<Run> {
        self.before(side)?;
        if let Some(under_load) = &self.under_load {
            let (run, about) = under_load.run(&self.program(side, &[]), self.name(side), self.counters)?;
            self.note(about);
            return Ok(run);
        }
        let watch = self.counters.then(Watch::of_next_program).transpose()?;
        let timed = timed::run(&self.program(side, &[]))?;
        let counts = watch.as_ref().map(|watch| Box::new(watch.counts()));
        self.note(watch.map(|watch| watch.about().clone()));
        self.check(timed.status)?;
        if timed.left_running && !self.said_of_daemons.replace(true) {
            say("the program has left processes running; their time is not in the figures");
        }
        let cost = timed.cost;
        Ok(Run {
            wall: cost.wall,
            user: cost.user,
            system: cost.system,
            helper: cost.left_behind,
            minor_faults: cost.minor_faults,
            major_faults: cost.major_faults,
            status: shell_status(timed.status),
            peak_bytes: timed.seen.peak_bytes,
            memory: timed.seen.memory,
            counts,
            ..Run::default()
        })
    }

    /// Notes what the counts are of.
    fn note(&self, about: Option<About>) {
        if let Some(about) = about {
            self.about.replace(Some(about));
        }
    }

    fn check(&self, status: ExitStatus) -> Result<()> {
        if !status.success() && !self.ignore_failure {
            bail!(
                "{} ended with {status} (--output inherit shows its output, --ignore-failure measures it \
                 anyway)",
                self.program
            );
        }
        Ok(())
    }
}

/// Returns the half-width of the widest interval; `None` while an estimate has no interval.
fn width(estimates: &[Option<hugelift_measure::stats::Estimate>]) -> Option<f64> {
    estimates.iter().try_fold(0.0, |widest: f64, estimate| Some(widest.max(estimate.as_ref()?.half_width()?)))
}

fn hook(option: &str, line: &str, side: &str) -> Result<()> {
    let (status, said, _) = child::shell(line, &[("HUGELIFT_SIDE", side)])?;
    interrupt::check()?;
    let said = match said.trim_end() {
        "" => String::new(),
        said => format!("; its output:\n{said}"),
    };
    ensure!(status.success(), "{option} '{line}' ended with {status}{said}");
    Ok(())
}
