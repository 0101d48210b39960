// SPDX-License-Identifier: Apache-2.0
//! Tries which tools show the function names of lifted code, on a program that runs in one large function,
//! `code`.

use super::row::Row;
use super::running::Running;
use super::victim::Victim;
use crate::warm::TempStore;
use anyhow::{Context as _, Result, bail, ensure};
use hugelift_core::addr::{Addr, Range};
use hugelift_core::elf::Headers;
use hugelift_core::symbols::functions;
use hugelift_measure::host;
use hugelift_measure::uprobe::Uprobe;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Calls that take longer than the program lives.
const ENDLESS: u64 = u64::MAX;
/// Calls that take about half a second.
const SOME: u64 = 50_000_000;
/// How often gdb stops the program. It may stop it in the loop around the function.
const TRIES: usize = 20;
/// Time in which the program hits a probe.
const PAUSE: Duration = Duration::from_millis(300);

/// Says which of perf, gdb and core dumps show the name of the function.
///
/// # Errors
/// A run failed.
pub fn symbols(row: Row, victim: &Victim, store: &TempStore) -> Result<String> {
    let dir = TempDir::new()?;
    let mut named = Vec::new();
    let mut unnamed = Vec::new();
    let mut record = |what: &str, result: Result<bool>| match result {
        Ok(true) => named.push(what.to_string()),
        Ok(false) => unnamed.push(what.to_string()),
        Err(e) => unnamed.push(format!("{what} (not tried: {e:#})")),
    };
    record("perf from the start", perf_from_the_start(row, victim, store, dir.path()));
    match perf_attached(row, victim, store, &[], dir.path()) {
        Ok(false) => {
            let mapped = perf_attached(row, victim, store, &["--perf-map"], dir.path());
            record("perf -p with `--perf-map`", mapped);
        }
        other => record("perf -p", other),
    }
    match debugger(row, victim, store, dir.path()) {
        Ok([gdb, core]) => {
            record("gdb", Ok(gdb));
            record("core dump", Ok(core));
        }
        Err(e) => record("gdb", Err(e)),
    }
    Ok(match unnamed.is_empty() {
        true => named.join(", "),
        false => format!("{}; not: {}", named.join(", "), unnamed.join(", ")),
    })
}

fn output(command: &mut Command) -> Result<Output> {
    let name = command.get_program().display().to_string();
    command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {name}: ci/setup.sh test"))
}

fn perf_from_the_start(row: Row, victim: &Victim, store: &TempStore, dir: &Path) -> Result<bool> {
    let program = row.of(&victim.calling(SOME), store, &[])?;
    let data = dir.join("data");
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-e", "cpu-clock", "-o"]).arg(&data).arg("--").args(&program.argv);
    is_reported(output(perf.envs(program.env.iter().cloned()))?, &data)
}

fn perf_attached(row: Row, victim: &Victim, store: &TempStore, options: &[&str], dir: &Path) -> Result<bool> {
    let running = Running::at_work(&row.of(&victim.calling(ENDLESS), store, options)?, victim.path())?;
    let data = dir.join("data");
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-e", "cpu-clock", "-o"]).arg(&data);
    is_reported(output(perf.args(["-p", &running.pid().to_string(), "--", "sleep", "0.5"]))?, &data)
}

fn is_reported(recorded: Output, data: &Path) -> Result<bool> {
    ensure!(
        recorded.status.success(),
        "perf record: {}, {}",
        recorded.status,
        String::from_utf8_lossy(&recorded.stderr).trim()
    );
    let mut report = Command::new("perf");
    let report =
        output(report.arg("report").arg("-i").arg(data).args(["--stdio", "-g", "none", "--sort", "symbol"]))?;
    let text = String::from_utf8_lossy(&report.stdout).into_owned();
    // A line is like "  43.95%  [.] code". Code without a name has its address there. The two ends of the code are not
    // lifted and always have a name.
    let (mut named, mut unnamed) = (0.0, 0.0);
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let share = words.next().and_then(|word| word.strip_suffix('%')?.parse::<f64>().ok());
        match (share, words.next(), words.next()) {
            (Some(share), Some("[.]"), Some("code")) => named += share,
            (Some(share), Some("[.]"), Some(name)) if name.starts_with("0x") => unnamed += share,
            _ => {}
        }
    }
    Ok(named > 10.0 * unnamed)
}

