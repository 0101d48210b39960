// SPDX-License-Identifier: Apache-2.0
//! One process: what of it is huge, and what that costs it.

use super::{Finding, quoted};
use crate::facts::{CodeObject, Facts, Process};
use hugelift_core::addr::human_bytes;

/// Less writable memory on huge pages than this makes no spike worth a word.
const MUCH_WRITABLE: u64 = 64 << 20;
/// Fewer bytes than this tell nothing of a habit.
const MUCH_EXAMINED: u64 = 32 << 20;
/// Less code than this is not worth a lift.
const MUCH_CODE: u64 = 4 << 20;
/// Servers that fork to save their memory.
const SNAPSHOTTERS: [&str; 5] =
    ["redis-server", "redis-check-rdb", "valkey-server", "keydb-server", "kvrocks"];

pub(super) fn findings(facts: &Facts, process: &Process, out: &mut Vec<Finding>) {
    // Who forks to save has its reasons (redis: disable-thp).
    if process.thp_enabled == Some(false) && !SNAPSHOTTERS.contains(&name(process)) {
        let why =
            "it, or whoever started it, has called prctl(PR_SET_THP_DISABLE): no switch of the machine helps";
        out.push(
            Finding::problem("process-thp-off", "the process gets no transparent huge pages", why)
                .seen(format!("/proc/{}/status", process.pid), "THP_enabled: 0")
                .advice("start it without, or lift it onto the pool: hugelift run --backing hugetlb"),
        );
    }
    code(facts, process, out);
    forks(facts, process, out);
    bloat(facts, process, out);
    zero_pages(facts, process, out);
}

/// The file name of the executable.
pub(super) fn name(process: &Process) -> &str {
    process.exe.rsplit('/').next().unwrap_or_default()
}

fn smaps(process: &Process) -> String {
    format!("/proc/{}/smaps", process.pid)
}

fn code(facts: &Facts, process: &Process, out: &mut Vec<Finding>) {
    let text = process.text;
    if text.liftable < MUCH_CODE || text.huge.saturating_mul(2) >= text.liftable {
        return;
    }
    let why = "whether that costs time depends on how much of the code is hot: hugelift compare tells";
    let title = format!(
        "{} of {} of its code that could be huge is not",
        human_bytes(text.liftable - text.huge),
        human_bytes(text.liftable)
    );
    let mut finding = Finding::note("code-not-huge", title, why)
        .seen(smaps(process), format!("text {}, huge {}", human_bytes(text.bytes), human_bytes(text.huge)));
    for (bytes, reason) in process.reasons.iter().take(3) {
        finding = finding
            .seen(format!("hugelift inspect {}", process.pid), format!("{}: {reason}", human_bytes(*bytes)));
    }
    // What was done already is not advised again; nor is there a finding where nothing is left to do.
    if let Some(advice) = code_advice(facts, process) {
        out.push(finding.advice(advice));
    }
}

/// What would make the code of a process huge that is not: with real names, and nothing that was done.
fn code_advice(facts: &Facts, process: &Process) -> Option<String> {
    let primes = facts.probes.as_ref().is_some_and(|p| p.primed_file.works == Some(true));
    let is_small = |o: &&CodeObject| o.text.huge.saturating_mul(2) < o.text.liftable;
    let small: Vec<&CodeObject> = process.code.iter().filter(is_small).collect();
    let paths =
        |objects: &[&CodeObject]| objects.iter().map(|o| quoted(&o.path)).collect::<Vec<_>>().join(" ");
    let words: Vec<String> = process.args.iter().map(|a| quoted(a)).collect();
    let mut advice = Vec::new();
    // hugelift run lifts what is there at the start, and has done so if anything was lifted.
    let at_start: Vec<&CodeObject> = small.iter().copied().filter(|o| !o.opened).collect();
    let was_lifted = process.code.iter().any(|o| o.lifted);
    if !was_lifted && (!at_start.is_empty() || process.code.is_empty()) {
        advice.push(format!("start it as: hugelift run -- {}", words.join(" ")));
    }
    let unprimed: Vec<&CodeObject> = small.iter().copied().filter(|o| !o.primed).collect();
    if primes && process.code.is_empty() {
        advice.push(format!("make its page cache huge: hugelift prime {}", quoted(&process.exe)));
    } else if primes && !unprimed.is_empty() {
        advice.push(format!(
            "end it, make the page cache of its code huge, and start it again: hugelift prime {}",
            paths(&unprimed)
        ));
    }
    (!advice.is_empty()).then(|| advice.join("; or "))
}

