// SPDX-License-Identifier: Apache-2.0
//! Measures what huge pages for anonymous memory bring to programs that mapped it themselves: bare, collapsed by
//! `hugelift attach` after the first seconds, with the switch of the program's own allocator, and with transparent huge pages for
//! every program of the machine.

use crate::hashes::{self, Work};
use crate::options::Options;
use crate::programs::hugelift;
use anyhow::{Context as _, Result, ensure};
use hugelift_lab::setting::Setting;
use hugelift_measure::program::Program;
use hugelift_measure::rounds::{self, Side, pairs};
use hugelift_measure::sample::Sample;
use hugelift_measure::stats;
use std::path::Path;
use tempfile::TempDir;

const ROUNDS: usize = 6;
/// Which programs get transparent huge pages (Documentation/admin-guide/mm/transhuge.rst).
const SWITCH: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
/// Starts a program, and hugelift after some seconds. The shell waits for both, so that its CPU time is that of both.
const BESIDE: &str = r#"hugelift=$1 seconds=$2; shift 2; "$@" & pid=$!; sleep $seconds
"$hugelift" attach --parts heap,anon --cpu-budget 10 --add 512M $pid >/dev/null 2>&1; wait $pid"#;
/// Part of a bare run after which a program has its memory.
const BUILT: f64 = 0.4;

/// A program, and how its own allocator is asked for huge pages.
struct Case {
    what: &'static str,
    program: Program,
    /// The name of the switch, and the program with it.
    own: Option<(&'static str, Program)>,
}

/// Prints for each program the ratio of CPU time of each way to bare. hugelift's own time is included.
///
/// # Errors
/// A run failed, or the sides computed different results.
pub fn run(options: &Options) -> Result<()> {
    let dir = TempDir::new_in(hugelift()?.parent().context("hugelift's folder")?)?;
    println!("\nanonymous memory: CPU time, ratio to bare with transparent huge pages for madvise(2)");
    println!(
        "  program                        bare s  attach                 own switch             THP always"
    );
    for (_, make) in options.chosen(&CASES)? {
        row(options, &make(dir.path())?)?;
    }
    Ok(())
}

/// Makes a program, in a folder for what it needs.
type Make = fn(&Path) -> Result<Case>;

/// The programs, each with the command that it needs.
const CASES: [(&str, Make); 5] =
    [("perl", perl), ("php", php), ("python3", python), ("go", go), ("javac", java)];

fn with(program: &Program, name: &str, value: &str) -> Program {
    let mut more = program.clone();
    more.env.push((name.into(), value.into()));
    more
}

fn perl(_: &Path) -> Result<Case> {
    let program = hashes::perl(Work { keys: 1_500_000, gets: 6_000_000 });
    let own = with(&program, "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
    Ok(Case { what: "perl, a hash of 1.5 M keys", program, own: Some(("glibc.malloc.hugetlb=1", own)) })
}

fn php(_: &Path) -> Result<Case> {
    let program = hashes::php(Work { keys: 2_500_000, gets: 7_500_000 });
    let own = with(&program, "USE_ZEND_ALLOC_HUGE_PAGES", "1");
    Ok(Case { what: "php, an array of 2.5 M", program, own: Some(("USE_ZEND_ALLOC_HUGE_PAGES=1", own)) })
}

fn python(_: &Path) -> Result<Case> {
    let program = hashes::python(Work { keys: 2_500_000, gets: 7_500_000 });
    let own = with(&program, "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
    Ok(Case { what: "python3, a dict of 2.5 M", program, own: Some(("glibc.malloc.hugetlb=1", own)) })
}

/// Go has had no switch since 1.21.6.
fn go(dir: &Path) -> Result<Case> {
    let program = hashes::go(dir, Work { keys: 5_000_000, gets: 25_000_000 })?;
    Ok(Case { what: "Go, a map of 5 M", program, own: None })
}

fn java(dir: &Path) -> Result<Case> {
    let with = |more: &[&str]| {
        let options = [&["-Xms1g", "-Xmx1g", "-XX:+UseSerialGC"], more].concat();
        hashes::java(dir, &options, Work { keys: 3_000_000, gets: 12_000_000 })
    };
    let switch = "-XX:+UseTransparentHugePages";
    Ok(Case { what: "JVM, a HashMap of 3 M", program: with(&[])?, own: Some((switch, with(&[switch])?)) })
}

fn row(options: &Options, case: &Case) -> Result<()> {
    let Case { what, program, own } = case;
    let mut beside = Program::new(["sh", "-c", BESIDE, "sh"]);
    let alone = during("madvise", || program.run())?;
    beside.argv.extend([hugelift()?.into(), format!("{:.1}", alone.cost.wall * BUILT).into()]);
    beside.argv.extend(program.argv.iter().cloned());
    let mut sides = vec![
        Side::new("bare", || during("madvise", || program.run())),
        Side::new("attach", || during("madvise", || beside.run())),
        Side::new("THP always", || during("always", || program.run())),
    ];
    if let Some((switch, own)) = own {
        sides.push(Side::new(switch, || during("madvise", || own.run())));
    }
    let mut differs = None;
    let results = rounds::run(&mut sides, options.rounds.unwrap_or(ROUNDS), |_, round, _| {
        if let Some(other) = round.iter().find(|sample| sample.output != round[0].output) {
            differs = Some(format!("'{}' and '{}'", round[0].output.trim(), other.output.trim()));
        }
    })?;
    ensure!(differs.is_none(), "{what}: the ways computed {}", differs.unwrap_or_default());
    let cpu = |sample: &Sample| sample.cost.cpu();
    let bare: Vec<f64> = results[0].iter().map(cpu).collect();
    let ratio =
        |side: usize| stats::ratio(&pairs(&results[0], &results[side], cpu)).map(|r| format!("{r:.3}"));
    let of_own = if own.is_some() { ratio(3)? } else { "(has none)".into() };
    println!("  {what:<30} {:>5.2}  {:<22} {of_own:<22} {}", stats::median(&bare)?, ratio(1)?, ratio(2)?);
    Ok(())
}

/// Runs `work` while the machine has this setting. It is put back also if this process is killed.
///
/// # Errors
/// The work failed, or the setting cannot be changed.
pub fn during<T>(word: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let setting = Setting::change(Path::new(SWITCH), word)?;
    let result = work();
    setting.restore()?;
    result
}