/// Whether a backtrace of the process, and one of its core dump, show the function and its caller.
fn debugger(row: Row, victim: &Victim, store: &TempStore, dir: &Path) -> Result<[bool; 2]> {
    let running = Running::at_work(&row.of(&victim.calling(ENDLESS), store, &[])?, victim.path())?;
    let huge = host::huge_page_bytes();
    let code = Addr(vaddr_of_code(victim.path())?.wrapping_add(bias(&running, victim.path())?));
    let lifted = Range { start: Addr(code.0 + huge), end: Addr(code.0 + Victim::whole_bytes()) };
    let core = dir.join("core");
    let gdb = || {
        let mut gdb = Command::new("gdb");
        gdb.args(["--batch", "-nx", "-iex", "set debuginfod enabled off"]);
        gdb
    };
    for _ in 0..TRIES {
        let mut attach = gdb();
        attach.args(["-p", &running.pid().to_string(), "-ex", "bt", "-ex"]);
        let alive = output(attach.arg(format!("generate-core-file {}", core.display())))?;
        let dead = output(gdb().arg(victim.path()).arg(&core).args(["-ex", "bt"]))?;
        let frames = |out: &Output| {
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            text.lines().filter(|line| line.starts_with('#')).map(str::to_string).collect::<Vec<_>>()
        };
        // A stop outside of the lifted code shows nothing.
        let frames = [frames(&alive), frames(&dead)];
        let pc = frames[0].first().and_then(|line| line.split_whitespace().nth(1)?.strip_prefix("0x"));
        let pc = pc.and_then(|hex| u64::from_str_radix(hex, 16).ok());
        if pc.is_some_and(|pc| lifted.contains(Addr(pc))) {
            let names = |frames: &Vec<String>, number: &str, name: &str| {
                let name = format!(" in {name} (");
                frames.iter().any(|line| line.starts_with(number) && line.contains(&name))
            };
            return Ok(frames.map(|frames| names(&frames, "#0 ", "code") && names(&frames, "#1 ", "main")));
        }
    }
    bail!("gdb never stopped the program in lifted code")
}

/// Says whether the running program hits a uprobe on its file; if not, whether it hits one on the file in the
/// store.
///
/// # Errors
/// This user may not set a uprobe, or a run failed.
pub fn uprobe(row: Row, victim: &Victim, store: &TempStore) -> Result<String> {
    let running = Running::at_work(&row.of(&victim.calling(ENDLESS), store, &[])?, victim.path())?;
    // The middle of the code is lifted at any address.
    let middle = Victim::whole_bytes() / 2;
    if is_hit(victim.path(), offset_of_code(victim.path())? + middle)? {
        return Ok("hit".into());
    }
    let bias = bias(&running, victim.path())?;
    let at = Addr(vaddr_of_code(victim.path())?.wrapping_add(middle).wrapping_add(bias));
    let usages = running.smaps()?;
    let here = usages.iter().map(|u| &u.mapping).find(|m| m.range.contains(at)).context("no code")?;
    // hugetlb memory has a path too, but not that of a file.
    if !here.path.is_file() || here.path == victim.path() {
        return Ok("not hit".into());
    }
    let entry = here.path.clone();
    Ok(match is_hit(&entry, here.offset + (at.0 - here.range.start.0))? {
        true => "not hit; one on the store's file is".into(),
        false => "not hit, nor one on the store's file".into(),
    })
}

fn is_hit(file: &Path, offset: u64) -> Result<bool> {
    let probe = Uprobe::set(file, offset)?;
    std::thread::sleep(PAUSE);
    Ok(probe.hits()? > 0)
}

fn vaddr_of_code(path: &Path) -> Result<u64> {
    let file = fs::read(path)?;
    let all = functions(&*file).map_err(anyhow::Error::msg)?;
    Ok(all.iter().find(|f| f.name == "code").context("the program has no function 'code'")?.vaddr)
}

fn offset_of_code(path: &Path) -> Result<u64> {
    let vaddr = vaddr_of_code(path)?;
    let headers = Headers::parse(&fs::read(path)?)?;
    let holds = |s: &&hugelift_core::elf::Segment| {
        Range::sized(Addr(s.vaddr), s.filesz).is_some_and(|range| range.contains(Addr(vaddr)))
    };
    let segment = headers.segments.iter().find(holds).context("no segment holds 'code'")?;
    Ok(segment.offset + (vaddr - segment.vaddr))
}

/// Returns the address of the first page of the program.
fn bias(running: &Running, path: &Path) -> Result<u64> {
    let usages = running.smaps()?;
    let first = usages.iter().map(|u| &u.mapping).find(|m| m.path == path && m.offset == 0);
    Ok(first.context("the program is not mapped")?.range.start.0)
}
