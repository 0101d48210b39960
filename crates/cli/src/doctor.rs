// SPDX-License-Identifier: Apache-2.0
//! `hugelift doctor`: finds what prevents huge pages on this machine or in a process.

use crate::colour::When;
use crate::commands_shown::run_shown;
use crate::failure::{Exit, Failure};
use crate::output;
use crate::process_id;
use clap::Args;
use hugelift_core::printable::Escape;
use hugelift_doctor::facts::Facts;
use hugelift_doctor::next::next;
use hugelift_doctor::offers;
use hugelift_doctor::read;
use hugelift_doctor::worth::most_worth;
use hugelift_doctor::{Finding, Severity, VERSION, diagnose};
use hugelift_lab::read_machine::read_machine;
use hugelift_lab::results::Report;
use hugelift_lab::saved;
use hugelift_linux::io::console;
use hugelift_linux::io::entry::Entry;
use hugelift_linux::io::open;
use hugelift_linux::io::read::read_within;
use hugelift_linux::io::terminal;
use hugelift_linux::machine::tree::Tree;
use hugelift_report::doctor::{Style, finding_text, measured, next as show_next, text, worth};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufRead, IsTerminal};
use std::path::{Path, PathBuf};

/// Exit status where there is a problem or a warning, not only notes.
const FOUND: i32 = 1;

/// Find what prevents huge pages, and the commands that change it
///
/// hugelift does not guess from the kernel's version: it tries out what the kernel does, with memory
/// and small files of its own, which it removes. The last lines name the running programs that would
/// gain most from a lift, and the command to type next. The exit status is 1 if there is a problem or a warning, otherwise 0.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Also examine this process
    #[arg(long, value_name = "PID", value_parser = process_id::parse)]
    pid: Option<u32>,

    /// Print JSON, version 1 of the schema, with all facts
    #[arg(long, conflicts_with = "fix")]
    json: bool,

    /// Run the commands that cost nothing and can be undone; ask before each
    #[arg(long)]
    fix: bool,

    /// With --fix: do not ask
    #[arg(long, requires = "fix")]
    yes: bool,

    /// Also show what 'hugelift lab' has measured on this machine
    #[arg(long, conflicts_with = "fix")]
    lab: bool,

    /// Try out the file system of this folder [default: that of temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Diagnose the facts that --json has printed, here or on another machine
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pid", "fix", "dir"])]
    facts: Option<PathBuf>,

    /// Read /proc and /sys below this folder
    #[arg(long, hide = true, value_name = "DIR", conflicts_with_all = ["pid", "facts", "dir"])]
    root: Option<PathBuf>,
}

/// Prints the diagnosis, or runs the safe commands of it (`--fix`).
///
/// # Errors
/// The facts cannot be read, a command fails, or the diagnosis cannot be printed.
pub fn run(args: &DoctorArgs, colour: When) -> Result<Exit, Failure> {
    let style = Style { width: terminal::width().unwrap_or(80), colour: colour.on_stdout() };
    let facts = facts(args)?;
    let mut findings = diagnose(&facts);
    if args.json {
        console::print(&output::json(&as_json(&facts, &findings, &lab_results(args)))?)?;
    } else if args.fix {
        if fix(args, &findings, style)? {
            findings = diagnose(&self::facts(args)?);
        }
    } else {
        let lab = if args.lab { measured(&lab_results(args), style) } else { String::new() };
        let next = show_next(&next(&facts, &findings), style);
        print(&(text(&facts, &findings, style) + &lab + &worth(&facts) + &next), style)?;
    }
    let worst = findings.iter().map(|f| f.severity).max();
    Ok(if worst.is_some_and(|w| w >= Severity::Warning) { Exit(FOUND) } else { Exit::SUCCESS })
}

/// No output of doctor is larger, in bytes.
const MAX_FACTS: u64 = 64 << 20;

/// Reads a regular file, or what the caller has opened: `/dev/stdin`, or a pipe of the shell (`<(command)`).
fn read_facts(path: &Path) -> io::Result<String> {
    if !Entry::find(path).is_ok_and(|entry| entry.is_magic()) {
        return open::text(path, MAX_FACTS);
    }
    let bytes = read_within(File::open(path)?, MAX_FACTS)?;
    String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

fn facts(args: &DoctorArgs) -> Result<Facts, Failure> {
    if let Some(path) = &args.facts {
        let failed = |why: String| format!("--facts: cannot read {}: {why}", path.escaped());
        let text = read_facts(path).map_err(|e| failed(e.to_string()))?;
        #[derive(serde::Deserialize)]
        struct Printed {
            facts: Facts,
        }
        let printed: Printed = serde_json::from_str(&text)
            .map_err(|e| failed(format!("{e}; the file must hold the output of 'hugelift doctor --json'")))?;
        return Ok(printed.facts);
    }
    let folder = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    if !folder.is_dir() {
        return Err(format!("--dir: {} is not a folder", folder.escaped()).into());
    }
    let tree = Tree::new(args.root.clone());
    let mut facts = read::facts(&tree, args.pid, &folder)?;
    if tree.is_live() && !args.fix {
        facts.programs = read::programs();
    }
    Ok(facts)
}

/// Returns the results of `hugelift lab` on this machine with this kernel; none where the facts are
/// those of another machine.
fn lab_results(args: &DoctorArgs) -> Vec<Report> {
    if args.facts.is_some() || args.root.is_some() {
        return Vec::new();
    }
    let mut reports = saved::folder().map(|folder| saved::load(&folder)).unwrap_or_default();
    if !reports.is_empty() {
        let here = read_machine(&Tree::default());
        reports.retain(|report| report.is_sure() && report.machine.is_like(&here));
    }
    reports
}

fn as_json(facts: &Facts, findings: &[Finding], lab: &[Report]) -> Value {
    let offers = facts.process.as_ref().map(offers).unwrap_or_default();
    let lab =
        lab.iter().map(|r| json!({ "experiment": r.experiment, "date": r.date, "advice": r.outcome.advice }));
    let measured: Vec<_> = lab.collect();
    json!({ "version": VERSION, "findings": findings, "offers": offers, "facts": facts,
            "measured": measured, "worth": most_worth(facts), "next": next(facts, findings) })
}

fn print(text: &str, style: Style) -> Result<(), Failure> {
    Ok(output::print(text, style.colour)?)
}

/// Shows the safe commands, and runs those that the user agrees to. Returns whether any was run.
fn fix(args: &DoctorArgs, findings: &[Finding], style: Style) -> Result<bool, Failure> {
    let safe: Vec<(&Finding, &String)> =
        findings.iter().filter(|f| f.safe).filter_map(|f| Some((f, f.command.as_ref()?))).collect();
    let rest = findings.len() - safe.len();
    if safe.is_empty() {
        print("nothing to fix: no finding has a command that costs nothing and can be undone\n", style)?;
    }
    let ask = !args.yes;
    if ask && !safe.is_empty() && !std::io::stdin().is_terminal() {
        return Err("--fix asks before each command, and standard input is not a terminal: add --yes".into());
    }
    let mut any = false;
    for (finding, command) in safe {
        print(&finding_text(finding, style), style)?;
        if ask && !agreed(style)? {
            continue;
        }
        run_shown(command)?;
        print("  done\n", style)?;
        any = true;
    }
    if rest > 0 {
        print(&format!("\n{rest} more that you must decide on: hugelift doctor\n"), style)?;
    }
    Ok(any)
}

fn agreed(style: Style) -> Result<bool, Failure> {
    print("  run it? [y/N] ", style)?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).map_err(|e| format!("standard input: {e}"))?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
