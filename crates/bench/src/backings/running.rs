// SPDX-License-Identifier: Apache-2.0
//! A running program that is examined, and killed afterwards.

use anyhow::{Context as _, Result, bail, ensure};
use hugelift_core::smaps::Usage;
use hugelift_linux::proc::procfs::Process;
use hugelift_measure::program::Program;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// The longest time that a start may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running program. Dropping the value kills it.
pub struct Running {
    child: Child,
    /// The first line that it printed; empty if it has not printed one.
    pub line: String,
}

impl Running {
    /// Starts the program and waits for its first line.
    ///
    /// # Errors
    /// The program ends before its first line.
    pub fn at_rest(program: &Program) -> Result<Running> {
        let mut running = Running::start(program)?;
        let stdout = running.child.stdout.take().context("no pipe")?;
        BufReader::new(stdout).read_line(&mut running.line).context("standard output")?;
        ensure!(!running.line.is_empty(), "{program}: ended before it printed a line");
        Ok(running)
    }

    /// Starts the program and waits until the process runs the file `path` and is not traced any more.
    ///
    /// # Errors
    /// The program ends before that, or takes too long.
    pub fn at_work(program: &Program, path: &Path) -> Result<Running> {
        let mut running = Running::start(program)?;
        let process = Process::new(running.pid());
        let began = Instant::now();
        loop {
            let runs_path = std::fs::read_link(process.path("exe")).is_ok_and(|exe| exe == path);
            let status = String::from_utf8_lossy(&process.read("status").unwrap_or_default()).into_owned();
            if runs_path && status.lines().any(|line| line.split_whitespace().eq(["TracerPid:", "0"])) {
                // The program needs this time to leave its constructors and enter its loop.
                std::thread::sleep(Duration::from_millis(100));
                return Ok(running);
            }
            if running.child.try_wait()?.is_some() || began.elapsed() > PATIENCE {
                bail!("{program}: did not start");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn start(program: &Program) -> Result<Running> {
        let mut command = program.command()?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let child = command.spawn().with_context(|| format!("cannot start {program}"))?;
        Ok(Running { child, line: String::new() })
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its mappings as smaps shows them.
    ///
    /// # Errors
    /// The program has ended.
    pub fn smaps(&self) -> Result<Vec<Usage>> {
        Ok(Process::new(self.pid()).smaps()?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
