// SPDX-License-Identifier: Apache-2.0
//! `hugelift stat`: what TLB misses cost a program, by the CPU's counters. It is the upper bound of
//! what huge pages can gain.

use crate::failure::{Exit, Failure};
use crate::output;
use crate::process_id;
use clap::{Args, ValueHint};
use hugelift_core::printable::{Escape, Untrusted};
use hugelift_core::quantity;
use hugelift_heat::files::raise_file_limit;
use hugelift_heat::refusal::PerfError;
use hugelift_linux::io::console::{self, say};
use hugelift_linux::io::output::write;
use hugelift_linux::lookup::ExecError;
use hugelift_linux::lookup::resolve;
use hugelift_linux::proc::procfs::Process;
use hugelift_measure::perf::counters::{Counters, Start};
use hugelift_measure::perf::hardware::{Hardware, NoHardware, cpus};
use hugelift_measure::perf::kernel_counts::KernelCounts;
use hugelift_measure::perf::workload::{End, Event, Signals, Workload, die_by, wait_for};
use hugelift_measure::pmu::given::Given;
use hugelift_measure::pmu::report::{Origin, StatReport};
use hugelift_measure::pmu::{Cpu, Sample};
use hugelift_report::pmu::text;
use std::ffi::OsString;
use std::path::PathBuf;
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

fn given(file: &PathBuf, args: &StatArgs) -> Result<Exit, Failure> {
    let shown = file.escaped();
    let bytes = std::fs::read(file).map_err(|e| format!("cannot read {shown}: {e}"))?;
    let given: Given = serde_json::from_slice(&bytes).map_err(|e| {
        format!("{shown} does not hold counts as in {{\"note\", \"cpu\", \"counters\"}}: {e}")
    })?;
    let sample = given.sample().map_err(|e| format!("{shown}: {e}"))?;
    let mut report = StatReport::new(Origin::Given, given.note.clone());
    report.cpu = Some(given.cpu.clone());
    report.add(&sample);
    given.literature(&mut report);
    print(&report, args)?;
    Ok(Exit::SUCCESS)
}

/// The counters of one program, or the reason why there are none.
struct Watch {
    hardware: Result<Counting, String>,
    cpu: Option<Cpu>,
    kernel: KernelCounts,
    began: Instant,
}

struct Counting {
    hardware: Hardware,
    counters: Counters,
}

impl Watch {
    fn open(process: Process, threads: &[i32], start: Start) -> Result<Watch, PerfError> {
        let cpus = cpus();
        let hardware = match Counting::open(&cpus, threads, start) {
            Err(Refusal::Perf(error @ (PerfError::Vanished | PerfError::Files { .. }))) => return Err(error),
            Err(refusal) => Err(refusal.to_string()),
            Ok(hardware) => Ok(hardware),
        };
        let kernel = KernelCounts::open(process, threads, start)?;
        Ok(Watch { hardware, cpu: cpus.into_iter().next(), kernel, began: Instant::now() })
    }

    fn enable(&mut self) {
        self.began = Instant::now();
        self.kernel.enable();
        if let Ok(hardware) = &self.hardware {
            hardware.counters.enable();
        }
    }

    /// Stops counting, and reports.
    fn report(&self, subject: String) -> StatReport {
        if let Ok(hardware) = &self.hardware {
            hardware.counters.disable();
        }
        self.kernel.disable();
        let mut report = StatReport::new(Origin::Measured, subject);
        report.seconds = Some(self.began.elapsed().as_secs_f64());
        report.cpu.clone_from(&self.cpu);
        report.kernel = self.kernel.read();
        report.notes.clone_from(&self.kernel.notes);
        match &self.hardware {
            Ok(Counting { hardware: Hardware { model, pmu, .. }, counters }) => {
                report.pmu = Some(pmu.clone());
                report.user_only = counters.user_only;
                report.add(&Sample { model, groups: counters.read() });
            }
            Err(why) => report.no_pmu = Some(why.clone()),
        }
        report
    }
}

