// SPDX-License-Identifier: Apache-2.0
//! Starts a victim, bare and under hugelift, and compares the two.

use crate::look::Look;
use crate::place::hugelift;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// What a victim's run showed.
#[derive(Debug)]
pub struct Run {
    pub status: ExitStatus,
    pub looks: Vec<Look>,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    fn of(output: Output) -> Run {
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Run { status: output.status, looks: Look::all(&stdout), stdout, stderr }
    }

    /// Returns the only look of a victim, which must have ended as it should.
    pub fn look(&self) -> &Look {
        assert_eq!(self.status.code(), Some(42), "{}\n{}", self.stderr, self.stdout);
        &self.looks[0]
    }

    /// Asserts that hugelift wrote nothing.
    pub fn assert_silent(&self) {
        assert_eq!(self.stderr, "");
    }

    /// Asserts that hugelift wrote one line, with `part` in it.
    pub fn assert_line(&self, part: &str) {
        let lines: Vec<&str> = self.stderr.lines().collect();
        assert!(
            matches!(lines[..], [line] if line.contains(part)),
            "no single line with '{part}': {lines:#?}"
        );
    }

    /// Asserts that it ended as `bare` did, and saw the same bytes.
    pub fn assert_same(&self, bare: &Run) {
        assert_eq!(self.status, bare.status, "{}", self.stderr);
        assert_eq!(self.looks.len(), bare.looks.len(), "{}\n{}", self.stderr, self.stdout);
        for (look, bare) in self.looks.iter().zip(&bare.looks) {
            for (part, bare) in [(look.text, bare.text), (look.rodata, bare.rodata)] {
                assert_eq!((part.bytes, part.sum), (bare.bytes, bare.sum));
            }
            look.assert_intact();
        }
    }
}

/// Returns the command `program args`.
pub fn bare<S: AsRef<OsStr>>(program: &Path, args: &[S]) -> Command {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    command
}

/// Returns the command `hugelift run options -- program args`.
pub fn lifted<S: AsRef<OsStr>>(options: &[S], program: &Path, args: &[S]) -> Command {
    lifted_by(&hugelift(), options, program, args)
}

/// Like [`lifted`], by this hugelift.
pub fn lifted_by<S: AsRef<OsStr>>(hugelift: &Path, options: &[S], program: &Path, args: &[S]) -> Command {
    let mut command = Command::new(hugelift);
    command.args(["run", "--eager"]).args(options).arg("--").arg(program).args(args).stdin(Stdio::null());
    // No test may depend on another's runs.
    command.env("HUGELIFT_STORE", "/dev/null/none");
    command
}

/// Runs a command, and tries again while its file is being written: a file that one test has just written stays open for writing in a
/// child of another test until that child has executed its program.
pub fn run(command: &mut Command) -> Run {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        match command.output() {
            Err(e) if e.kind() == ErrorKind::ExecutableFileBusy && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(20));
            }
            done => return Run::of(done.unwrap_or_else(|e| panic!("{command:?}: {e}"))),
        }
    }
}

/// Runs `program` bare and lifted with `options`, and compares the two. Returns what the lifted run
/// showed.
pub fn compare(options: &[&str], program: &Path) -> Run {
    let lifted = run(&mut lifted(options, program, &[]));
    lifted.assert_same(&run(&mut bare::<&str>(program, &[])));
    lifted
}
