// SPDX-License-Identifier: Apache-2.0
//! A diagnosis as text: what works, then the findings, worst first.

use crate::paint::paint;
use hugelift_core::addr::human_bytes;
use hugelift_core::printable::printable;
use hugelift_doctor::alone::{Remains, remains};
use hugelift_doctor::facts::{Facts, Tried};
use hugelift_doctor::next::Next;
use hugelift_doctor::worth::{Worth, most_worth};
use hugelift_doctor::{Finding, Severity, offers, ready_huge_pages};
use hugelift_lab::results::Report;
use std::fmt::Write as _;

/// How to show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Style {
    /// Columns of the terminal.
    pub width: usize,
    /// Whether to use colours.
    pub colour: bool,
}

impl Style {
    fn paint(self, code: &str, text: &str) -> String {
        paint(self.colour, code, text)
    }
}

/// Returns the diagnosis without its last paragraphs, [`measured`], [`worth`] and [`next`].
pub fn text(facts: &Facts, findings: &[Finding], style: Style) -> String {
    let mut out = head(facts);
    if let Some(tried) = tried(facts, style) {
        out += &tried;
    }
    out += &seen(facts);
    out += &alone(facts, style).unwrap_or_default();
    out += &process(facts);
    let count = match findings.len() {
        0 => "nothing found: this machine is set up well for huge pages".to_string(),
        1 => "1 finding".to_string(),
        n => format!("{n} findings, worst first"),
    };
    let _ = writeln!(out, "\n{count}");
    for finding in findings {
        out += &finding_text(finding, style);
    }
    out
}

/// Returns the advice of experiments that ran on this machine.
pub fn measured(reports: &[Report], style: Style) -> String {
    let mut out = String::new();
    for report in reports.iter().filter(|report| !report.outcome.advice.is_empty()) {
        out += if out.is_empty() { "\nmeasured on this machine\n" } else { "" };
        let day = report.date.split('T').next().unwrap_or_default();
        let advice = report.outcome.advice.join(" ");
        let words = format!("lab {} measured here on {day}: {advice}", report.experiment);
        out += &wrapped("  ", &printable(&words), style.width);
    }
    out
}

/// Returns the programs that are most worth a lift; empty if there are none.
pub fn worth(facts: &Facts) -> String {
    let all = most_worth(facts);
    if all.is_empty() {
        return String::new();
    }
    let mut out = "\nthe running programs that are most worth a lift, by code and CPU time\n".to_string();
    for Worth { program, command, attach } in &all {
        let processes = match program.processes {
            1 => format!("process {}", program.pid),
            n => format!("{n} processes, the busiest is {}", program.pid),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "  {}: {} of the {} of its code that could be huge are on small pages; {:.0} s of CPU time ({processes})",
            printable(&program.exe),
            human_bytes(program.text.liftable.saturating_sub(program.text.huge)),
            human_bytes(program.text.liftable),
            program.cpu_seconds,
        );
        if let Some(attach) = attach {
            let _ = writeln!(out, "    now   {}", printable(attach));
        }
        let _ = writeln!(out, "    run   {}", printable(command));
    }
    out += "  Add the usual arguments of each. 'hugelift compare' in place of 'hugelift run' shows how much faster \
            it gets.\n";
    out
}

/// Returns the last line: what to do next.
pub fn next(next: &Next, style: Style) -> String {
    format!("\nnext: {}   ({})\n", style.paint("1", &printable(&next.command)), next.what)
}

fn head(facts: &Facts) -> String {
    let kernel = facts.kernel.as_deref().unwrap_or("of an unknown release");
    let cpu = facts.cpu.as_deref().unwrap_or("unknown CPU");
    let guest = if facts.guest == Some(true) { ", in a guest" } else { "" };
    format!("Linux {}, {}{guest}\n", printable(kernel), printable(cpu))
}

fn tried(facts: &Facts, style: Style) -> Option<String> {
    let probes = facts.probes.as_ref()?;
    let file = |what: &str| format!("{what} on {}", probes.file_system);
    let rows: [(String, &Tried); 8] = [
        ("huge pages at the first touch (MADV_HUGEPAGE)".into(), &probes.fault),
        ("MADV_COLLAPSE of anonymous memory".into(), &probes.collapse_anonymous),
        ("MADV_COLLAPSE of shared memory (memfd)".into(), &probes.collapse_shmem),
        (file("MADV_COLLAPSE of a file's code"), &probes.collapse_file),
        (file("huge page cache of a primed file"), &probes.primed_file),
        ("pages of the hugetlb pool".into(), &probes.hugetlb),
        ("tracing a child (ptrace)".into(), &probes.ptrace),
        ("hardware counters".into(), &probes.counter),
    ];
    let head = format!("\ntried on this machine (files in {})\n", printable(&probes.folder));
    Some(head + &table(&rows, style))
}

