// SPDX-License-Identifier: Apache-2.0
//! A process whose output is read while it runs.

use crate::common::End;
use crate::common::run::{PATIENCE, end_group, lines_of, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;

/// A process whose output is read line by line. Killed when dropped.
pub struct Running {
    pub child: Child,
    pub out: Receiver<String>,
    pub err: Receiver<String>,
}

impl Running {
    pub fn start(command: &mut Command) -> Running {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.process_group(0).spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let out = lines_of(child.stdout.take().expect("piped"));
        let err = lines_of(child.stderr.take().expect("piped"));
        Running { child, out, err }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn out(&self) -> String {
        self.out.recv_timeout(PATIENCE).expect("a line on stdout")
    }

    pub fn err(&self) -> String {
        self.err.recv_timeout(PATIENCE).expect("a line on stderr")
    }

    /// Returns the lines that are there, and those until the end.
    pub fn rest(lines: &Receiver<String>) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            match lines.recv_timeout(PATIENCE) {
                Ok(line) => all.push(line),
                Err(RecvTimeoutError::Disconnected) => return all,
                Err(RecvTimeoutError::Timeout) => panic!("no end after {all:?}"),
            }
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid().cast_signed()), signal).expect("kill");
    }

    /// Waits for its end; returns its status and the lines that were left.
    pub fn end(mut self) -> (Option<End>, Vec<String>, Vec<String>) {
        drop(self.child.stdin.take());
        let end = wait(&mut self.child, Instant::now() + PATIENCE);
        (end, Running::rest(&self.out), Running::rest(&self.err))
    }

    /// Ends the watch by a signal; returns the lines that were left.
    #[track_caller]
    pub fn stop(self, signal: Signal) -> (Vec<String>, Vec<String>) {
        self.signal(signal);
        let (end, out, err) = self.end();
        assert_eq!(end, Some(End::Code(0)), "{out:?} {err:?}");
        assert!(err.last().is_some_and(|line| line.contains("hugelift watched for")), "{err:?}");
        (out, err)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        end_group(&mut self.child);
    }
}
