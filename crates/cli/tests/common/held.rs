// SPDX-License-Identifier: Apache-2.0
//! A program that is kept running while the test examines it from outside.

use super::favoured::Favoured;
use super::run::{Cmd, End, Outcome, PATIENCE, end_group, shown, spawn, wait};
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::time::{Duration, Instant};

/// A running program whose stdin is still open. Killed when dropped.
pub struct Held {
    child: Child,
    stdin: Option<ChildStdin>,
    words: String,
    /// Kept until it ends.
    _turn: Option<Favoured>,
}

impl Held {
    /// Starts the command and waits until it runs `program`, is not traced, and sleeps, as a
    /// program does that waits for its stdin.
    pub fn start(cmd: &Cmd, options: Option<&[&str]>, program: &Path) -> Held {
        Held::begin(cmd, options, program, true)
    }

    /// Like [`Held::start`], but does not wait for sleep: for a program that keeps computing.
    pub fn start_busy(cmd: &Cmd, options: Option<&[&str]>, program: &Path) -> Held {
        Held::begin(cmd, options, program, false)
    }

    /// Like [`Held::start_busy`], but it gets a CPU whatever else runs on the machine ([`Favoured`]).
    pub fn start_favoured(cmd: &Cmd, program: &Path) -> Held {
        let turn = Favoured::take();
        let mut held = Held::start_busy(cmd, None, program);
        turn.favour(held.pid());
        held._turn = Some(turn);
        held
    }

    fn begin(cmd: &Cmd, options: Option<&[&str]>, program: &Path, asleep: bool) -> Held {
        let words = shown(&cmd.words(options));
        let mut command = cmd.command(options);
        command.stdin(Stdio::piped());
        let mut child = spawn(&mut command).unwrap_or_else(|e| panic!("{words}: {e}"));
        let stdin = child.stdin.take();
        let mut held = Held { child, stdin, words, _turn: None };
        let program = program.canonicalize().unwrap_or_else(|e| panic!("{}: {e}", program.display()));
        held.settle(&program, asleep);
        held
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes to its stdin.
    pub fn write(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().expect("its stdin is open");
        stdin.write_all(bytes).unwrap_or_else(|e| panic!("{}: {e}", self.words));
    }

    /// Returns the text of a file in its /proc directory.
    pub fn proc(&self, name: &str) -> String {
        let path = format!("/proc/{}/{name}", self.pid());
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {path}: {e}", self.words))
    }

    fn settle(&mut self, program: &Path, asleep: bool) {
        let deadline = Instant::now() + PATIENCE;
        let mut calm = 0;
        while calm < 4 {
            if self.child.try_wait().expect("wait for our own child").is_some() || Instant::now() > deadline {
                let words = self.words.clone();
                let what = self.end_now();
                panic!("{words}\nis not waiting for its stdin as {}: {what:?}", program.display());
            }
            let calm_now = self.is(program) && self.is_untraced() && (!asleep || self.is_asleep());
            calm = if calm_now { calm + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn is(&self, program: &Path) -> bool {
        std::fs::read_link(format!("/proc/{}/exe", self.pid())).is_ok_and(|exe| exe == program)
    }

    /// Returns whether no process traces it.
    pub fn is_untraced(&self) -> bool {
        self.proc("status").lines().any(|line| line.split_whitespace().eq(["TracerPid:", "0"]))
    }

    fn is_asleep(&self) -> bool {
        let stat = self.proc("stat");
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'))
    }

    /// Closes its stdin and waits for its end.
    pub fn finish(mut self) -> Outcome {
        drop(self.stdin.take());
        let (mut stdout, mut stderr) = (String::new(), String::new());
        // The output of these programs fits into a pipe, so it can be read after their end.
        let end = wait(&mut self.child, Instant::now() + PATIENCE)
            .unwrap_or_else(|| panic!("{} does not end after the end of its stdin", self.words));
        let _ = self.child.stdout.take().map(|mut s| s.read_to_string(&mut stdout));
        let _ = self.child.stderr.take().map(|mut s| s.read_to_string(&mut stderr));
        Outcome { stdout, stderr, end }
    }

    /// Kills it, and returns its stdout, its stderr and how it ended.
    fn end_now(&mut self) -> (String, String, Option<End>) {
        end_group(&mut self.child);
        let read = |stream: Option<&mut dyn Read>| {
            let mut text = Vec::new();
            let _ = stream.map(|s| s.read_to_end(&mut text));
            String::from_utf8_lossy(&text).into_owned()
        };
        let out = read(self.child.stdout.as_mut().map(|s| s as &mut dyn Read));
        let err = read(self.child.stderr.as_mut().map(|s| s as &mut dyn Read));
        (out, err, self.child.try_wait().ok().flatten().map(End::from))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        end_group(&mut self.child);
    }
}

/// Returns the executable and the shared objects that the loader maps before the entry point, as
/// the loader itself lists them (ldd(1)); only the executable if it has no loader.
pub fn needed(program: &Path) -> Vec<PathBuf> {
    let mut all = vec![program.canonicalize().expect("the program is there")];
    let listed = std::process::Command::new("ldd").arg(program).env_remove("LD_PRELOAD").output();
    let listed = listed.unwrap_or_else(|e| panic!("ldd: {e}"));
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    all.extend(
        text.split_whitespace()
            .filter(|w| w.starts_with('/'))
            .filter_map(|w| Path::new(w).canonicalize().ok()),
    );
    all.sort();
    all.dedup();
    all
}
