// SPDX-License-Identifier: Apache-2.0
//! A victim that waits for a line on its stdin while the test examines it.

use crate::look::Look;
use crate::start::lifted;
use hugelift_core::smaps::Usage;
use hugelift_linux::proc::procfs::Process;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// The running victim. Ended when dropped.
pub struct Held {
    child: Child,
    out: BufReader<ChildStdout>,
    /// Its output so far.
    pub said: String,
}

impl Held {
    /// Starts `hugelift run options -- program args`, and returns when the program has looked at
    /// itself.
    pub fn lifted(options: &[&str], program: &Path, args: &[&str], env: &[(&str, &Path)]) -> Held {
        Held::start(lifted(options, program, args).envs(env.iter().copied()))
    }

    fn start(command: &mut Command) -> Held {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        while !said.ends_with("\nend\n") {
            assert_ne!(out.read_line(&mut said).unwrap(), 0, "{said}");
        }
        Held { child, out, said }
    }

    /// Returns what it saw of itself.
    pub fn look(&self) -> Look {
        Look::all(&self.said).remove(0)
    }

    /// Returns the two hexadecimal numbers of the line `NAME START BYTES` in its output.
    pub fn place(&self, name: &str) -> (u64, u64) {
        let line = self.said.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')).unwrap();
        let mut words = line.split(' ').map(|w| u64::from_str_radix(w, 16).unwrap());
        (words.next().unwrap(), words.next().unwrap())
    }

    pub fn smaps(&self) -> Vec<Usage> {
        Process::new(self.child.id()).smaps().unwrap()
    }

    /// Lets it end, and asserts that it ends as it should.
    pub fn finish(mut self) {
        self.child.stdin.take().unwrap().write_all(b"\n").unwrap();
        self.out.read_to_string(&mut self.said).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(42), "{}", self.said);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
