// SPDX-License-Identifier: Apache-2.0
//! `hugelift advise`: whether huge pages for its code and its data may pay for a process, on one screen.

mod commands;

use crate::attach::select::Choice;
use crate::failure::{Exit, Failure};
use crate::inspect::of_process;
use crate::output;
use crate::process_id;
use clap::{Args, ValueHint};
use commands::{Command, DataOnSmall, commands};
use hugelift_core::addr::human_bytes;
use hugelift_core::cost::Cost;
use hugelift_core::heat::data::{DataInUse, Method};
use hugelift_core::heat::extent::{DataVerdict, Extents};
use hugelift_core::heat::verdict::{Known, Verdict, verdict};
use hugelift_core::heat::{HOT_PERCENT, Heat};
use hugelift_core::policy::{Policy, SpanChoice};
use hugelift_core::printable::{Escape, Untrusted, thousands};
use hugelift_core::quantity;
use hugelift_core::report::Report;
use hugelift_core::snapshot::Part;
use hugelift_core::table::{LEFT, Table};
use hugelift_heat::data::Allowed;
use hugelift_lab::read_machine::read_machine;
use hugelift_lab::results::machine::Tlb;
use hugelift_lab::walks::cpu::Cpu;
use hugelift_lab::walks::table::by_name;
use hugelift_linux::io::console::{self, say};
use hugelift_linux::lookup::resolve;
use hugelift_linux::machine::tree::Tree;
use hugelift_linux::proc::clock::cpu_time;
use hugelift_linux::proc::procfs::Process;
use hugelift_measure::cost::Watch;
use hugelift_measure::heat;
use hugelift_measure::perf::workload::{Event, Signals, Workload};
use serde::Serialize;
use std::ffi::OsString;
use std::time::{Duration, Instant};

/// Version of the JSON schema.
const VERSION: u32 = 1;

/// One screen is worth no longer wait.
const LONGEST: Duration = Duration::from_secs(15);

/// How long a command runs before it is sampled: until it has opened its libraries.
const READY: Duration = Duration::from_millis(300);

/// For how long the processes of a unit are compared.
const COMPARED: Duration = Duration::from_millis(500);

/// Say whether huge pages for its code and its data may pay for a process
///
/// Samples the process for a few seconds, compares the code that it uses and the data that it has with what the TLBs of
/// this CPU hold, and names the command that measures the gain. It never states a gain itself. With a command the advice goes to
/// stderr when the time is over, the command runs to its end, and the exit status is the command's.
#[derive(Args, Debug)]
pub struct AdviseArgs {
    /// How long it is sampled, at most 15s
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = at_most_15_s)]
    time: Duration,

    /// Compare with the TLBs of this CPU, and not with those of the CPU here: skylake-sp, ice-lake-sp,
    /// zen-2, zen-3, zen-4, zen-5, neoverse-n1, neoverse-v2
    #[arg(long, value_name = "CPU", value_parser = by_name)]
    on: Option<&'static Cpu>,

    /// Print JSON, version 1 of the schema
    #[arg(long)]
    json: bool,

    /// The process, which should be doing its usual work now
    #[arg(value_name = "PID", value_parser = process_id::parse, required_unless_present_any = ["unit", "command"],
          conflicts_with_all = ["unit", "command"])]
    pid: Option<u32>,

    /// The process of this systemd unit that uses the most CPU time
    #[arg(long, value_name = "NAME", conflicts_with = "command")]
    unit: Option<String>,

    /// The program to start instead, looked up on PATH, and its arguments
    #[arg(last = true, value_hint = ValueHint::CommandWithArguments, value_names = ["CMD", "ARGS"])]
    command: Vec<OsString>,
}

fn at_most_15_s(text: &str) -> Result<Duration, String> {
    quantity::duration_between(text, Duration::from_millis(1), LONGEST)
}

