// SPDX-License-Identifier: Apache-2.0
//! `hugelift inspect`: what of a process, of a program that does not run, or of a data file is on huge pages,
//! what could be, and why the rest is not.

mod folios;
mod placed;

use crate::failure::{Exit, Failure};
use crate::options::{PolicyArgs, heading};
use crate::output;
use crate::prime;
use crate::program::file_snapshot;
use clap::Args;
use hugelift_core::addr::human_bytes;
use hugelift_core::elf::ElfError;
use hugelift_core::heat::Heat;
use hugelift_core::heat::data::DataInUse;
use hugelift_core::plan::plan;
use hugelift_core::policy::{Policy, SpanChoice};
use hugelift_core::prime::{PrimeReport, text as prime_text};
use hugelift_core::printable::{Escape, quoted_path};
use hugelift_core::quantity;
use hugelift_core::report::{Report, anonymous, data_files, explain_data_files, gains, shared_memory};
use hugelift_core::snapshot::Part;
use hugelift_heat::data::Allowed;
use hugelift_lift::text::{Style, text};
use hugelift_lift::unused::unused;
use hugelift_linux::command::start_words;
use hugelift_linux::elf::elf_file::{ElfFile, FileError};
use hugelift_linux::elf::opened::{opened, opened_later};
use hugelift_linux::io::console::{self, say};
use hugelift_linux::io::terminal;
use hugelift_linux::machine::shmem_is_denied;
use hugelift_linux::proc::mapped::MappedFiles;
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::proc::snapshot;
use hugelift_measure::perf::workload::Signals;
use hugelift_measure::{cost, heat};
use hugelift_pages::pagecache::{self, Search};
use hugelift_report::html::map::document;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Show what of a program, a process or a data file is on huge pages, and why the rest is not
///
/// A process is read as it is now. For a program that does not run, its shared objects are
/// found as the loader finds them, and its addresses are assumed. Of a data file it is what
/// 'hugelift prime --check' shows.
#[derive(Args, Debug)]
pub struct InspectArgs {
    #[command(flatten)]
    policy: PolicyArgs,

    /// Also sample for TIME which code the process uses, as in 10 (seconds) or 500ms
    #[arg(long, value_name = "TIME", value_parser = quantity::positive_duration, help_heading = heading::OUTPUT)]
    heat: Option<Duration>,

    /// With --heat, also count the data in use by clearing accessed bits, if the kernel has nothing better: a lower bound
    /// for each mapping. If memory is short meanwhile, the kernel may take pages in use for unused ones
    #[arg(long, requires = "heat", help_heading = heading::OUTPUT)]
    data: bool,

    /// Instead watch the process for TIME, and say whether its threads waited for compaction, reclaim or copies at
    /// writes, and what the machine did for huge pages meanwhile
    #[arg(long, value_name = "TIME", value_parser = quantity::positive_duration, help_heading = heading::OUTPUT,
        conflicts_with_all = ["heat", "data", "html", "verbose", "unused"])]
    cost: Option<Duration>,

    /// Also read the private memory that is on huge pages, and say how much of it is zeros that 'hugelift restore --unused' gives
    /// back
    #[arg(long, help_heading = heading::OUTPUT)]
    unused: bool,

    /// Print JSON, version 1 of the schema
    #[arg(long, help_heading = heading::OUTPUT)]
    json: bool,

    /// Also write a picture of it: one HTML file that needs no network (-: to standard output,
    /// instead of the report)
    #[arg(long, value_name = "FILE", help_heading = heading::OUTPUT)]
    html: Option<PathBuf>,

    /// Also show the objects and parts with nothing to lift
    #[arg(short, long, help_heading = heading::OUTPUT)]
    verbose: bool,

    /// A process by its id, a program by its path or a name on PATH, or a data file by its path
    #[arg(value_name = "PROG|PID|FILE")]
    target: OsString,
}