/// Why there are no hardware counts.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Perf(#[from] PerfError),
    #[error(transparent)]
    Hardware(#[from] NoHardware),
}

impl Counting {
    fn open(cpus: &[Cpu], threads: &[i32], start: Start) -> Result<Counting, Refusal> {
        let hardware = Hardware::find(cpus)?;
        let counters = hardware.open(threads, start)?;
        Ok(Counting { hardware, counters })
    }
}

fn of_process(pid: u32, args: &StatArgs) -> Result<Exit, Failure> {
    let process = Process::new(pid);
    let name = process.read("comm")?;
    let name = Untrusted::from(name.trim_ascii());
    let failed = |e: PerfError| format!("cannot count process {pid} ({name}): {e}");
    let signals = Signals::block().map_err(|e| format!("signalfd: {e}"))?;
    raise_file_limit();
    let threads = threads(process)?;
    let mut watch = Watch::open(process, &threads, Start::Asked).map_err(failed)?;
    watch.enable();
    wait_for(pid, &signals, args.time.map(|time| Instant::now() + time));
    let many = if threads.len() == 1 { "1 thread".into() } else { format!("{} threads", threads.len()) };
    print(&watch.report(format!("process {pid} ({name}), {many} at the start")), args)?;
    Ok(Exit::SUCCESS)
}

/// Returns the ids of the threads of a process.
fn threads(process: Process) -> Result<Vec<i32>, Failure> {
    let path = process.path("task");
    let entries = std::fs::read_dir(&path).map_err(|e| format!("cannot read {}: {e}", path.escaped()))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

fn of_command(args: &StatArgs) -> Result<Exit, Failure> {
    let path = resolve(&args.command[0])?;
    let signals = Signals::block().map_err(|e| format!("signalfd: {e}"))?;
    let mut workload = Workload::prepare(&path, &args.command, &signals)
        .map_err(|e| format!("cannot start a process: {e}"))?;
    // After the fork, so that the program keeps its limit.
    raise_file_limit();
    let pid = workload.pid();
    let mut watch = Watch::open(Process::new(pid), &[pid.cast_signed()], Start::Exec)
        .map_err(|e| format!("cannot count {}: {e}", path.escaped()))?;
    watch.began = Instant::now();
    workload.start().map_err(|source| ExecError { program: (&args.command[0]).into(), source })?;

    let subject = || {
        let words: Vec<_> = args.command.iter().map(|word| word.escaped().to_string()).collect();
        words.join(" ")
    };
    let mut deadline = args.time.map(|time| watch.began + time);
    let mut result = None;
    loop {
        match wait_for(pid, &signals, deadline) {
            Event::Ended => break,
            Event::TimeUp => {
                result = Some(print(&watch.report(subject()), args));
                deadline = None;
            }
            // The program has received a signal of the terminal by itself. One that was sent to
            // hugelift is passed on.
            Event::Signal(number, sent) => {
                if sent {
                    workload.signal(number);
                }
            }
        }
    }
    // Read before wait4(2), which removes the program from /proc. The program has run, so its exit
    // status counts, even if the result cannot be written.
    if let Err(failure) = result.unwrap_or_else(|| print(&watch.report(subject()), args)) {
        say(&failure.message);
    }
    let end = workload.wait().map_err(|e| format!("cannot wait for process {pid}: {e}"))?;
    match end {
        End::Status(status) => Ok(Exit(status)),
        End::Signal(number) => {
            die_by(number);
            Ok(Exit(128 + number))
        }
    }
}

fn print(report: &StatReport, args: &StatArgs) -> Result<(), Failure> {
    let shown = if args.json { output::json(report)? } else { text(report) };
    if let Some(path) = &args.output {
        match write(path, shown.as_bytes()) {
            Ok(()) => return Ok(()),
            // The measurement took time: it is printed instead.
            Err(error) => say(&error.to_string()),
        }
    }
    // With a command, standard output belongs to the command.
    if args.command.is_empty() {
        console::print(&shown)?
    } else {
        console::print_to_stderr(&shown)?
    }
    Ok(())
}