/// The advice, which is also the JSON output.
#[derive(Clone, Debug, Serialize)]
struct Advice {
    /// [`VERSION`].
    version: u32,
    pid: u32,
    /// The executable.
    program: Option<Untrusted>,
    verdict: Verdict,
    /// The verdict in a sentence.
    says: String,
    heat: Heat,
    /// The data in use.
    data: DataInUse,
    /// The data in memory; `None` if they cannot be read any more.
    extents: Option<Extents>,
    data_verdict: DataVerdict,
    /// The CPU that `--on` names; `None` for the one here.
    on: Option<OtherCpu>,
    /// The TLBs of the CPU.
    tlbs: Vec<Tlb>,
    /// Bytes of data in small pages that the last of them holds.
    data_reach_bytes: Option<u64>,
    /// Entries for small pages in the last of them that is for code alone.
    entries: Option<u64>,
    /// The same of the first of them.
    first_entries: Option<u64>,
    /// Memory that copies would take at most.
    copy_bytes: u64,
    /// Whether it waited for memory, as `inspect --cost` shows it.
    cost: Option<Cost>,
    commands: Vec<Command>,
}

/// A CPU that is not this machine's.
#[derive(Clone, Copy, Debug, Serialize)]
struct OtherCpu {
    name: &'static str,
    title: &'static str,
}

/// Samples the process and prints the advice. With a command the exit status is the command's.
///
/// # Errors
/// The process cannot be read or sampled, the command cannot be started, or the advice cannot be printed.
pub fn run(args: &AdviseArgs) -> Result<Exit, Failure> {
    let pid = match (&args.unit, args.pid) {
        (Some(unit), _) => Some(busiest(unit)?),
        (None, pid) => pid,
    };
    match pid {
        Some(pid) => {
            let signals = Signals::block().map_err(|e| format!("signalfd: {e}"))?;
            console::print(&shown(pid, args, &signals)?)?;
            Ok(Exit::SUCCESS)
        }
        None => of_command(args),
    }
}

/// Returns the process of a unit that has used the most CPU time within [`COMPARED`]; if none has used any, that which has used
/// the most so far.
fn busiest(unit: &str) -> Result<u32, Failure> {
    let pids = Choice::Unit(unit.into()).processes()?;
    // A process may end meanwhile.
    let used = |pid: u32| cpu_time(pid).unwrap_or_default();
    let before: Vec<(u32, Duration)> = pids.into_iter().map(|pid| (pid, used(pid))).collect();
    if before.len() > 1 {
        std::thread::sleep(COMPARED);
    }
    let since = before.into_iter().map(|(pid, before)| (used(pid).saturating_sub(before), before, pid));
    since.max().map(|(_, _, pid)| pid).ok_or_else(|| Failure::new(format!("--unit {unit}: no process")))
}

fn of_command(args: &AdviseArgs) -> Result<Exit, Failure> {
    let path = resolve(args.command.first().ok_or("no command")?)?;
    let mut workload = Workload::prepare(&path, &args.command)?;
    workload.start()?;
    // The program has run, so its exit status counts, even if there is no advice.
    let asked = match workload.wait(Some(Instant::now() + READY)) {
        Event::Ended => {
            Err(format!("{} ended within {READY:?}: too soon to be sampled", path.escaped()).into())
        }
        _ => shown(workload.pid(), args, &workload.signals),
    };
    // Standard output belongs to the command.
    if let Err(failure) = asked.and_then(|text| Ok(console::print_to_stderr(&text)?)) {
        say(&failure.message);
    }
    while workload.wait(None) != Event::Ended {}
    Ok(Exit(workload.end()?))
}

/// Samples the process, and returns the advice as it is printed.
fn shown(pid: u32, args: &AdviseArgs, signals: &Signals) -> Result<String, Failure> {
    // What it costs to be watched is not worth a failure: without it the advice lacks a line.
    let watch = Watch::start(pid).ok();
    let report = of_process(pid, &Policy::default())?;
    let (heat, data) = heat::sample_with_data(pid, args.time, Allowed::Harmless, signals)
        .map_err(|why| format!("cannot sample process {pid}: {why}"))?;
    let cost = watch.map(Watch::finish);
    // It may have ended meanwhile.
    let extents = Process::new(pid).smaps().ok().map(|usages| Extents::of(&usages));
    let advice = advice(pid, &report, heat, (data, extents), args.on, cost);
    if args.json { output::json(&advice) } else { Ok(text(&advice)) }
}

