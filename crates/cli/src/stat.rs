// SPDX-License-Identifier: Apache-2.0
//! `hugelift stat`: what TLB misses cost a program, by the CPU's counters. It is the upper bound of
//! what huge pages can gain.

use crate::failure::{Exit, Failure};
use crate::output;
use crate::process_id;
use clap::{Args, ValueHint};
use hugelift_core::printable::{Escape, Untrusted};
use hugelift_core::quantity;
use hugelift_heat::refusal::PerfError;
use hugelift_linux::io::console::{self, say};
use hugelift_linux::io::file_limit::raise_file_limit;
use hugelift_linux::io::output::write;
use hugelift_linux::io::read::read_within;
use hugelift_linux::lookup::resolve;
use hugelift_linux::proc::procfs::Process;
use hugelift_measure::perf::counters::{Later, Start};
use hugelift_measure::perf::watch::Watch;
use hugelift_measure::perf::workload::{Event, Signals, Workload, wait_for};
use hugelift_measure::pmu::given::Given;
use hugelift_measure::pmu::report::{Origin, StatReport};
use hugelift_measure::pmu::side_by_side::{Per, SideBySide, State};
use hugelift_report::pmu::text;
use hugelift_report::side_by_side;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Count what TLB misses cost a program: the most that huge pages can gain
///
/// Counts iTLB and dTLB page walks and, where the CPU counts them, the cycles that they take; also
/// what the kernel counts: page faults, context switches, TLB flushes. With a command the result
/// goes to stderr, and the exit status is the command's.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["pid", "counters", "command"]))]
pub struct StatArgs {
    /// Count a running process and those that it starts, until it ends, ctrl-C, or --time is over
    #[arg(short, long, value_name = "PID", value_parser = process_id::parse)]
    pid: Option<u32>,

    /// Stop counting after this time, as in 5 (seconds), 500ms, 90s or 2m; a command goes on
    #[arg(long, value_name = "TIME", value_parser = quantity::positive_duration)]
    time: Option<Duration>,

    /// Print JSON, version 1 of the schema
    #[arg(long)]
    json: bool,

    /// Write the result to FILE
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Evaluate the counts in a JSON file instead: {"note": …, "cpu": …, "counters": {EVENT: COUNT}}
    #[arg(long, value_name = "FILE", conflicts_with = "time")]
    counters: Option<PathBuf>,

    /// Show the counts of this file beside those of --counters, with the ratio of each
    #[arg(long, value_name = "FILE", requires = "counters")]
    against: Option<PathBuf>,

    /// The program, looked up on PATH, and its arguments
    #[arg(trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments, value_names = ["CMD", "ARGS"])]
    command: Vec<OsString>,
}

/// Counts and prints. With a command the exit status is the command's.
///
/// # Errors
/// Nothing can be counted, the command cannot be started, or the result cannot be printed.
pub fn run(args: &StatArgs) -> Result<Exit, Failure> {
    match (&args.counters, args.pid) {
        (Some(file), _) => given(file, args),
        (None, Some(pid)) => of_process(pid, args),
        (None, None) => of_command(args),
    }
}

/// Evaluates the counts in a file, and those in a second one beside it.
fn given(file: &Path, args: &StatArgs) -> Result<Exit, Failure> {
    let first = report_of(file)?;
    let Some(against) = &args.against else {
        print(&first, args)?;
        return Ok(Exit::SUCCESS);
    };
    let stem = |file: &Path| file.file_stem().unwrap_or(file.as_os_str()).escaped().to_string();
    // Files of the same name in two folders are told apart by their paths.
    let names = match stem(file) != stem(against) {
        true => [stem(file), stem(against)],
        false => [file.escaped().to_string(), against.escaped().to_string()],
    };
    let reports = [first, report_of(against)?];
    let states =
        names.into_iter().zip(reports).map(|(name, report)| State { name, report, share: 1.0 }).collect();
    let all = SideBySide::new(Per::Whole, states, |_, _| None);
    write_out(&if args.json { output::json(&all)? } else { side_by_side::text(&all) }, args)?;
    Ok(Exit::SUCCESS)
}