fn forks(facts: &Facts, process: &Process, out: &mut Vec<Finding>) {
    let saves = SNAPSHOTTERS.contains(&name(process));
    if process.forks == 0 && !saves {
        return;
    }
    let seen = |finding: Finding| match process.forks {
        0 => finding
            .seen(format!("/proc/{}/exe", process.pid), format!("{}, which forks to save", process.exe)),
        n => finding.seen(
            format!("/proc/{}/task/*/children", process.pid),
            format!("{n} that run the same executable"),
        ),
    };
    if process.writable_hugetlb >= MUCH_WRITABLE {
        let why = "after a fork the first write to each page copies a whole one (half a millisecond for 2 MB); \
                   with the pool used up, parent or child dies by SIGBUS";
        let title = format!(
            "it forks with {} of writable memory on pages of a pool",
            human_bytes(process.writable_hugetlb)
        );
        let finding = seen(Finding::warning("fork-hugetlb", title, why));
        out.push(
            finding
                .seen(
                    smaps(process),
                    format!("Private_Hugetlb {} writable", human_bytes(process.writable_hugetlb)),
                )
                .advice("keep writable memory off the pool: --parts text,rodata, and no hugetlb malloc"),
        );
    }
    if process.writable_thp >= MUCH_WRITABLE {
        let why = "after a fork the first write to each huge page splits it and makes the process wait several \
                   times as long as with small pages; before Linux 5.8 it copies all of it";
        let title = format!(
            "it forks with {} of writable memory on transparent huge pages",
            human_bytes(process.writable_thp)
        );
        let finding = seen(Finding::warning("fork-thp", title, why))
            .seen(smaps(process), format!("AnonHugePages {} writable", human_bytes(process.writable_thp)));
        out.push(unasked(
            facts,
            finding,
            "the program has asked for them: look for its own option (redis: disable-thp yes)",
        ));
    }
}

/// Where 'always' gives huge pages to who has not asked, 'madvise' ends that.
fn unasked(facts: &Facts, mut finding: Finding, else_advice: &str) -> Finding {
    match facts.thp.enabled.as_ref().filter(|e| e.chosen() == "always") {
        Some(enabled) => {
            finding = finding.read(enabled).set(enabled, "madvise");
            finding.advice("it takes effect on new memory: start the program again")
        }
        None => finding.advice(else_advice),
    }
}

fn bloat(facts: &Facts, process: &Process, out: &mut Vec<Finding>) {
    let Some(examined) = process.examined.filter(|e| *e >= MUCH_EXAMINED) else { return };
    if process.zeros.saturating_mul(2) <= examined {
        return;
    }
    let percent = u128::from(process.zeros) * 100 / u128::from(examined);
    let why = "small pages of zeros inside huge ones were mostly never written: memory that small pages would not have taken";
    let finding = Finding::warning("thp-bloat", format!("{percent} % of its huge pages is zeros"), why)
        .seen(
            format!("/proc/{}/mem", process.pid),
            format!(
                "{} of huge pages looked at, {} of it zeros",
                human_bytes(examined),
                human_bytes(process.zeros)
            ),
        )
        .seen(smaps(process), format!("AnonHugePages {} writable", human_bytes(process.writable_thp)));
    // What khugepaged fills up it takes apart again from this many empty pages on (Linux 6.12).
    let tight = facts.thp.max_ptes_none.as_ref().filter(|r| r.number().is_some_and(|n| n > 64));
    let always = facts.thp.enabled.as_ref().is_some_and(|e| e.chosen() == "always");
    out.push(match tight {
        Some(setting) if !always => finding
            .read(setting)
            .set(setting, 64)
            .advice("khugepaged then makes no huge page of a nearly empty one, and from Linux 6.12 on such pages are split when memory is short"),
        _ => unasked(facts, finding, "the program has asked for them: look for its own option"),
    });
}

fn zero_pages(facts: &Facts, process: &Process, out: &mut Vec<Finding>) {
    let Some(bytes) = process.huge_zero.filter(|b| *b >= MUCH_EXAMINED) else { return };
    let why = "it reads memory that nobody has written: a huge zero page does not fit the caches as a small one does, \
               which makes such reads slower, and benchmarks of them meaningless";
    let mut finding =
        Finding::note("huge-zero-pages", format!("{} of it is the huge zero page", human_bytes(bytes)), why)
            .seen(
                format!("/proc/{}/pagemap", process.pid),
                format!("huge zero page: {}", human_bytes(bytes)),
            );
    match facts.thp.use_zero_page.as_ref().filter(|r| r.value == "1") {
        Some(on) => {
            finding = finding.read(on).set(on, 0);
            finding = finding.advice("takes effect on new memory; reading then allocates whole huge pages. Better: write before reading");
        }
        None => finding = finding.advice("write the memory before it is read"),
    }
    out.push(finding);
}