/// Returns what follows from the state of a process, the code that it uses, and what huge pages cost it.
fn advice(
    pid: u32,
    report: &Report,
    heat: Heat,
    (data, extents): (DataInUse, Option<Extents>),
    on: Option<&'static Cpu>,
    cost: Option<Cost>,
) -> Advice {
    let tlbs = on.map_or_else(|| read_machine(&Tree::default()).tlbs, Cpu::tlbs);
    let on = on.map(|cpu| OtherCpu { name: cpu.name, title: cpu.title });
    let code = report.totals.get(&Part::Text).copied().unwrap_or_default();
    let [first_entries, entries] = entries(&tlbs, heat.page_size);
    let cpu = on.map_or("this CPU", |cpu| cpu.title);
    let known = Known { cpu, entries, first_entries, liftable: code.liftable_bytes, huge: code.huge_bytes };
    let (verdict, says) = verdict(&heat, known);
    let program = report.objects.iter().find(|object| object.executable).map(|object| object.path.clone());
    let data_reach_bytes = reach_of_data(&tlbs, heat.page_size);
    let data_verdict =
        extents.map_or(DataVerdict::CannotTell, |extents| extents.verdict(data_reach_bytes, heat.page_size));
    let copy_bytes = report.spans.get(&SpanChoice::Inner).map_or(0, |gain| gain.page_bytes);
    Advice {
        version: VERSION,
        pid,
        program,
        verdict,
        says,
        heat,
        data,
        extents,
        data_verdict,
        on,
        tlbs,
        data_reach_bytes,
        entries,
        first_entries,
        copy_bytes,
        cost,
        commands: commands(
            pid,
            verdict,
            extents
                .map(|extents| DataOnSmall::of(data_verdict, extents, report.page_size))
                .unwrap_or_default(),
        ),
    }
}

/// Returns how many pages of code the first and the last TLB hold that are for code alone. One that data shares may hold less.
fn entries(tlbs: &[Tlb], page_bytes: u64) -> [Option<u64>; 2] {
    let own = || tlbs.iter().filter(|tlb| tlb.kind == "instruction" && tlb.page_bytes == page_bytes);
    [own().min_by_key(|tlb| tlb.level), own().max_by_key(|tlb| tlb.level)]
        .map(|found| found.map(|tlb| tlb.entries))
}

/// Returns how many bytes the last TLB that holds data has entries for, in pages of this size.
fn reach_of_data(tlbs: &[Tlb], page_bytes: u64) -> Option<u64> {
    let holds = |tlb: &&Tlb| tlb.kind != "instruction" && tlb.page_bytes == page_bytes;
    tlbs.iter().filter(holds).map(|tlb| tlb.entries.saturating_mul(page_bytes)).max()
}

fn text(advice: &Advice) -> String {
    let heat = &advice.heat;
    let mut table = Table::new([LEFT, LEFT]);
    table.row([
        "code in use".to_string(),
        format!("pages of {}: {}", human_bytes(heat.page_size), heat.pages),
    ]);
    if let Some(hottest) = heat.objects.first() {
        let (hot, all) = (hottest.hot_huge_pages, hottest.huge_pages);
        table.row([
            "",
            &format!("{HOT_PERCENT} % of the samples in {} are in {hot} huge pages of {all}", hottest.name()),
        ]);
    }
    table.row(["CPU time", &shares(heat)]);
    if heat.samples > 0 {
        table.row(["", &heat.price()]);
    }
    table.row(["TLBs for code", &tlbs(&advice.tlbs)]);
    table
        .row(["cost of a lift", &format!("at most {} of memory for copies", human_bytes(advice.copy_bytes))]);
    match &advice.extents {
        Some(extents) => {
            table.row(["data in memory", &extents.says()]);
            table.row(["", &advice.data_verdict.says(extents.small(), advice.data_reach_bytes)]);
        }
        None => table.row(["data in memory", "unknown: the process ended before it was read"]),
    }
    for (i, line) in data_in_use(&advice.data).into_iter().enumerate() {
        table.row([if i == 0 { "data in use" } else { "" }, &line]);
    }
    if let Some(cost) = &advice.cost {
        table.row(["waits for memory", &cost.says]);
        if let Some(note) = &cost.note {
            table.row(["", note]);
        }
    }
    let mut commands = Table::new([LEFT, LEFT]).indented(2);
    for Command { line, what } in &advice.commands {
        commands.row([line.as_str(), what]);
    }
    let other = advice.on.map_or(String::new(), |cpu| {
        format!(
            "This is by the TLBs of {} and not of the CPU here. The commands measure and lift here\n",
            cpu.title
        )
    });
    format!("{}\n{other}\n{table}\n{commands}", advice.says)
}