/// No file of counts is larger.
const MAX_COUNTS: u64 = 1 << 20;

fn report_of(file: &Path) -> Result<StatReport, Failure> {
    let shown = file.escaped();
    let bytes = File::open(file)
        .and_then(|file| read_within(file, MAX_COUNTS))
        .map_err(|e| format!("cannot read {shown}: {e}"))?;
    let given: Given = serde_json::from_slice(&bytes).map_err(|e| {
        format!("{shown} does not hold counts as in {{\"note\", \"cpu\", \"counters\"}}: {e}")
    })?;
    let sample = given.sample().map_err(|e| format!("{shown}: {e}"))?;
    let mut report = StatReport::new(Origin::Given, given.note.clone());
    report.cpu = Some(given.cpu.clone());
    report.add(&sample);
    given.literature(&mut report);
    Ok(report)
}

fn of_process(pid: u32, args: &StatArgs) -> Result<Exit, Failure> {
    let process = Process::new(pid);
    let name = process.read("comm")?;
    let name = Untrusted::from(name.trim_ascii());
    let failed = |e: PerfError| format!("cannot count process {pid} ({name}): {e}");
    let signals = Signals::block().map_err(|e| format!("signalfd: {e}"))?;
    raise_file_limit();
    let threads = process.threads();
    let mut watch = Watch::open(Some(process), &threads, Start::Asked, Later::Processes).map_err(failed)?;
    watch.enable();
    wait_for(pid, &signals, args.time.map(|time| Instant::now() + time));
    let many = if threads.len() == 1 { "1 thread".into() } else { format!("{} threads", threads.len()) };
    print(&watch.report(format!("process {pid} ({name}), {many} at the start")), args)?;
    Ok(Exit::SUCCESS)
}

fn of_command(args: &StatArgs) -> Result<Exit, Failure> {
    let path = resolve(&args.command[0])?;
    let mut workload = Workload::prepare(&path, &args.command)?;
    // After the fork, so that the program keeps its limit.
    raise_file_limit();
    let pid = workload.pid();
    let mut watch = Watch::open(Some(Process::new(pid)), &[pid.cast_signed()], Start::Exec, Later::Processes)
        .map_err(|e| format!("cannot count {}: {e}", path.escaped()))?;
    watch.began_now();
    workload.start()?;

    let subject = || {
        let words: Vec<_> = args.command.iter().map(|word| word.escaped().to_string()).collect();
        words.join(" ")
    };
    let mut deadline = args.time.map(|time| watch.began() + time);
    let mut result = None;
    loop {
        match workload.wait(deadline) {
            Event::Ended => break,
            Event::TimeUp => {
                result = Some(print(&watch.report(subject()), args));
                deadline = None;
            }
            Event::Signal(..) => {}
        }
    }
    // Read before wait4(2), which removes the program from /proc. The program has run, so its exit
    // status counts, even if the result cannot be written.
    if let Err(failure) = result.unwrap_or_else(|| print(&watch.report(subject()), args)) {
        say(&failure.message);
    }
    Ok(Exit(workload.end()?))
}

fn print(report: &StatReport, args: &StatArgs) -> Result<(), Failure> {
    write_out(&if args.json { output::json(report)? } else { text(report) }, args)
}

fn write_out(shown: &str, args: &StatArgs) -> Result<(), Failure> {
    if let Some(path) = &args.output {
        match write(path, shown.as_bytes()) {
            Ok(()) => return Ok(()),
            // The measurement took time: it is printed instead.
            Err(error) => say(&error.to_string()),
        }
    }
    // With a command, standard output belongs to the command.
    if args.command.is_empty() {
        console::print(shown)?
    } else {
        console::print_to_stderr(shown)?
    }
    Ok(())
}
