// SPDX-License-Identifier: Apache-2.0
//! An experiment on a process that runs: `hugelift compare --pid`, a process of its own. It lifts and restores in turn, and
//! restores at its end, also after an error and at SIGTERM.

use super::child::start;
use super::outcome::Outcome;
use hugelift_core::proc_stat::Identity;
use hugelift_linux::command::{drain, never_wait};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// The most of its output that is taken: an hour of short periods has less.
const LONGEST: usize = 64 << 20;
/// The time that it may take besides the periods: to find what is steady, and to lift for the first time.
const BESIDE: Duration = Duration::from_secs(120);
/// Between two checks whether it has ended, once its output is closed.
const CLOSED: Duration = Duration::from_millis(20);
/// The time that it has to restore the process after SIGTERM.
const ENDING: Duration = Duration::from_secs(30);

/// An experiment that runs.
#[derive(Debug)]
pub struct Experiment {
    /// The process.
    pub process: Identity,
    child: Child,
    output: OwnedFd,
    said: Vec<u8>,
    /// When it is asked to end, and when it is ended.
    deadline: Instant,
    is_asked: bool,
    /// Its output is closed, and when it is checked next whether it has ended.
    is_closed: bool,
    next: Instant,
}

impl Experiment {
    /// Starts an experiment of so many seconds.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(process: Identity, seconds: u64) -> io::Result<Experiment> {
        let pid = process.0.to_string();
        let time = format!("{seconds}s");
        let words =
            ["compare", "--pid", &pid, "--time", &time, "--leave", "bare", "--json"].map(String::from);
        Experiment::of(process, start(&words, Stdio::null(), Stdio::piped())?, seconds)
    }

    /// Returns the experiment of so many seconds that `child` makes. The output of `child` is a pipe.
    fn of(process: Identity, mut child: Child, seconds: u64) -> io::Result<Experiment> {
        let Some(output) = child.stdout.take().map(OwnedFd::from) else { return Err(Errno::EPIPE.into()) };
        never_wait(&output)?;
        let deadline = Instant::now() + 2 * Duration::from_secs(seconds) + BESIDE;
        Ok(Experiment {
            process,
            child,
            output,
            said: Vec::new(),
            deadline,
            is_asked: false,
            is_closed: false,
            next: deadline,
        })
    }

    /// Returns the id of the process that makes it.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the descriptor of its output, until that is closed.
    pub fn to_read(&self) -> Option<BorrowedFd<'_>> {
        (!self.is_closed).then(|| self.output.as_fd())
    }

    /// Returns when it must be looked at without an event.
    pub fn next(&self) -> Instant {
        self.next.min(self.deadline)
    }

    /// Takes what it has said. Returns the outcome once it has ended, or was killed: a process that answers nothing may hold it
    /// up in the kernel, so nobody waits for its end.
    pub fn turn(&mut self) -> Option<Outcome> {
        let now = Instant::now();
        self.is_closed = self.is_closed || self.read();
        if self.is_closed {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(self.outcome(status.success())),
                // It closes its output at its end.
                _ => self.next = now + CLOSED,
            }
        }
        if now >= self.deadline && self.is_asked {
            let _ = self.child.kill();
            return Some(Outcome::none());
        }
        if now >= self.deadline {
            (self.is_asked, self.deadline) = (true, now + ENDING);
            self.stop();
        }
        None
    }

    /// Returns what it has found out. Where it says that it has failed, that is nothing.
    fn outcome(&self, is_success: bool) -> Outcome {
        if is_success { Outcome::parse(&self.said) } else { Outcome::none() }
    }

    /// Returns the process that makes the experiment, which may not have ended yet.
    pub fn into_child(self) -> Child {
        self.child
    }

    /// Reads; returns whether its output is closed.
    fn read(&mut self) -> bool {
        let said = &mut self.said;
        drain(&self.output, |bytes| {
            if said.len() + bytes.len() <= LONGEST {
                said.extend_from_slice(bytes);
            }
        })
    }

    /// Asks it to end.
    pub fn stop(&self) {
        let _ = kill(Pid::from_raw(self.pid().cast_signed()), Signal::SIGTERM);
    }

    /// Asks it to end, and waits until it has restored the process, or until this time has come. Returns its child if it
    /// has not ended by then: it goes on by itself.
    pub fn finish(mut self, deadline: Instant) -> Option<Child> {
        self.stop();
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() >= deadline {
                return Some(self.child);
            }
            self.read();
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Returns an experiment whose process runs `script`, once that has said something.
    fn experiment(script: &str) -> Experiment {
        let child = Command::new("/bin/sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut new = Experiment::of((1, 1), child, 0).unwrap();
        while new.said.is_empty() {
            assert!(!new.read(), "{script} has closed its output");
            std::thread::sleep(Duration::from_millis(5));
        }
        new
    }

    #[test]
    fn one_that_has_not_ended_in_time_is_returned() {
        assert!(experiment("echo; exec sleep 600").finish(Instant::now() + BESIDE).is_none());
        let mut late = experiment("trap '' TERM; echo; exec sleep 600").finish(Instant::now()).unwrap();
        late.kill().unwrap();
        late.wait().unwrap();
    }
}
