// SPDX-License-Identifier: Apache-2.0
//! `hugelift attach` and `hugelift restore`: lift processes that run already, and give them their files'
//! own pages back. [`hugelift_lift::attach`] does it.

mod row;
mod sampling;
pub(crate) mod select;
mod stdin;
mod watch;

use crate::FAILED;
use crate::failure::{Exit, Failure};
use crate::options::{CHILDREN, PolicyArgs, SECCOMP, heading, one_of};
use crate::output;
use crate::prime::{self, OfProcess};
use clap::Args;
use hugelift_core::addr::human_bytes;
use hugelift_core::policy::Copies;
use hugelift_core::prime::{PrimeReport, text};
use hugelift_core::printable::Untrusted;
use hugelift_core::quantity;
use hugelift_core::report::VERSION;
use hugelift_lift::attach::{
    AttachOptions, Change, Chosen, MappedAnew, Name, attach as attach_to, give_back_unused, map_anew,
    preview, restore as restore_to,
};
use hugelift_lift::options::{Children, PolicyOptions, Seccomp};
use hugelift_linux::io::console::{self, say};
use hugelift_linux::proc::turn::{ChangeTurn, turn_of_change};
use row::{Row, times};
use sampling::SampleArgs;
use select::SelectArgs;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use watch::{Shown, WatchHow};

/// Lift processes that run
///
/// Of text the code in use is copied: each process is sampled first, for a second and at most five. For text and rodata one
/// thread is borrowed, once for each 2 MB, which takes a fraction of a millisecond
/// while a CPU is free; all others run on. The bytes are copied from outside. For data all threads are stopped for a moment, about a millisecond for each
/// 2 MB; if one of them would notice that, or another process or the kernel may write to the memory meanwhile,
/// data stay as they are (so they do on AArch64). For bss, heap, stack, anon and shm nothing is stopped: they are
/// collapsed from outside, which takes CAP_SYS_NICE. What cannot be lifted stays as it is, and a line on stderr
/// says why.
#[derive(Args, Debug)]
pub struct AttachArgs {
    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    policy: PolicyArgs,

    #[command(flatten)]
    sample: SampleArgs,

    /// Stay, and lift these processes, those that match later and what they open later, each when that is worth
    /// its cost. Ends at SIGINT or SIGTERM, or with the last process if only PIDs are given. What is lifted stays.
    /// With --json each line is an object, for one process
    #[arg(long, help_heading = heading::WATCH)]
    watch: bool,

    /// With --watch: also lift the processes that are named on standard input, at any time. A line is the id of a process and,
    /// if it is known, the time of its start (field 22 of /proc/PID/stat). One that becomes another program, or is named after a
    /// '-', is watched no more. What they fork is not lifted
    #[arg(long, group = "SelectArgs", requires = "watch", help_heading = heading::WATCH)]
    stdin: bool,

    /// With --watch: lift at once, not when a process has used 50 times the CPU time that its lift takes. All of its code is
    /// lifted then, unless --sample or --budget is given
    #[arg(long, requires = "watch", help_heading = heading::WATCH)]
    eager: bool,

    /// With --watch: whether programs that the processes start are lifted too. What they fork always is
    #[arg(long, value_parser = one_of(CHILDREN), default_value = "plain", requires = "watch",
          help_heading = heading::WATCH)]
    children: Children,

    /// CPU time of hugelift for collapsing bss, heap, stack, anon and shm, in seconds: for each process or, with
    /// --watch, for all processes together and the whole watch
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds, help_heading = heading::WATCH)]
    cpu_budget: Duration,

    /// Memory that collapsing them may add, as in 64M: a huge page also has the pages that the program
    /// never touched. With --watch it is the sum for all processes that still run
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = quantity::bytes,
          help_heading = heading::WATCH)]
    add: u64,

    /// Print what would be lifted, and change nothing. Seccomp filters are not asked
    #[arg(long, conflicts_with = "watch", help_heading = heading::OUTPUT)]
    dry_run: bool,

    #[command(flatten)]
    shown: ShownArgs,
}

