// SPDX-License-Identifier: Apache-2.0
//! Measures what `hugelift attach` and `hugelift run` copy of programs that work, beside lifts of the whole, and
//! how many of the samples that follow fall on the copies.

use crate::late::{CASES, Make, huge, start};
use crate::options::Options;
use crate::programs::hugelift;
use anyhow::{Context as _, Result, ensure};
use hugelift_core::addr::{Addr, Range};
use hugelift_linux::proc::clock::cpu_time;
use hugelift_linux::proc::pagemap;
use hugelift_measure::child::Child;
use hugelift_measure::interrupt;
use hugelift_measure::program::Program;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use serde_json::Value;
use std::ffi::OsString;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long a program works before it is lifted: until it has opened its objects.
const READY: Duration = Duration::from_secs(2);
/// How long each program is sampled, for the lift and for the check of it.
const SAMPLED: &str = "4";

/// Copies of the code in use on transparent huge pages: a backing alone is one for all code, at the start.
const HOT: [&str; 2] = ["--budget", "1T"];

/// The CPU time after which a program that is watched is examined: the cost of its whole code is worth it by then.
const WATCHED: Duration = Duration::from_secs(20);
/// It may have so little of the machine that this ends first.
const PATIENCE: Duration = Duration::from_secs(90);
/// The pause between two checks of a program.
const PAUSE: Duration = Duration::from_millis(20);

/// What a lift has copied.
struct Lifted {
    /// MB of text and read-only data on huge pages.
    huge: u64,
    /// CPU time that hugelift used.
    cpu: f64,
}

/// Prints what is copied of each program, the CPU time of the lift, and the share of the later samples in its objects
/// that fall on huge pages.
///
/// # Errors
/// A program cannot be started, sampled or lifted.
pub fn run(options: &Options) -> Result<()> {
    println!(
        "\ncopies of code and constants in MB, CPU time of the lift in s, and the share of the later samples in its"
    );
    println!("objects that fall on huge pages: of all, and of what was in use in {SAMPLED} s");
    println!("  program              MB    CPU     share      MB    CPU     share");
    for (needs, make) in options.chosen(&CASES)? {
        row(needs, make)?;
    }
    println!(
        "\nprograms under hugelift run: copies in MB after {WATCHED:?} of CPU time, the CPU time in s before half of \
         them,"
    );
    println!(
        "and the share of the samples from then on that fall on huge pages: with --whole, and without it"
    );
    println!("  program              MB  after     share      MB  after     share");
    for (needs, make) in options.chosen(&CASES)? {
        let dir = tempfile::tempdir()?;
        let argv = make(dir.path())?;
        println!("  {needs:<18} {}    {}", watched(&argv, &["--whole"])?, watched(&argv, &HOT)?);
    }
    Ok(())
}

/// Lets a program work under `hugelift run`.
fn watched(argv: &[OsString], options: &[&str]) -> Result<String> {
    let child = start(argv, &[&["--backing", "thp"], options].concat(), "".as_ref())?;
    let began = Instant::now();
    let mut seen = Vec::new();
    loop {
        interrupt::check()?;
        ensure!(!child.has_ended()?, "{argv:?} ended too soon");
        let cpu = cpu_time(child.pid()).unwrap_or_default();
        seen.push((cpu, huge(child.pid())));
        if cpu >= WATCHED || began.elapsed() > PATIENCE {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    let most = seen.iter().map(|(_, huge)| *huge).max().unwrap_or_default();
    let half = seen.iter().find(|(_, huge)| most > 0 && 2 * huge >= most);
    let after = half.map_or("-".into(), |(cpu, _)| format!("{:.1}", cpu.as_secs_f64()));
    Ok(format!("{:>4} {after:>6} {}", most >> 20, share(&child)?))
}

fn row(name: &str, make: Make) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let program = Program::new(make(dir.path())?);
    let start = || {
        let child = Child::start(&mut program.command()?)?;
        std::thread::sleep(READY);
        ensure!(!child.has_ended()?, "{program} ended within {READY:?}");
        Ok(child)
    };
    let side = |options: &[&str]| {
        let child = start()?;
        let lifted = attach(&child, options)?;
        Ok::<String, anyhow::Error>(format!("{:>4} {:>6.2} {}", lifted.huge, lifted.cpu, share(&child)?))
    };
    println!("  {name:<18} {}    {}", side(&["--whole"])?, side(&["--sample", SAMPLED])?);
    Ok(())
}

fn attach(child: &Child, options: &[&str]) -> Result<Lifted> {
    let before = children_cpu()?;
    let words = [&["attach", "--backing", "thp", "--json"], options].concat();
    let seen = hugelift_json(&words, child)?;
    let totals = &seen["processes"][0]["report"]["totals"];
    let of = |part: &str| totals[part]["huge_bytes"].as_u64().unwrap_or_default();
    Ok(Lifted { huge: (of("text") + of("rodata")) >> 20, cpu: children_cpu()? - before })
}

/// Returns the share of new samples in its objects that fall on huge pages, for a column; "-" if there are none.
fn share(child: &Child) -> Result<String> {
    let seen = hugelift_json(&["inspect", "--json", "--heat", SAMPLED], child)?;
    let heat = &seen["heat"];
    let number =
        |value: &Value, name: &str| value[name].as_u64().with_context(|| format!("no {name} in {value}"));
    let page = number(heat, "huge_page_size")?;
    let (mut all, mut on_huge) = (0, 0);
    let each = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    for span in each(heat, "objects").iter().flat_map(|object| each(object, "spans")) {
        let (start, samples) = (number(&span, "start")?, number(&span, "samples")?);
        let range = Range::sized(Addr(start), page).context("a range")?;
        all += samples;
        let huge = pagemap::huge_bytes(child.pid().cast_signed(), range).unwrap_or(0);
        on_huge += if huge >= page { samples } else { 0 };
    }
    Ok(match all {
        0 => format!("{:>9}", "-"),
        _ => format!("{:>7.1} %", 100.0 * on_huge as f64 / all as f64),
    })
}

fn hugelift_json(words: &[&str], child: &Child) -> Result<Value> {
    interrupt::check()?;
    let out = Command::new(hugelift()?).args(words).arg(child.pid().to_string()).output()?;
    let said = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "hugelift {words:?}: {said}");
    serde_json::from_slice(&out.stdout).with_context(|| format!("hugelift {words:?}: {said}"))
}

/// Returns the CPU time in seconds of the children that have ended and were waited for.
///
/// # Errors
/// getrusage(2) fails.
pub fn children_cpu() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("getrusage")?;
    Ok((usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 / 1e6)
}
