// SPDX-License-Identifier: Apache-2.0
//! A run that is measured: its cost, and what is seen of it from outside while it runs.
//!
//! A reader of smaps keeps the process from changing its mappings for a moment. So smaps is read
//! late, seldom, and in the same way on both sides: first after 0.1 s, then at growing
//! intervals, never for more than a hundredth of the time. A program that ends sooner is shown by
//! a [`crate::inspection`].

use crate::child::{Child, Cost, children, reap_orphans};
use crate::coverage;
use crate::interrupt;
use crate::memory::Memory;
use crate::program::Program;
use anyhow::{Context as _, Result};
use hugelift_linux::proc::procfs::Process;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// When a process is first read.
const FIRST: Duration = Duration::from_millis(100);

/// Reading may take at most one part in this of the time.
const SHARE: u32 = 100;

/// How long something may run on after its program has ended. What still runs then is a daemon.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long hugelift's helper may run on. It ends by itself, but on a busy machine it may get no CPU for a second.
const HELPER_PATIENCE: Duration = Duration::from_secs(10);

/// What was seen of a process: the largest value of each field.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Seen {
    /// The huge parts of its mappings; none where smaps could not be read.
    pub memory: Option<Memory>,
    /// Peak resident memory in bytes.
    pub peak_bytes: Option<u64>,
}

impl Seen {
    /// Reads a process now. Returns nothing if the process has ended or may not be read. Also returns nothing if another
    /// process traces it: it is being lifted at this moment.
    pub fn now(pid: u32) -> Seen {
        let process = Process::new(pid);
        let Ok(status) = process.status() else { return Seen::default() };
        // TracerPid is the id of a thread.
        let own = nix::unistd::gettid().as_raw().cast_unsigned();
        if status.tracer.is_some_and(|tracer| tracer != 0 && tracer != own) {
            return Seen::default();
        }
        Seen {
            memory: process.with_memory().smaps().ok().map(|usages| coverage::of_process(&usages)),
            peak_bytes: status.peak_bytes,
        }
    }

    /// Returns the larger value of each field.
    pub fn max(self, other: Seen) -> Seen {
        let memory = match (self.memory, other.memory) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        };
        Seen { memory, peak_bytes: self.peak_bytes.max(other.peak_bytes) }
    }
}

/// A run with its cost.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    /// How it ended.
    pub status: ExitStatus,
    /// What it cost.
    pub cost: Cost,
    /// What was seen of it, if it ran for long enough.
    pub seen: Seen,
    /// Whether something that it started still runs.
    pub left_running: bool,
}

/// Runs a program to its end.
///
/// # Errors
/// The program cannot be started, or the measurement was interrupted.
pub fn run(program: &Program) -> Result<Timed> {
    let mut command = program.command()?;
    let child = Child::start(&mut command)?;
    let pid = child.pid();
    let (stop, stopped) = channel::<()>();
    let watcher = std::thread::Builder::new()
        .name("watch".into())
        .spawn(move || watch(pid, &stopped))
        .context("cannot start a thread")?;
    let (ended, wall) = (child.wait_for_end(), child.began().elapsed().as_secs_f64());
    // The child is a zombie until `finish`: its id belongs to no other process yet.
    drop(stop);
    let seen = watcher.join().unwrap_or_default();
    ended?;
    let (status, cost) = child.finish()?;
    let (mut left_behind, mut left_running) = reap_orphans(PATIENCE)?;
    if left_running && children().into_iter().all(|pid| is_launcher(pid.cast_unsigned())) {
        let (more, still) = reap_orphans(HELPER_PATIENCE)?;
        (left_behind, left_running) = (left_behind + more, still);
    }
    interrupt::check()?;
    Ok(Timed { status, cost: Cost { wall, left_behind, ..cost }, seen, left_running })
}

fn watch(pid: u32, stopped: &Receiver<()>) -> Seen {
    let mut seen = Seen::default();
    let mut pause = FIRST;
    while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let began = Instant::now();
        if !is_launcher(pid) {
            seen = seen.max(Seen::now(pid));
        }
        pause = (pause * 2).max(began.elapsed() * SHARE);
    }
    seen
}

/// Returns whether the process is hugelift: its helper, or the launcher that has not yet become the program.
fn is_launcher(pid: u32) -> bool {
    let own = Process::OWN.executable().ok();
    own.is_some() && own == Process::new(pid).executable().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::printable::Escape as _;

    #[test]
    fn a_child_is_charged_for_itself_alone() {
        let _alone = crate::child::alone();
        // The child would be as large as this if it were charged for its parent.
        let large = vec![1u8; 64 << 20];
        let program = Program::new(["sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; exit 3"]);
        let timed = run(&program).unwrap();
        assert_eq!(timed.status.code(), Some(3));
        let cost = timed.cost;
        assert!(0.01 < cost.user && cost.user <= cost.wall + 0.02, "{cost:?}");
        assert!(cost.minor_faults > 10 && cost.minor_faults < 10_000, "{cost:?}");
        assert_eq!(large.iter().map(|&b| usize::from(b)).sum::<usize>(), large.len());
        if let Some(peak) = timed.seen.peak_bytes {
            assert!(peak < 32 << 20, "{peak}");
        }
    }

    /// Says to a process of [`stays_for_a_while`] that it is one.
    const STAYS: &str = "HUGELIFT_TEST_STAYS";

    #[test]
    fn stays_for_a_while() {
        if std::env::var_os(STAYS).is_some() {
            std::thread::sleep(PATIENCE + Duration::from_secs(2));
        }
    }

    #[test]
    fn a_helper_that_gets_no_cpu_is_no_daemon() {
        let _alone = crate::child::alone();
        crate::child::adopt_orphans().unwrap();
        let own = std::env::current_exe().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let run = |command: &str| {
            let script = format!(
                "{STAYS}=1; export {STAYS}; {command} > /dev/null & echo $! > {}; exit 0",
                file.escaped()
            );
            run(&Program::new(["sh", "-c", &script, own.to_str().unwrap()])).unwrap()
        };
        let helper = run("\"$0\" --exact timed::tests::stays_for_a_while");
        // It stays for longer than this, which does not count.
        assert!(!helper.left_running && helper.cost.wall < 1.5 + PATIENCE.as_secs_f64(), "{:?}", helper.cost);
        assert!(run("sleep 60").left_running);
        // It must not be in the way of other tests.
        let pid: i32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
        reap_orphans(HELPER_PATIENCE).unwrap();
    }
}