/// Returns how much data is in use and where most of it is, or why that cannot be seen, in one or two lines.
fn data_in_use(data: &DataInUse) -> Vec<String> {
    let mut lines = vec![data.says()];
    match data.places.first().filter(|place| place.bytes.touched > 0) {
        Some(most) => lines.push(format!("most of it in {}: {}", most.name(), data.says_bytes(most.bytes))),
        // The way that most kernels could have, and what turns it on.
        None if data.method.is_none() => {
            let damon = data.refusals.iter().find(|refusal| refusal.method == Method::Damon);
            lines.extend(damon.map(|refusal| format!("{}: {}", refusal.method, refusal.why)));
        }
        None => {}
    }
    lines
}

/// Returns "9 412 samples in 10.0 s: 88 % in its files, 2 % in code that it has made itself, 10 % in the kernel".
fn shares(heat: &Heat) -> String {
    let percent = |part: u64| format!("{:.0} %", 100.0 * part as f64 / heat.samples.max(1) as f64);
    let files = heat.objects.iter().map(|object| object.samples).sum();
    let kernel = match heat.kernel_samples {
        Some(samples) => format!("{} in the kernel", percent(samples)),
        None => "the kernel was not sampled".into(),
    };
    format!(
        "{} samples in {:.1} s: {} in its files, {} in code that it has made itself, {kernel}",
        thousands(heat.samples),
        heat.milliseconds as f64 / 1000.0,
        percent(files),
        percent(heat.jit_samples),
    )
}

/// Returns "of 4 kB: 64, then 512; of 2 MB: 64, then 512".
fn tlbs(tlbs: &[Tlb]) -> String {
    let of_code = || tlbs.iter().filter(|tlb| tlb.kind != "data");
    let mut sizes: Vec<u64> = of_code().map(|tlb| tlb.page_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let level = |tlb: &Tlb| match tlb.kind.as_str() {
        "instruction" => tlb.entries.to_string(),
        _ => format!("{} shared with data", tlb.entries),
    };
    let of_size = |size: &u64| {
        let mut same: Vec<&Tlb> = of_code().filter(|tlb| tlb.page_bytes == *size).collect();
        same.sort_by_key(|tlb| tlb.level);
        let levels: Vec<String> = same.into_iter().map(level).collect();
        format!("pages of {}: {}", human_bytes(*size), levels.join(", then "))
    };
    match sizes.is_empty() {
        true => "this CPU does not say".into(),
        false => sizes.iter().map(of_size).collect::<Vec<_>>().join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tlb(level: u32, kind: &str, page_bytes: u64, entries: u64) -> Tlb {
        Tlb { level, kind: kind.into(), page_bytes, entries }
    }

    #[test]
    fn issue_31_only_a_tlb_for_code_alone_is_sure_to_hold_code() {
        let zen = [tlb(1, "instruction", 4096, 64), tlb(2, "instruction", 4096, 512)];
        assert_eq!(entries(&zen, 4096), [Some(64), Some(512)]);
        assert_eq!(entries(&zen, 2 << 20), [None, None]);
        let skylake = [tlb(1, "instruction", 4096, 128), tlb(2, "unified", 4096, 1536)];
        assert_eq!(entries(&skylake, 4096), [Some(128), Some(128)]);
        assert_eq!(tlbs(&skylake), "pages of 4 kB: 128, then 1536 shared with data");
        assert_eq!((entries(&[], 4096), &*tlbs(&[])), ([None, None], "this CPU does not say"));
    }
}