/// Give processes that were lifted the pages of their files back
///
/// Undoes what 'hugelift attach' and 'hugelift run' have done to code and read-only data. A copy that
/// differs from its file stays, and so do data and RELRO: their copy is the program's data.
#[derive(Args, Debug)]
pub struct RestoreArgs {
    /// Instead give back the zeros on huge pages of private memory: a huge page of which more than half is zeros is split, and
    /// its zeros take no memory any more. What is lifted stays. No thread is stopped, and no byte changes; it takes Linux 6.12
    #[arg(long)]
    unused: bool,

    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    shown: ShownArgs,
}

/// What both have in common.
#[derive(Args, Debug)]
struct ShownArgs {
    /// What is done with a process under a seccomp filter: 'auto' reads the filter, which takes root, and
    /// makes the system calls that it allows; 'try' makes them all, and the filter may kill the process
    #[arg(long, value_parser = one_of(SECCOMP), default_value = "auto")]
    seccomp: Seccomp,

    /// Print JSON, version 1 of the schema
    #[arg(long, help_heading = heading::OUTPUT)]
    json: bool,

    /// Also say how long it took, and how long a thread was stopped
    #[arg(short, long, help_heading = heading::OUTPUT)]
    verbose: bool,
}

/// Lifts the processes.
///
/// # Errors
/// No process is chosen, or standard output cannot be written.
pub fn run_attach(args: &AttachArgs) -> Result<Exit, Failure> {
    let options = AttachOptions {
        policy: PolicyOptions::from(args.policy.clone()),
        seccomp: args.shown.seccomp,
        cpu: args.cpu_budget,
        added: args.add,
        copies_only: false,
        copies: Copies::All,
    };
    let is_sampled = options.policy.copies_text();
    if args.watch && args.policy.files() {
        return Err("--watch takes no files: a rule of 'hugelift service' that says do = [\"pagecache\"] keeps them on huge pages"
            .to_string()
            .into());
    }
    if args.watch {
        let ShownArgs { json, verbose, .. } = args.shown;
        let all_children = args.children == Children::Lift;
        let shown = Shown { json, verbose };
        let eager = args.eager;
        let hot = args.sample.limits(eager).filter(|_| is_sampled);
        let stdin = args.stdin;
        let how = WatchHow { attach: options, all_children, eager, hot, stdin, shown };
        return watch::run(args.select.selection()?, how);
    }
    let change = if args.dry_run { preview } else { attach_to };
    let chosen = processes(&args.select, args.dry_run)?;
    let free: Vec<Chosen> =
        chosen.iter().filter_map(|turn| turn.change.is_ok().then_some(turn.one)).collect();
    let choices = match args.sample.sampling().filter(|_| is_sampled) {
        None => Vec::new(),
        Some(sampling) => sampling.choices(&free, &options)?,
    };
    let mut choices: BTreeMap<u32, _> = free.iter().map(|one| one.pid).zip(choices).collect();
    let files = args.policy.files().then_some(Files { is_check: args.dry_run, options: &options });
    each(&chosen, &args.shown, files, |one| match choices.remove(&one.pid) {
        None => change(one, &options),
        Some(choice) => choice?.change(one, &options, change),
    })
}

/// Restores the processes.
///
/// # Errors
/// See [`run_attach`].
pub fn run_restore(args: &RestoreArgs) -> Result<Exit, Failure> {
    let seccomp = args.shown.seccomp;
    each(&processes(&args.select, false)?, &args.shown, None, |chosen| match args.unused {
        true => give_back_unused(chosen, seccomp, None),
        false => restore_to(chosen, seccomp),
    })
}

#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    processes: Vec<Row<'a>>,
}

/// A chosen process, and the lock on it for its change, or why it is not to be had. A dry run needs none.
struct Turn {
    one: Chosen,
    change: Result<Option<ChangeTurn>, String>,
}

/// Returns the chosen processes. Which they are is settled before the first one is sampled or changed, which may take a while.
fn processes(select: &SelectArgs, is_dry_run: bool) -> Result<Vec<Turn>, Failure> {
    let turn = |pid| match is_dry_run {
        true => Ok(None),
        false => turn_of_change(pid).map(Some).ok_or_else(|| is_compared(pid)),
    };
    let turn = |pid| Turn { one: Chosen::now(pid), change: turn(pid) };
    Ok(select.processes()?.into_iter().map(turn).collect())
}

fn is_compared(pid: u32) -> String {
    format!(
        "another hugelift compares it just now; end that (fuser -v /proc/{pid}/maps names it), or try again later"
    )
}

