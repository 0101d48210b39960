// SPDX-License-Identifier: Apache-2.0
//! A program held while it is looked at, and killed when that is done.

use anyhow::{Context as _, Result, bail, ensure};
use hugelift_core::smaps::Usage;
use hugelift_measure::program::Program;
use hugelift_os::proc::procfs::Process;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Longer than any start takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// The process that has become the program.
pub struct Running {
    child: Child,
    /// The first line that it printed; empty while it computes.
    pub line: String,
}

impl Running {
    /// Starts it and waits for its first line.
    ///
    /// # Errors
    /// It ends before.
    pub fn at_rest(program: &Program) -> Result<Running> {
        let mut running = Running::start(program)?;
        let stdout = running.child.stdout.take().context("no pipe")?;
        BufReader::new(stdout).read_line(&mut running.line).context("standard output")?;
        ensure!(!running.line.is_empty(), "{program}: ended before it printed a line");
        Ok(running)
    }

    /// Starts it and waits until it is the file `path`, and nobody traces it any more.
    ///
    /// # Errors
    /// It ends before.
    pub fn at_work(program: &Program, path: &Path) -> Result<Running> {
        let mut running = Running::start(program)?;
        let process = Process::new(running.pid());
        let began = Instant::now();
        loop {
            let is_it = std::fs::read_link(process.path("exe")).is_ok_and(|exe| exe == path);
            let status = String::from_utf8_lossy(&process.read("status").unwrap_or_default()).into_owned();
            if is_it && status.lines().any(|line| line.split_whitespace().eq(["TracerPid:", "0"])) {
                // Out of its constructors, in its loop.
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

    /// Its id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its memory.
    ///
    /// # Errors
    /// It has ended.
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