/// Returns what the machine does without hugelift, and what remains.
fn alone(facts: &Facts, style: Style) -> Option<String> {
    let (alone, Remains { left, setting }) = (facts.alone.as_ref()?, remains(facts)?);
    let rows: [(String, &Tried); 6] = [
        ("code that is read from the disk gets huge pages".into(), &alone.code),
        ("large files are mapped at addresses that huge pages can use".into(), &alone.aligned_files),
        ("private memory gets huge pages without asking for them".into(), &alone.memory),
        (
            "a process can forbid huge pages except where it asks (PR_THP_DISABLE_EXCEPT_ADVISED)".into(),
            &alone.except_advised,
        ),
        ("the loader can ask for huge pages for code (glibc.elf.thp)".into(), &alone.loader),
        ("a unit can allow or forbid huge pages (systemd's MemoryTHP=)".into(), &alone.units),
    ];
    let mut out = "\nwhat this machine does without hugelift\n".to_string() + &table(&rows, style);
    if let Some(left) = left {
        out += &wrapped("  so  ", left, style.width);
    }
    if let Some(setting) = setting {
        out += &wrapped("  set ", setting, style.width);
    }
    Some(out)
}

/// Returns a line for each trial.
fn table(rows: &[(String, &Tried)], style: Style) -> String {
    let mut out = String::new();
    for (what, tried) in rows {
        let (word, code) = match tried.works {
            Some(true) => ("yes", "32"),
            Some(false) => ("no ", "31"),
            None => ("?  ", "33"),
        };
        let detail = tried.detail.as_ref().map(|d| format!(": {}", printable(d))).unwrap_or_default();
        let _ = writeln!(out, "  {} {what}{detail}", style.paint(code, word));
    }
    out
}

/// Returns the figures that belong to no finding.
fn seen(facts: &Facts) -> String {
    let mut out = String::new();
    if let (Some(pages), Some(size)) = (ready_huge_pages(facts), facts.thp.page_size) {
        let _ = writeln!(out, "  {pages} pages of {} are free now, without compaction", human_bytes(size));
    }
    let count = |name: &str| facts.counters.get(name);
    if let (Some(got), Some(failed)) = (count("thp_fault_alloc"), count("thp_fault_fallback")) {
        let _ = write!(out, "  since boot: {got} huge pages at page faults, {failed} refused");
        if let (Some(stalls), Some(made)) = (count("compact_stall"), count("thp_collapse_alloc")) {
            let _ = write!(out, "; {made} by khugepaged or MADV_COLLAPSE; {stalls} waits for compaction");
        }
        out.push('\n');
    }
    out
}

fn process(facts: &Facts) -> String {
    let Some(process) = &facts.process else { return String::new() };
    let text = process.text;
    let mut out = format!("\nprocess {}: {}\n", process.pid, printable(&process.exe));
    let _ = writeln!(
        out,
        "  code {}, could be huge {}, is huge {}; private memory {}, huge {}",
        human_bytes(text.bytes),
        human_bytes(text.liftable),
        human_bytes(text.huge),
        human_bytes(process.anonymous),
        human_bytes(process.writable_thp.saturating_add(process.writable_hugetlb))
    );
    for offer in offers(process) {
        let state = match offer.on {
            Some(true) => "on",
            Some(false) => "off",
            None => "-",
        };
        let _ = writeln!(out, "  {} offers {} [{state}: {}]", offer.who, offer.how, printable(&offer.seen));
    }
    out
}

/// Returns one finding, also for `--fix`.
pub fn finding_text(finding: &Finding, style: Style) -> String {
    let (word, code) = match finding.severity {
        Severity::Problem => ("PROBLEM", "1;31"),
        Severity::Warning => ("WARNING", "1;33"),
        Severity::Note => ("NOTE   ", "1;36"),
    };
    let mut out = format!("\n{} {} [{}]\n", style.paint(code, word), printable(&finding.title), finding.key);
    for reading in &finding.read {
        out += &format!("  read  {}: {}\n", printable(&reading.source), printable(&reading.value));
    }
    out += &wrapped("  why   ", &finding.why, style.width);
    if let Some(command) = &finding.command {
        // The command is not wrapped, so that it can be copied.
        let _ = writeln!(
            out,
            "  run   {}{}",
            style.paint("1", &printable(command)),
            if finding.safe { "   (--fix)" } else { "" }
        );
    }
    if let Some(advice) = &finding.advice {
        out += &wrapped(
            if finding.command.is_some() { "  also  " } else { "  help  " },
            &printable(advice),
            style.width,
        );
    }
    out
}

/// Returns `head` and `text`, wrapped between words; further lines are indented by the width of `head`.
fn wrapped(head: &str, text: &str, width: usize) -> String {
    let indent = head.chars().count();
    let room = width.saturating_sub(indent).max(20);
    let (mut out, mut line) = (String::new(), String::new());
    let mut first = true;
    let mut flush = |line: &mut String| {
        let _ = writeln!(
            out,
            "{}{line}",
            if std::mem::take(&mut first) { head.to_string() } else { " ".repeat(indent) }
        );
        line.clear();
    };
    for word in text.split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > room {
            flush(&mut line);
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    flush(&mut line);
    out
}

#[cfg(test)]
mod tests;