/// Prints the report.
///
/// # Errors
/// The process or program cannot be read, or the report cannot be written.
pub fn run(args: &InspectArgs) -> Result<Exit, Failure> {
    if let Some(time) = args.cost {
        let pid = pid(&args.target).ok_or(NO_COST)??;
        if args.policy != PolicyArgs::default() {
            return Err(COST_OF_ALL.into());
        }
        return cost(pid, time, args.json);
    }
    let policy = args.policy.policy()?;
    let pid = pid(&args.target);
    if pid.is_none()
        && let Some(report) = prime::checked_data(&args.target)
    {
        return of_data_file(&report, args);
    }
    let report = match (pid, args.heat) {
        (Some(pid), None) => with_folios(pid?, &policy)?,
        (Some(pid), Some(time)) => {
            let allowed = if args.data { Allowed::All } else { Allowed::Harmless };
            let (report, heat, data) = with_heat(pid?, &policy, time, allowed)?;
            Report { heat: Some(heat), data: Some(data), ..report }
        }
        (None, None) => of_program(&args.target, &policy)?,
        (None, Some(_)) => return Err(NO_PROCESS.into()),
    };
    let report = Report { code_on_nodes: report.pid.and_then(placed::read), ..report };
    let report = match (args.unused, report.pid) {
        (false, _) => report,
        (true, Some(pid)) => Report { unused: Some(unused(pid)?), ..report },
        (true, None) => return Err(NO_MEMORY.into()),
    };
    console::print(&shown(&report, args)?)?;
    Ok(Exit::SUCCESS)
}

/// Returns the process id if the target consists of digits; an error if no process can have it.
fn pid(target: &OsStr) -> Option<Result<u32, Failure>> {
    let digits = target.to_str().filter(|t| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit()))?;
    // pid_t is a signed number of 32 bits, and no process has the id 0.
    let number = digits.parse::<u32>().ok().filter(|n| (1..1 << 31).contains(n));
    Some(number.ok_or_else(|| {
        Failure::new(format!(
            "{digits} is not a process id (a program of this name: hugelift inspect ./{digits})"
        ))
    }))
}

/// Reports on a process as it is now.
///
/// # Errors
/// The process does not exist or cannot be read.
pub fn of_process(pid: u32, policy: &Policy) -> Result<Report, Failure> {
    let process = Process::new(pid).with_memory();
    let mut snapshot = snapshot::live(Some(process.pid()), 0)?;
    pagecache::find_wanted(process.pid(), &mut snapshot, policy);
    let usage = process.smaps()?;
    if snapshot.objects.is_empty() {
        process.check_memory()?;
        return Err(Failure::new(no_objects(pid)));
    }
    let mut report = Report::new(&snapshot, Some(&usage), &plan(&snapshot, policy), None);
    report.pid = Some(pid);
    let opened = opened(process.pid(), &snapshot);
    // A running process is lifted without its outer spans.
    let is_attachable = policy.span == SpanChoice::Inner;
    report.advise(&start_words(process), |path| opened.contains(path), is_attachable.then_some(pid));
    report.spans = gains(&snapshot, policy);
    let page = snapshot.machine.thp_page;
    report.anonymous = page.map(|page| anonymous(&snapshot, &usage, Part::Anon, page));
    report.jit = page.map(|page| anonymous(&snapshot, &usage, Part::Jit, page));
    report.shm = page.map(|page| shared_memory(&snapshot, &usage, shmem_is_denied(), page));
    report.data_files = page.map(|page| data_files(pid, &snapshot, &usage, page));
    Ok(report)
}

/// Reports on a process as it is now, and on the folios of its memory.
fn with_folios(pid: u32, policy: &Policy) -> Result<Report, Failure> {
    let read = folios::read(pid);
    let mut report = of_process(pid, policy)?;
    if let Some(read) = read {
        explain_data_files(
            report.data_files.as_deref_mut().unwrap_or_default(),
            &read.in_huge_folios,
            read.files_were_read,
        );
        report.folios = Some(read.sizes);
    }
    Ok(report)
}

/// Prints what the page cache holds of a data file.
fn of_data_file(report: &PrimeReport, args: &InspectArgs) -> Result<Exit, Failure> {
    let refused = [
        (args.heat.is_some(), NO_PROCESS),
        (args.unused, NO_MEMORY),
        (args.html.is_some(), NO_PICTURE),
        (args.policy != PolicyArgs::default(), NO_CHOICE),
    ];
    if let Some((_, why)) = refused.into_iter().find(|(is_asked, _)| *is_asked) {
        return Err(why.into());
    }
    console::print(&if args.json { output::json(report)? } else { prime_text(report, args.verbose) })?;
    Ok(Exit::SUCCESS)
}

