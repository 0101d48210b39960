// SPDX-License-Identifier: Apache-2.0
//! A process of hugelift that lifts the processes which it is told: `hugelift attach --watch --stdin`.
//!
//! It decides by itself when a lift is worth its cost. It is a process of its own, so that a crash of it changes neither the
//! daemon nor a program. What it has lifted stays so when it ends.

use crate::machine::child::start;
use crate::machine::line::{Line, parse};
use crate::machine::wants::Wants;
use hugelift_core::proc_stat::Identity;
use hugelift_linux::command::{drain, never_wait};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, write};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Stdio};

/// The longest line that is taken: the report on one process.
const LONGEST: usize = 16 << 20;
/// Bytes that wait to be written at most: it reads them every second.
const WAITING: usize = 1 << 20;

/// A process that lifts others.
#[derive(Debug)]
pub struct Lifter {
    child: Child,
    input: OwnedFd,
    output: OwnedFd,
    waiting: VecDeque<u8>,
    rest: Vec<u8>,
    /// A line that was longer is skipped to its end.
    skips: bool,
}

impl Lifter {
    /// Starts it. Its messages go where those of this process go, and it ends with the thread that calls this.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(wants: &Wants) -> io::Result<Lifter> {
        let mut child = start(&wants.words(), Stdio::piped(), Stdio::piped())?;
        let pipes = (child.stdin.take().map(OwnedFd::from), child.stdout.take().map(OwnedFd::from));
        let (Some(input), Some(output)) = pipes else { return Err(Errno::EPIPE.into()) };
        for fd in [&input, &output] {
            never_wait(fd)?;
        }
        Ok(Lifter { child, input, output, waiting: VecDeque::new(), rest: Vec::new(), skips: false })
    }

    /// Returns its id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Names a process to it. Returns whether there was room.
    pub fn give(&mut self, (pid, start): Identity) -> bool {
        self.say(&format!("{pid} {start}\n"))
    }

    /// Says that a process is not to be watched any more.
    pub fn take_back(&mut self, (pid, start): Identity) {
        self.say(&format!("-{pid} {start}\n"));
    }

    fn say(&mut self, line: &str) -> bool {
        let fits = self.waiting.len() + line.len() <= WAITING;
        if fits {
            self.waiting.extend(line.bytes());
            self.write();
        }
        fits
    }

    /// Writes as much as it takes now.
    pub fn write(&mut self) {
        while !self.waiting.is_empty() {
            let (first, _) = self.waiting.as_slices();
            match write(&self.input, first) {
                Ok(count) => drop(self.waiting.drain(..count)),
                Err(Errno::EINTR) => {}
                // It has ended, or is busy.
                Err(_) => return,
            }
        }
    }

    /// Returns the descriptor to write to, if there is anything to write.
    pub fn to_write(&self) -> Option<BorrowedFd<'_>> {
        (!self.waiting.is_empty()).then(|| self.input.as_fd())
    }

    /// Reads what it has done since the last call, and whether it has ended.
    pub fn read(&mut self) -> (Vec<Line>, bool) {
        let (mut lines, mut bytes) = (Vec::new(), Vec::new());
        let has_ended = drain(&self.output, |more| bytes.extend_from_slice(more));
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.skips |= self.rest.len() + piece.len() > LONGEST;
            if !self.skips {
                self.rest.extend_from_slice(piece);
            }
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.rest);
                if !std::mem::take(&mut self.skips) {
                    lines.extend(parse(&line));
                }
            }
        }
        (lines, has_ended)
    }

    /// Asks it to end. What it has lifted stays so.
    pub fn stop(&self) {
        let _ = kill(Pid::from_raw(self.pid().cast_signed()), Signal::SIGTERM);
    }

    /// Returns how it has ended, once it has.
    pub fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        Some(status.to_string())
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// Waits for its end.
    pub fn wait(mut self) {
        let _ = self.child.wait();
    }
}

impl AsFd for Lifter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.output.as_fd()
    }
}
