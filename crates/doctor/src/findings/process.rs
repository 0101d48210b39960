// SPDX-License-Identifier: Apache-2.0
//! One process: its memory that is not huge, and the costs of its huge pages.

use super::finding::Finding;
use super::shell::quoted;
use crate::facts::{CodeObject, Facts, Process};
use hugelift_core::addr::human_bytes;

/// The least writable memory on huge pages whose copies after a fork are worth a warning.
const MUCH_WRITABLE: u64 = 64 << 20;
/// The fewest bytes from which the share of zeros is judged.
const MUCH_EXAMINED: u64 = 32 << 20;
/// The least code that is worth a lift.
const MUCH_CODE: u64 = 4 << 20;
/// Servers that fork to write their memory to disk.
const SNAPSHOTTERS: [&str; 5] =
    ["redis-server", "redis-check-rdb", "valkey-server", "keydb-server", "kvrocks"];

pub(super) fn findings(facts: &Facts, process: &Process, out: &mut Vec<Finding>) {
    // Servers that fork to save disable them on purpose (redis: disable-thp).
    if process.thp_enabled == Some(false) && !SNAPSHOTTERS.contains(&name(process)) {
        let why = "it, or a process that started it, has called prctl(PR_SET_THP_DISABLE): no setting of the machine helps";
        let (key, pid) = ("process-thp-off", process.pid);
        let finding = match process.allows_thp {
            true => Finding::note(key, "the process gets no transparent huge pages for its own memory", why).advice(
                "start it without that call; its code can be lifted all the same: hugelift allows them while it copies, \
                 and forbids them again",
            ),
            false => Finding::problem(key, "the process gets no transparent huge pages", why).advice(format!(
                "start it without that call, or give the pool pages and lift it onto them: hugelift attach --backing \
                 hugetlb {pid}"
            )),
        };
        out.push(finding.seen(format!("/proc/{pid}/status"), "THP_enabled: 0"));
    }
    code(facts, process, out);
    forks(facts, process, out);
    bloat(facts, process, out);
    zero_pages(facts, process, out);
}

/// Returns the file name of the executable.
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
    let why = "whether that costs time depends on how much of the code is hot: hugelift compare measures it";
    let title = format!(
        "{} of the {} of its code that could be huge are on small pages",
        human_bytes(text.liftable - text.huge),
        human_bytes(text.liftable)
    );
    let mut finding = Finding::note("code-not-huge", title, why)
        .seen(smaps(process), format!("text {}, huge {}", human_bytes(text.bytes), human_bytes(text.huge)));
    for (bytes, reason) in process.reasons.iter().take(3) {
        finding = finding
            .seen(format!("hugelift inspect {}", process.pid), format!("{}: {reason}", human_bytes(*bytes)));
    }
    // Advice leaves out what was done already; without advice there is no finding.
    if let Some(advice) = code_advice(facts, process) {
        out.push(finding.advice(advice));
    }
}

/// Returns what would make more code of the process huge, with real names, without what was done already.
fn code_advice(facts: &Facts, process: &Process) -> Option<String> {
    if process.thp_enabled == Some(false) && !process.allows_thp {
        return None;
    }
    let primes = facts.probes.as_ref().is_some_and(|p| p.primed_file.works == Some(true));
    let is_small = |o: &&CodeObject| o.text.huge.saturating_mul(2) < o.text.liftable;
    let small: Vec<&CodeObject> = process.code.iter().filter(is_small).collect();
    let paths =
        |objects: &[&CodeObject]| objects.iter().map(|o| quoted(&o.path)).collect::<Vec<_>>().join(" ");
    let words: Vec<String> = process.start.iter().map(|a| quoted(a)).collect();
    let mut advice = Vec::new();
    // Where the page cache is huge, the kernel maps huge pages as soon as the code is touched.
    if facts.attaches && (process.code.is_empty() || small.iter().any(|o| !o.lifted && !o.primed)) {
        advice.push(format!("lift it as it runs: hugelift attach {}", process.pid));
    }
    // hugelift run has lifted what is mapped at the start if anything is lifted.
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
        0 => finding.seen(
            format!("/proc/{}/exe", process.pid),
            format!("{}, which forks to save its data", process.exe),
        ),
        n => finding.seen(
            format!("/proc/{}/task/*/children", process.pid),
            format!("{n} children run the same executable"),
        ),
    };
    if process.writable_hugetlb >= MUCH_WRITABLE {
        let why = "after a fork the first write to each page copies a whole huge page (half a millisecond for 2 MB); \
                   when the pool is used up, parent or child is killed by SIGBUS";
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
                .advice("keep writable memory off the pool: lift with --parts text,rodata, and use no hugetlb malloc"),
        );
    }
    if process.writable_thp >= MUCH_WRITABLE {
        let why = "after a fork the first write to each huge page splits it, which takes several times as long as with \
                   small pages; before Linux 5.8 it copies the whole page";
        let title = format!(
            "it forks with {} of writable memory on transparent huge pages",
            human_bytes(process.writable_thp)
        );
        let finding = seen(Finding::warning("fork-thp", title, why))
            .seen(smaps(process), format!("AnonHugePages {} writable", human_bytes(process.writable_thp)));
        out.push(unasked(
            facts,
            finding,
            "the program has asked for them: it may have an option (redis: disable-thp yes)",
        ));
    }
}

/// Advises 'madvise' where 'always' gives huge pages to programs that have not asked for them.
fn unasked(facts: &Facts, mut finding: Finding, else_advice: &str) -> Finding {
    match facts.thp.enabled.as_ref().filter(|e| e.chosen() == "always") {
        Some(enabled) => {
            finding = finding.read(enabled).set(enabled, "madvise");
            finding.advice("it affects new memory only: start the program again")
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
    let why = "small pages of zeros inside huge ones were mostly never written: small pages would not have taken this memory";
    let finding = Finding::warning("thp-bloat", format!("{percent} % of its huge pages are zeros"), why)
        .seen(
            format!("/proc/{}/mem", process.pid),
            format!(
                "{} of huge pages read, {} of it zeros",
                human_bytes(examined),
                human_bytes(process.zeros)
            ),
        )
        .seen(smaps(process), format!("AnonHugePages {} writable", human_bytes(process.writable_thp)));
    // From Linux 6.12 on khugepaged's max_ptes_none also decides which pages are split again.
    let tight = facts.thp.max_ptes_none.as_ref().filter(|r| r.number().is_some_and(|n| n > 64));
    let always = facts.thp.enabled.as_ref().is_some_and(|e| e.chosen() == "always");
    let mut finding = match tight {
        Some(setting) if !always => finding
            .read(setting)
            .set(setting, 64)
            .advice("khugepaged then collapses no range that is nearly empty, and from Linux 6.12 on such huge pages are split when memory is short"),
        _ => unasked(facts, finding, "the program has asked for them: it may have an option"),
    };
    let now = format!("hugelift restore --unused {} gives them back now (Linux 6.12)", process.pid);
    finding.advice = Some(finding.advice.map_or(now.clone(), |advice| format!("{now}; {advice}")));
    out.push(finding);
}

fn zero_pages(facts: &Facts, process: &Process, out: &mut Vec<Finding>) {
    let Some(bytes) = process.huge_zero.filter(|b| *b >= MUCH_EXAMINED) else { return };
    let why = "it reads memory that was never written: unlike a small zero page, the huge one does not fit the caches, \
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
            finding = finding.advice("it affects new memory only, and reading then allocates whole huge pages; better write the memory before it is read");
        }
        None => finding = finding.advice("write the memory before it is read"),
    }
    out.push(finding);
}