/// How the files that processes have mapped are treated.
#[derive(Clone, Copy)]
struct Files<'a> {
    /// Nothing is changed.
    is_check: bool,
    /// What is asked of the lift.
    options: &'a AttachOptions,
}

impl Files<'_> {
    /// Primes the files of a process. What is on huge pages afterwards its lift need not copy.
    fn of(self, one: Chosen) -> Result<OfProcess, String> {
        // A process that cannot be changed keeps its pages, too.
        preview(one, self.options)?;
        let policy = self.options.policy.policy()?;
        prime::of_process(one.pid, self.is_check, &policy.objects, || one.check())
    }
}

/// Changes each chosen process, and its files before if that is asked for, and prints what became of it. One that cannot be
/// changed does not keep the others from being changed.
fn each(
    chosen: &[Turn],
    shown: &ShownArgs,
    files: Option<Files<'_>>,
    mut change: impl FnMut(Chosen) -> Result<Change, String>,
) -> Result<Exit, Failure> {
    let mut results = Vec::new();
    for Turn { one, change: turn } in chosen {
        let one = *one;
        let pid = one.pid;
        // Read before, as the process may end.
        let name = Name::of(pid);
        let free = turn.as_ref().map_err(Clone::clone);
        let files = free.and_then(|_| files.map(|files| files.of(one)).transpose());
        let (files, unread) = match files {
            Ok(files) => (files, None),
            Err(why) => (None, Some(why)),
        };
        let (error, mut change) = match unread.map_or_else(|| change(one), Err) {
            Ok(change) => (None, Some(change)),
            Err(why) => (Some(why), None),
        };
        if let Some(why) = &error {
            say(&format!("{name}: {why}"));
        }
        let files = match (files, &mut change) {
            (Some(files), Some(change)) => Some(mapped_anew(one, files, shown.seccomp, change)),
            (files, _) => files.map(|OfProcess { report, notes, .. }| {
                notes.iter().for_each(|note| say(&format!("{name}: {note}")));
                report
            }),
        };
        if let Some(files) = files.as_ref().filter(|_| !shown.json) {
            console::print(&text(files, shown.verbose))?;
        }
        if let Some(change) = &change {
            change.complaints.iter().for_each(|line| say(&format!("{name}: {line}")));
            if !shown.json {
                let text: String = change.lines.iter().map(|line| format!("{name}: {line}\n")).collect();
                console::print(&(text + &times(&name, change, shown.verbose)))?;
            }
        }
        results.push((pid, error, files, change));
    }
    let failed = results.iter().any(|(_, error, ..)| error.is_some());
    if shown.json {
        let rows = results.iter().map(|(pid, error, files, change)| Row {
            pid: *pid,
            files: files.as_ref().map(|report| report.files.as_slice()),
            error: error.clone().map(Untrusted::from),
            change: change.as_ref(),
        });
        let rows = rows.collect();
        console::print(&output::json(&Document { version: VERSION, processes: rows })?)?;
    }
    Ok(if failed { Exit(FAILED) } else { Exit::SUCCESS })
}

/// Makes a process map its data files again where they are on huge pages now. Adds the result to `change`, and returns the
/// report on the files. Huge pages map the memory that the process touches only if its page tables for small pages are gone.
fn mapped_anew(one: Chosen, files: OfProcess, seccomp: Seccomp, change: &mut Change) -> PrimeReport {
    change.complaints.extend(files.notes);
    if files.to_map_anew.is_empty() {
        return files.report;
    }
    let wanted: u64 = files.to_map_anew.iter().map(|part| part.range.len()).sum();
    match map_anew(one, seccomp, &files.to_map_anew) {
        Ok(MappedAnew { step, huge }) => {
            let [huge, all] = [huge, wanted].map(human_bytes);
            change.add(Some(format!("{huge} of {all} of data files are mapped by huge pages")), step);
        }
        Err(why) => change.complaints.push(format!(
            "{} of data files are on huge pages, and it maps them by small ones until it maps them again: {why}",
            human_bytes(wanted)
        )),
    }
    files.report
}

/// Parses a number of seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse::<f64>().ok().filter(|n| *n >= 0.0);
    let time = number.and_then(|n| Duration::try_from_secs_f64(n).ok());
    time.ok_or_else(|| format!("'{text}' is not a number of seconds, as in 0.5"))
}
