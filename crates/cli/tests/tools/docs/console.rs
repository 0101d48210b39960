// SPDX-License-Identifier: Apache-2.0
//! Blocks of commands with their output. A block ` ```console ` is run, with `needs=PROGRAM` behind it only if there is such
//! a program, with `norun=REASON` not at all.
//!
//! In the output that a block shows a number stands for any number, with any unit of size or time; `…` in a line for
//! anything, and alone in a line for any lines. A command that shows no output may print anything.

use crate::common::run::NO_STORE;
use crate::common::{Cmd, End, HUGELIFT, find, skipped};
use regex::Regex;
use std::path::Path;

/// Commands that change nothing beyond the folder in which a block is run.
const HARMLESS: [&str; 3] = ["hugelift", "cat", "printf"];

/// A number as hugelift prints it, with its unit: `3`, `2 583`, `0.9 ms`.
const NUMBER: &str = r"[0-9]+(?: [0-9]{3}\b)*(?:[.,][0-9]+)*(?: ?(?:B|kB|MB|GB|ns|us|µs|ms|s|min)\b)?";

/// A block between fences.
pub struct Block {
    pub line: usize,
    /// What stands behind the fence.
    pub info: String,
    pub text: String,
}

/// Whether a block is run.
pub enum Mark<'a> {
    Runs,
    /// If there is this program.
    Needs(&'a str),
    /// It is not, for this reason.
    DoesNotRun(&'a str),
}

/// A command, and the lines that it prints.
pub struct Step {
    pub line: String,
    shown: Vec<String>,
}

impl Block {
    pub fn is_console(&self) -> bool {
        self.info == "console" || self.info.starts_with("console,")
    }

    /// Returns whether the block is to be run on this machine.
    ///
    /// # Errors
    /// It is not marked correctly.
    pub fn may_run(&self) -> Result<bool, String> {
        match self.mark()? {
            Mark::Runs => {}
            Mark::Needs(program) if find(program).is_some() => {}
            Mark::Needs(program) => {
                skipped(&format!("a block of the documentation needs {program}"));
                return Ok(false);
            }
            Mark::DoesNotRun(_) => return Ok(false),
        }
        let first = |step: &Step| step.line.split_whitespace().next().unwrap_or_default().to_string();
        match self.commands().map(|step| first(&step)).find(|name| !HARMLESS.contains(&name.as_str())) {
            Some(name) => Err(format!("a block with '{name}' needs norun=REASON")),
            None => Ok(true),
        }
    }

    /// Returns what stands behind `console`.
    ///
    /// # Errors
    /// It is no mark.
    pub fn mark(&self) -> Result<Mark<'_>, String> {
        match self.info.strip_prefix("console").and_then(|mark| mark.split_once('=')) {
            None if self.info == "console" => Ok(Mark::Runs),
            Some((",norun", reason)) if !reason.is_empty() => Ok(Mark::DoesNotRun(reason)),
            Some((",needs", program)) if !program.is_empty() => Ok(Mark::Needs(program)),
            _ => Err(format!("'{}' is not 'console', with ',needs=PROGRAM' or ',norun=REASON'", self.info)),
        }
    }

    /// Returns the commands of a block for a shell: what stands behind the prompts `$` and `#`.
    pub fn commands(&self) -> impl Iterator<Item = Step> {
        let mut steps: Vec<Step> = Vec::new();
        if self.is_console() {
            for line in self.text.replace("\\\n", " ").lines() {
                if let Some(command) = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# ")) {
                    steps.push(Step { line: command.to_string(), shown: Vec::new() });
                } else if let Some(step) = steps.last_mut() {
                    step.shown.push(line.to_string());
                }
            }
        }
        steps.into_iter()
    }
}

/// Runs a block in a folder of its own. Returns what was not as it shows.
pub fn run(block: &Block) -> Vec<String> {
    let home = tempfile::tempdir().expect("a folder");
    let folder = Path::new(HUGELIFT).parent().expect("the folder of hugelift");
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let steps = block.commands();
    let shell = |line: &str| Cmd::new(["sh", "-c", line]).cwd(home.path()).env("PATH", &path);
    steps.flat_map(|step| step.run(at_home(shell(&step.line), home.path()))).collect()
}

/// Sets the environment of a block: nothing of the user is read or written.
pub fn at_home(mut cmd: Cmd, home: &Path) -> Cmd {
    for name in ["HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "TMPDIR"] {
        cmd = cmd.env(name, home);
    }
    cmd.env("LC_ALL", "C").env("HUGELIFT_STORE", NO_STORE)
}

impl Step {
    /// Runs the command, and returns what was not as it shows.
    pub fn run(&self, cmd: Cmd) -> Vec<String> {
        let mut faults = Vec::new();
        let done = cmd.bare();
        // 125 and more: hugelift, or what it should start, has failed.
        if !matches!(done.end, End::Code(0..125)) {
            faults.push(format!("{}: {:?}\n{}{}", self.line, done.end, done.stdout, done.stderr));
        }
        let printed = done.stdout + &done.stderr;
        if !self.shown.is_empty() && !pattern(&self.shown).is_match(&printed) {
            faults.push(format!("{}: it shows\n{}\nand prints\n{printed}", self.line, self.shown.join("\n")));
        }
        faults
    }

    /// Returns the command alone, whatever it prints.
    pub fn without_output(self) -> Step {
        Step { shown: Vec::new(), ..self }
    }
}

/// Returns the expression for the output that a block shows.
fn pattern(shown: &[String]) -> Regex {
    let token = Regex::new(&format!(r"…|{NUMBER}|\s+")).expect("a regex");
    let mut all = String::from("(?s)^");
    for line in shown {
        if line.trim() == "…" {
            all.push_str("(?:[^\n]*\n)*");
            continue;
        }
        let mut end = 0;
        for found in token.find_iter(line.trim_end()) {
            all.push_str(&regex::escape(&line[end..found.start()]));
            all.push_str(match found.as_str() {
                "…" => "[^\n]*",
                space if space.trim().is_empty() => "[ \t]+",
                _ => NUMBER,
            });
            end = found.end();
        }
        all.push_str(&regex::escape(&line.trim_end()[end..]));
        all.push_str("[ \t]*\n");
    }
    all.push('$');
    Regex::new(&all).unwrap_or_else(|e| panic!("{shown:?}: {e}"))
}

#[test]
fn what_a_block_shows_is_compared() {
    let shows = |shown: &[&str], printed: &str| {
        pattern(&shown.iter().map(|line| (*line).to_string()).collect::<Vec<_>>()).is_match(printed)
    };
    assert!(shows(&["text 6 MB of 6 MB (0.9 ms)"], "text 24 kB of  24.5 kB (1 s)\n"));
    assert!(shows(&["2 583 entries"], "982 entries\n"));
    assert!(shows(&["first", "…", "last"], "first\na\nb\nlast\n"));
    assert!(shows(&["is at … now"], "is at /tmp/x now\n"));
    assert!(!shows(&["text 6 MB"], "rodata 6 MB\n"));
    assert!(!shows(&["first"], "first\nsecond\n"));
    assert!(!shows(&["6 MB", "7 MB"], "6 MB\n"));
}
