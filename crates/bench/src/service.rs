// SPDX-License-Identifier: Apache-2.0
//! Measures what `hugelift service` costs on a machine with 5,000 processes and 200 starts a second, where its policy takes none:
//! what remains is the price of noticing processes and of reading them.

use crate::options::Options;
use crate::programs::hugelift;
use anyhow::{Context as _, Result, ensure};
use hugelift_linux::proc::procfs::Process;
use hugelift_measure::live::CpuClock;
use hugelift_measure::{interrupt, stats};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PROCESSES: usize = 5000;
const STARTS_A_SECOND: u32 = 200;
/// The windows of which each gives a share of a CPU.
const ROUNDS: usize = 12;
const WINDOW: Duration = Duration::from_secs(10);
/// The service reads every process of the machine when it starts. After this time it only follows.
const SETTLED: Duration = Duration::from_secs(100);
const GOAL_PERCENT: f64 = 0.2;
const GOAL_MB: f64 = 30.0;
/// How long the service may take to end.
const ENDING: Duration = Duration::from_secs(20);

/// Each condition has to be read of each process.
const POLICY: &str = "\
[[rule]]
name = \"none\"
unit = \"no-such\"
do = [\"code\"]

[[rule]]
name = \"old\"
program = \"/no/such/*\"
older_than = \"10s\"
do = [\"code\"]

[[rule]]
name = \"rest\"
do = []
";

/// A child that is killed when it is dropped.
struct Killed(Child);

impl Killed {
    fn start(command: &mut Command) -> Result<Killed> {
        Ok(Killed(command.stdin(Stdio::null()).spawn().with_context(|| format!("{command:?}"))?))
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A thread that starts true(1) again and again.
struct Starts {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Starts {
    fn new() -> Starts {
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ends, counts) = (Arc::clone(&stop), Arc::clone(&count));
        let thread = std::thread::spawn(move || {
            let mut due = Instant::now();
            while !ends.load(Ordering::Relaxed) {
                let done = Command::new("/bin/true").stdin(Stdio::null()).status();
                counts.fetch_add(u64::from(done.is_ok()), Ordering::Relaxed);
                // What a busy machine has missed is not made up for.
                due = (due + Duration::from_secs(1) / STARTS_A_SECOND).max(Instant::now() - WINDOW / 100);
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        });
        Starts { stop, count, thread: Some(thread) }
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

impl Drop for Starts {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// Prints the share of a CPU that the service uses, and its memory.
///
/// # Errors
/// A process cannot be started, or the service ends.
pub fn run(options: &Options) -> Result<()> {
    let rounds = options.rounds.unwrap_or(ROUNDS);
    println!(
        "\nhugelift service beside {PROCESSES} processes that sleep and {STARTS_A_SECOND} starts of true(1) a second; no rule takes \
         any of them"
    );
    let sleep = || Killed::start(Command::new("sleep").arg("86400"));
    let _asleep: Vec<Killed> = (0..PROCESSES).map(|_| sleep()).collect::<Result<_>>()?;
    let starts = Starts::new();
    let dir = TempDir::new()?;
    let mut service = start(dir.path())?;
    let pid = service.0.id();
    pause(&mut service, SETTLED)?;
    let clock = CpuClock::open(pid);
    let mut shares = Vec::new();
    let (began, first) = (Instant::now(), starts.count());
    for _ in 0..rounds {
        let (from, cpu) = (Instant::now(), clock.now()?);
        pause(&mut service, WINDOW)?;
        shares.push(100.0 * (clock.now()? - cpu).as_secs_f64() / from.elapsed().as_secs_f64());
    }
    let rate = (starts.count() - first) as f64 / began.elapsed().as_secs_f64();
    let share = stats::location(&shares)?;
    let running = Process::all()?.len();
    let memory = memory_mb(pid).context("the memory of the service")?;
    println!(
        "  {running} processes, {rate:.0} starts a second, {rounds} windows of {} s after {} s",
        WINDOW.as_secs(),
        SETTLED.as_secs()
    );
    println!("  CPU time     {share:.2} % of one CPU (goal: {GOAL_PERCENT})");
    println!("  memory       {memory:.1} MB (goal: {GOAL_MB:.0})");
    end(service)
}

fn start(dir: &Path) -> Result<Killed> {
    let at = |name: &str| dir.join(name);
    std::fs::write(at("service.toml"), POLICY)?;
    std::fs::create_dir(at("none"))?;
    let mut command = Command::new(hugelift()?);
    command.arg("service").arg("--config").arg(at("service.toml")).arg("--drop-ins").arg(at("none"));
    command.arg("--socket").arg(at("socket")).arg("--ledger").arg(at("state/ledger.db"));
    Killed::start(command.env("HUGELIFT_STORE", at("store")).stderr(Stdio::null()))
}

/// Waits, and checks that the service runs.
fn pause(service: &mut Killed, time: Duration) -> Result<()> {
    let until = Instant::now() + time;
    while Instant::now() < until {
        interrupt::check()?;
        let ended = service.0.try_wait()?;
        ensure!(ended.is_none(), "hugelift service has ended: {ended:?}");
        std::thread::sleep(until.saturating_duration_since(Instant::now()).min(Duration::from_secs(1)));
    }
    Ok(())
}

/// Returns the anonymous memory of a process: the pages of its file are the page cache's.
fn memory_mb(pid: u32) -> Option<f64> {
    let status = String::from_utf8(Process::new(pid).read("status").ok()?).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()? * 1024.0 / 1e6)
}

/// Ends the service as its manager would.
fn end(mut service: Killed) -> Result<()> {
    let pid = nix::unistd::Pid::from_raw(service.0.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM)?;
    let deadline = Instant::now() + ENDING;
    while Instant::now() < deadline {
        if let Some(status) = service.0.try_wait()? {
            ensure!(status.success(), "hugelift service has ended with {status}");
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    anyhow::bail!("hugelift service did not end within {} s", ENDING.as_secs())
}
