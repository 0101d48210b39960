// SPDX-License-Identifier: Apache-2.0
//! `hugelift lab walks`: how many page walks a program would need on other CPUs.

use crate::failure::{Exit, Failure};
use crate::output;
use clap::{ArgGroup, Args, ValueHint};
use hugelift_core::printable::Escape;
use hugelift_lab::walks::code::Code;
use hugelift_lab::walks::count::{Counting, Options};
use hugelift_lab::walks::cpu::Cpu;
use hugelift_lab::walks::report::{Report, Subject};
use hugelift_lab::walks::table::{CPUS, by_name};
use hugelift_lab::walks::traced::{self, Pipe};
use hugelift_linux::io::console::{self, say};
use hugelift_linux::lookup::resolve;
use hugelift_linux::proc::procfs::Process;
use hugelift_measure::perf::workload::{Event, Workload};
use hugelift_report::walks::text;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Simulate how many page walks a program would need on other CPUs, for its code and its data, with
/// small pages and with huge ones
///
/// The command runs under valgrind, some hundred times as slowly as usual, and each of its memory
/// accesses goes through models of the TLBs of these CPUs. The result goes to stderr, and the exit
/// status is the command's. Programs that it starts are not traced. Nothing is measured, and nothing
/// is put on huge pages.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("what").required(true).args(["trace", "command"]))]
pub struct WalksArgs {
    /// The CPUs: skylake-sp, ice-lake-sp, zen-2, zen-3, zen-4, zen-5, neoverse-n1, neoverse-v2
    /// [default: all]
    #[arg(long, value_name = "CPU", value_delimiter = ',', value_parser = by_name)]
    on: Vec<&'static Cpu>,

    /// Count so many instructions, as in 50M; then the result is printed, and the command goes on
    /// [default: all]
    #[arg(long, value_name = "INSTRUCTIONS", value_parser = positive_count)]
    window: Option<u64>,

    /// Leave out so many instructions first, as in 1G. The last 5 million of them fill the TLBs
    #[arg(long, value_name = "INSTRUCTIONS", value_parser = count, default_value = "0")]
    skip: u64,

    /// Take small pages that follow each other to do so in memory too: some CPUs hold four of them in
    /// one entry
    #[arg(long)]
    contiguous: bool,

    /// Print JSON, version 1 of the schema
    #[arg(long)]
    json: bool,

    /// Read a trace of 'valgrind --tool=lackey --trace-mem=yes' from FILE (-: from standard input)
    /// instead
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// The program, looked up on PATH, and its arguments
    #[arg(last = true, value_hint = ValueHint::CommandWithArguments, value_names = ["CMD", "ARGS"])]
    command: Vec<OsString>,
}

/// Parses a number of instructions: whole, or with k, M or G behind it.
fn count(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k') => (&text[..text.len() - 1], 1_000),
        Some(b'M') => (&text[..text.len() - 1], 1_000_000),
        Some(b'G') => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1),
    };
    let number = Some(digits).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let number = number.and_then(|digits| digits.parse::<u64>().ok()?.checked_mul(unit));
    number.ok_or_else(|| format!("'{text}' is not a number of instructions, as in 5000000, 500k, 50M or 1G"))
}

fn positive_count(text: &str) -> Result<u64, String> {
    Some(count(text)?).filter(|&n| n > 0).ok_or_else(|| "at least 1 instruction is needed".into())
}

/// Simulates, and prints the result.
///
/// # Errors
/// The trace cannot be read, there is no valgrind, or the command cannot be started.
pub fn run(args: &WalksArgs) -> Result<Exit, Failure> {
    match &args.trace {
        Some(path) => of_trace(path, args),
        None => of_command(args),
    }
}

impl WalksArgs {
    fn options(&self) -> Options {
        let cpus = match self.on.is_empty() {
            true => CPUS.iter().collect(),
            // Each once, in the order of the command line.
            false => {
                let is_new = |&(i, cpu): &(usize, &&'static Cpu)| !self.on[..i].contains(cpu);
                self.on.iter().enumerate().filter(is_new).map(|(_, cpu)| *cpu).collect()
            }
        };
        Options { cpus, adjacent: self.contiguous, skip: self.skip, window: self.window }
    }
}

fn shown(report: &Report, json: bool) -> Result<String, Failure> {
    if json { output::json(report) } else { Ok(text(report)) }
}

fn of_trace(path: &Path, args: &WalksArgs) -> Result<Exit, Failure> {
    let mut counting = Counting::new(args.options(), Code::all());
    let name = path.escaped();
    let read = match path.as_os_str() == "-" {
        true => traced::read(std::io::stdin().lock(), &mut counting),
        false => File::open(path).and_then(|file| traced::read(file, &mut counting)),
    };
    read.map_err(|error| format!("cannot read the trace {name}: {error}"))?;
    let subject = Subject::Trace(path.into());
    let report =
        Report::of(subject, &mut counting).map_err(|error| format!("{name} is no trace: {error}"))?;
    console::print(&shown(&report, args.json)?)?;
    Ok(Exit::SUCCESS)
}

fn of_command(args: &WalksArgs) -> Result<Exit, Failure> {
    let (name, rest) = args.command.split_first().ok_or("no command")?;
    let program = resolve(name)?;
    let valgrind = resolve(OsStr::new("valgrind")).map_err(|_| {
        "there is no valgrind on PATH, under which the command would be traced: install the package valgrind, as by \
         'apt-get install valgrind'"
    })?;
    let pipe = Pipe::new().map_err(|error| format!("cannot make a pipe for the trace: {error}"))?;
    let words = pipe.command(&valgrind, &program, rest);
    let mut workload = Workload::prepare(&valgrind, &words)?;
    let Pipe { from, to } = pipe;
    // Only the child writes.
    drop(to);
    let pid = workload.pid();
    workload.start()?;

    let subject = Subject::Command(args.command.iter().map(Into::into).collect());
    let counting =
        Counting::new(args.options(), Code::mapped(Box::new(move || Process::new(pid).maps().ok())));
    let json = args.json;
    // The program has run, so its exit status counts, whatever came of the trace.
    let done = move |counting: &mut Counting| {
        let report = Report::of(subject, counting)
            .map_err(|_| Failure::from("valgrind has written no trace of the command"));
        let printed = report.and_then(|report| Ok(console::print_to_stderr(&shown(&report, json)?)?));
        if let Err(failure) = printed {
            say(&failure.message);
        }
    };
    let has_ended = Arc::new(AtomicBool::new(false));
    let ended = has_ended.clone();
    let reader = std::thread::spawn(move || traced::follow(from, &ended, counting, done));
    while workload.wait(None) != Event::Ended {}
    has_ended.store(true, Ordering::Release);
    match reader.join() {
        Ok(Ok(())) => {}
        Ok(Err(error)) => say(&format!("cannot read the trace: {error}")),
        Err(_) => say("cannot read the trace: its reader has failed"),
    }
    Ok(Exit(workload.end()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_instructions() {
        let of = |text| count(text).ok();
        assert_eq!(
            ["0", "70", "5k", "50M", "2G"].map(of),
            [0, 70, 5000, 50_000_000, 2_000_000_000].map(Some)
        );
        for wrong in ["", "k", "-1", "1.5M", "1T", "+3", "1 M", "20000000000000000000", "19000000000G", "µ"]
        {
            assert!(of(wrong).is_none(), "{wrong}");
        }
        assert!(positive_count("0").is_err() && positive_count("1").is_ok());
    }
}