/// Reports on a process as it is now, samples the code that it uses for `time`, and watches which data.
fn with_heat(
    pid: u32,
    policy: &Policy,
    time: Duration,
    allowed: Allowed,
) -> Result<(Report, Heat, DataInUse), Failure> {
    let report = with_folios(pid, policy)?;
    let signals = Signals::block().map_err(|e| format!("signalfd: {e}"))?;
    let (heat, data) = heat::sample_with_data(pid, time, allowed, &signals)
        .map_err(|why| format!("cannot sample process {pid}: {why}"))?;
    Ok((report, heat, data))
}

/// Watches what a process waits for, and prints it.
fn cost(pid: u32, time: Duration, json: bool) -> Result<Exit, Failure> {
    let signals = Signals::block().map_err(|e| format!("signalfd: {e}"))?;
    let cost = cost::watch(pid, time, &signals).map_err(|why| why.to_string())?;
    console::print(&if json { output::json(&cost)? } else { hugelift_report::cost::text(&cost) })?;
    Ok(Exit::SUCCESS)
}

/// Says why no object was found in the process.
fn no_objects(pid: u32) -> String {
    let exe = MappedFiles::of(Process::new(pid)).executable();
    match exe.map(|file| ElfFile::of_open(&file)) {
        Ok(Err(FileError::Elf { source: ElfError::Class32, .. })) => {
            format!("process {pid} runs a 32-bit program: hugelift inspects 64-bit programs only")
        }
        _ => format!("no ELF object is mapped in process {pid}"),
    }
}

const NO_PROCESS: &str = "--heat samples a process: give its id in place of a program";
const NO_MEMORY: &str = "--unused reads the memory of a process: give its id in place of a program";
const NO_PICTURE: &str = "--html draws the memory of a program or a process, and this is a data file: without --html, hugelift inspect says what of it \
                          is huge";
const NO_CHOICE: &str = "options that choose what is lifted are for a program or a process, and this is a data file: without them, hugelift \
                         inspect says what of it is huge";
const NO_COST: &str = "--cost watches a process: give its id in place of a program";

const COST_OF_ALL: &str =
    "--cost watches the process as a whole: leave out the options that choose what is lifted";

/// The most objects that are named of those that a program opens after its start.
const MAX_NAMED: usize = 3;

fn of_program(target: &OsStr, policy: &Policy) -> Result<Report, Failure> {
    // As prime does, a file of the current folder too.
    let path = prime::find(target)?;
    let mut snapshot = file_snapshot(&path, policy)?;
    let mut report = Report::new(&snapshot, None, &plan(&snapshot, policy), None);
    report.assumed_addresses = true;
    report.spans = gains(&snapshot, policy);
    // A command looks for a name without a slash on PATH alone.
    let is_here = path.as_os_str() == target && !target.as_bytes().contains(&b'/');
    let start = if is_here { Path::new(".").join(target).into() } else { target.to_os_string() };
    report.advise(&[&start], |_| false, None);
    pagecache::find(None, &mut snapshot, &[Part::Text, Part::Rodata], |_| true, Search::Whole);
    report.set_page_cache(&snapshot);
    for later in opened_later(&path).iter().take(MAX_NAMED) {
        say(&format!(
            "{}: it opens {} ({} of code) after its start: hugelift prime {} makes that huge",
            path.escaped(),
            later.file.path.escaped(),
            human_bytes(later.whole),
            quoted_path(&later.file.path)
        ));
    }
    Ok(report)
}

/// Writes the page, if one is wanted; returns what is for standard output.
fn shown(report: &Report, args: &InspectArgs) -> Result<String, Failure> {
    if let Some(path) = &args.html {
        let page = document(report).map_err(|e| format!("cannot write JSON: {e}"))?;
        if let Some(page) = output::html(path, page)? {
            return Ok(page);
        }
    }
    if args.json {
        return output::json(report);
    }
    let placed = report.code_on_nodes.map(placed::line).unwrap_or_default();
    let style = Style { width: terminal::width().unwrap_or(80), verbose: args.verbose };
    Ok(text(report, &style) + &placed)
}
