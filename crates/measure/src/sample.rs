// SPDX-License-Identifier: Apache-2.0
//! Runs of the generated programs: such a program prints a line when it is done, then waits for the
//! end of its standard input, so that its memory can be read meanwhile.

use crate::child::{Child, Cost, children, reap_orphans, reap_orphans_beside};
use crate::interrupt;
use crate::program::Program;
use crate::tree::ticks;
use anyhow::{Context as _, Result, bail, ensure};
use hugelift_core::smaps::Usage;
use hugelift_linux::proc::procfs::Process;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;
use std::time::Duration;

/// How long hugelift's helper may run on after its program has ended.
const PATIENCE: Duration = Duration::from_secs(10);

/// The cost and the output of a run.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Its cost.
    pub cost: Cost,
    /// All of its standard output.
    pub output: String,
    /// Its memory, where it was read.
    pub memory: Vec<Usage>,
}

impl Program {
    /// Runs it to its end, with empty standard input.
    ///
    /// # Errors
    /// The program cannot be started, or ends with another status than 0.
    pub fn run(&self) -> Result<Sample> {
        self.measure(Stdio::null(), |_, _| Ok(Vec::new()))
    }

    /// Runs it. When it has printed its first line, reads its memory; then closes its standard
    /// input, so that it ends.
    ///
    /// # Errors
    /// Those of [`Program::run`], or it ends before it prints a line.
    pub fn run_and_read_memory(&self) -> Result<Sample> {
        self.measure(Stdio::piped(), |pid, line| {
            ensure!(!line.is_empty(), "{self}: ended before it printed a line");
            Ok(Process::new(pid).smaps()?)
        })
    }

    fn measure(
        &self,
        stdin: Stdio,
        read_memory: impl FnOnce(u32, &str) -> Result<Vec<Usage>>,
    ) -> Result<Sample> {
        let others = children();
        let mut command = self.command()?;
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = Child::start(&mut command)?;
        let streams = child.streams();
        let stdin = streams.stdin.take();
        let mut stdout = BufReader::new(streams.stdout.take().context("no pipe")?);
        let mut output = String::new();
        stdout.read_line(&mut output).context("standard output")?;
        let memory = read_memory(child.pid(), &output);
        drop(stdin);
        stdout.read_to_string(&mut output).context("standard output")?;
        let (status, cost) = child.finish()?;
        let (left_behind, _) = reap_orphans_beside(&others, PATIENCE)?;
        interrupt::check()?;
        ensure!(status.success(), "{self}: {status}");
        Ok(Sample { cost: Cost { left_behind, ..cost }, output, memory: memory? })
    }

    /// Runs a program that prints nothing until its standard input ends, and reads its memory as
    /// soon as it has slept for 0.2 s without using CPU time.
    ///
    /// # Errors
    /// The program is still busy after 10 s, or ends with another status than 0.
    pub fn memory_at_rest(&self) -> Result<Vec<Usage>> {
        let mut command = self.command()?;
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::inherit());
        let mut child = Child::start(&mut command)?;
        let seen = at_rest(child.pid()).and_then(|()| Ok(Process::new(child.pid()).smaps()?));
        drop(child.streams().stdin.take());
        let (status, _) = child.finish()?;
        reap_orphans(PATIENCE)?;
        ensure!(status.success(), "{self}: {status}");
        seen
    }
}

fn at_rest(pid: u32) -> Result<()> {
    let (mut before, mut calm) = (None, 0);
    for _ in 0..1000 {
        std::thread::sleep(Duration::from_millis(10));
        let stat = Process::new(pid).stat()?;
        let now = Some(ticks(&stat));
        calm = if stat.state == 'S' && now == before { calm + 1 } else { 0 };
        before = now;
        if calm == 20 {
            return Ok(());
        }
    }
    bail!("process {pid} is still busy after 10 s")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child;

    /// A child that was there before, such as the shell that puts a setting of the machine back, is not waited for.
    #[test]
    fn a_child_beside_the_program_stays() {
        let _alone = child::alone();
        child::adopt_orphans().unwrap();
        let mut beside = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let others = children();
        assert!(others.contains(&beside.id().cast_signed()), "{others:?}");
        let began = std::time::Instant::now();
        let program = Program::new(["sh", "-c", "(read line) < /dev/null & echo done"]);
        assert_eq!(program.run().unwrap().output, "done\n");
        assert!(began.elapsed() < PATIENCE, "it waited for the other child");
        assert_eq!(children(), others, "an orphan is left");
        assert!(beside.try_wait().unwrap().is_none(), "the other child was waited for");
        beside.kill().unwrap();
        beside.wait().unwrap();
    }
}
