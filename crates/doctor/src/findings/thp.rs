// SPDX-License-Identifier: Apache-2.0
//! Transparent huge pages: their settings and those of khugepaged
//! (Documentation/admin-guide/mm/transhuge.rst).

use super::finding::Finding;
use super::shell::write_command;
use crate::facts::{Facts, Reading};

/// Base pages per second that khugepaged scans by default: 4096 in 10 s.
const DEFAULT_RATE: f64 = 409.6;

pub(super) fn findings(facts: &Facts, out: &mut Vec<Finding>) {
    switches(facts, out);
    defrag(facts, out);
    khugepaged(facts, out);
    shmem(facts, out);
    if let Some(off) = facts.thp.use_zero_page.as_ref().filter(|r| r.value == "0") {
        out.push(
            Finding::note(
                "zero-page-off",
                "memory that is only read takes whole huge pages",
                "without the huge zero page the first read of memory that was never written allocates and \
                 clears a whole huge page",
            )
            .read(off)
            .set(off, 1),
        );
    }
}

fn switches(facts: &Facts, out: &mut Vec<Finding>) {
    let thp = &facts.thp;
    let Some(enabled) = &thp.enabled else {
        if facts.kernel.is_some() {
            let why = "this kernel was built without them: only the hugetlb pools give huge pages";
            out.push(
                Finding::note("thp-absent", "there are no transparent huge pages", why).advice(
                    "fill a pool (hugelift pool set) or use a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
                ),
            );
        }
        return;
    };
    if enabled.chosen() == "never" {
        let why = "no program gets transparent huge pages, not even one that asks for them";
        let finding = Finding::problem("thp-never", "transparent huge pages are off", why);
        out.push(finding.read(enabled).set(enabled, "madvise").safe());
    }
    if enabled.chosen() == "always" {
        let why = "a program gets them for its heap and stacks without asking: one touched byte takes a whole huge page, \
                   so that memory may grow, and each fork(2) splits or copies them. With 'madvise' those that ask get \
                   them, as hugelift, the JVM and allocators do";
        let finding =
            Finding::note("thp-always", "all programs get transparent huge pages, asked or not", why);
        out.push(finding.read(enabled).set(enabled, "madvise"));
    }
    // The setting of one size overrides the general one unless it is "inherit".
    if let Some(size) = thp.size_enabled.as_ref().filter(|r| r.chosen() == "never") {
        let why = "this setting of one page size overrides the one for all sizes";
        let finding =
            Finding::problem("thp-size-never", "transparent huge pages of the main size are off", why);
        out.push(finding.read(size).read(enabled).set(size, "inherit").safe());
    }
    if thp.off_here == Some(true) {
        let why = "the process that started this shell or service has called prctl(PR_SET_THP_DISABLE), and \
                   every program started from here inherits that";
        out.push(
            Finding::problem("thp-off-here", "transparent huge pages are off for programs started from here", why)
                .seen("/proc/self/status", "THP_enabled: 0")
                .advice("start programs from elsewhere (the service manager or the container may have an option), or use --backing hugetlb"),
        );
    }
    let open = enabled.chosen() != "never" && thp.off_here != Some(true);
    let size_open = thp.size_enabled.as_ref().is_none_or(|r| r.chosen() != "never");
    if let Some(probes) = facts.probes.as_ref().filter(|p| open && size_open && p.fault.failed()) {
        let why = "MADV_HUGEPAGE and a first touch gave small pages, though the settings allow huge ones";
        let detail = probes.fault.detail.clone().unwrap_or_default();
        let mut finding =
            Finding::warning("thp-refused", "the kernel allocates no transparent huge pages", why)
                .seen("tried: MADV_HUGEPAGE", detail)
                .read(enabled);
        if let Some(compact) = &facts.memory.compact {
            finding = finding.command(write_command(1, compact)).safe();
        }
        out.push(finding);
    }
}

fn defrag(facts: &Facts, out: &mut Vec<Finding>) {
    let Some(defrag) = &facts.thp.defrag else { return };
    let always = facts.thp.enabled.as_ref().is_some_and(|e| e.chosen() == "always");
    match defrag.chosen() {
        "never" => out.push(
            Finding::warning(
                "thp-defrag-never",
                "huge pages are allocated only while memory is not fragmented",
                "a page fault that finds no free huge page takes small ones at once, even where the \
                 program has asked for huge ones",
            )
            .read(defrag)
            .set(defrag, "madvise")
            .safe(),
        ),
        "defer" => out.push(
            Finding::note(
                "thp-defrag-defer",
                "programs that ask for huge pages get them late",
                "the fault takes small pages and leaves the rest to kcompactd and khugepaged; \
                 'defer+madvise' does that only to programs that have not asked",
            )
            .read(defrag)
            .set(defrag, "defer+madvise")
            .safe(),
        ),
        // Every fault of every program may then wait for compaction.
        "always" if always => out.push(stalls(
            facts,
            Finding::warning(
                "thp-defrag-always",
                "any page fault may wait for compaction",
                "as 'enabled' is 'always' too, a page fault of any program reclaims and compacts memory until it \
                 has a huge page: this takes milliseconds",
            )
            .read(defrag)
            .set(defrag, "madvise"),
        )),
        _ => {}
    }
}

/// Adds how often page faults have waited for compaction since boot.
fn stalls(facts: &Facts, finding: Finding) -> Finding {
    match (facts.counters.get("compact_stall"), facts.counters.get("compact_fail")) {
        (Some(stalls), Some(failed)) => {
            finding.seen("/proc/vmstat", format!("compact_stall {stalls}, compact_fail {failed}"))
        }
        _ => finding,
    }
}

fn khugepaged(facts: &Facts, out: &mut Vec<Finding>) {
    let thp = &facts.thp;
    if let Some(off) = thp.khugepaged_defrag.as_ref().filter(|r| r.value == "0") {
        let why = "it collapses small pages only if there is a free huge page";
        let finding = Finding::note("khugepaged-defrag-off", "khugepaged does not compact memory", why);
        out.push(finding.read(off).set(off, 1).safe());
    }
    let (Some(sleep), Some(pages)) = (&thp.scan_sleep, &thp.pages_to_scan) else { return };
    let (Some(millis), Some(count)) = (sleep.number(), pages.number()) else { return };
    // A sleep of 0 ms counts as 1 ms.
    let rate = count as f64 * 1000.0 / millis.max(1) as f64;
    if rate * 4.0 < DEFAULT_RATE {
        let base = facts.memory.base_page.unwrap_or(4096) as f64;
        let speed = format!("{:.2} MB per second", rate * base / f64::from(1 << 20));
        let slow_sleep = millis > 10_000;
        let setting: (&Reading, u64) = if slow_sleep { (sleep, 10_000) } else { (pages, 4096) };
        let finding = Finding::note(
            "khugepaged-slow",
            "khugepaged seldom scans for pages to collapse",
            format!("it scans {speed}, less than a quarter of the default: small pages stay small"),
        );
        let mut finding = finding.read(sleep).read(pages).set(setting.0, setting.1).safe();
        if slow_sleep && count < 1024 {
            let second = write_command(4096, &pages.source);
            finding.command = finding.command.map(|first| format!("{first}; {second}"));
        }
        out.push(finding);
    }
}

fn shmem(facts: &Facts, out: &mut Vec<Finding>) {
    let Some(shmem) = &facts.thp.shmem_enabled else { return };
    let collapse_fails = facts.probes.as_ref().is_some_and(|p| p.collapse_shmem.failed());
    let (severity_is_warning, why) = match shmem.chosen() {
        "deny" => {
            (true, "'deny' forbids huge pages in every tmpfs and memfd, whatever their mount option huge= is")
        }
        // MADV_COLLAPSE ignores this setting where it works.
        "never" if collapse_fails => {
            (false, "and MADV_COLLAPSE, which does not depend on this setting, does not work here")
        }
        _ => return,
    };
    let make = if severity_is_warning { Finding::warning } else { Finding::note };
    let finding = make("shmem-off", "shared memory gets no huge pages", why);
    out.push(finding.read(shmem).set(shmem, "advise").safe());
}
