// SPDX-License-Identifier: Apache-2.0
//! Transparent huge pages: their switches and khugepaged's
//! (Documentation/admin-guide/mm/transhuge.rst).

use super::Finding;
use crate::facts::{Facts, Reading};

/// Base pages a second that khugepaged looks at when nobody has changed it: 4096 in 10 s.
const USUAL_RATE: f64 = 409.6;

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
                "without the huge zero page the first read of a page that nobody has written allocates \
                 and clears a huge one",
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
            let why = "this kernel was built without them: only the hugetlb pools are left";
            out.push(
                Finding::note("thp-absent", "no transparent huge pages", why).advice(
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
    // A size that does not inherit overrules the switch above it.
    if let Some(size) = thp.size_enabled.as_ref().filter(|r| r.chosen() == "never") {
        let why = "this switch of one page size overrules the one for all sizes";
        let finding =
            Finding::problem("thp-size-never", "transparent huge pages of the main size are off", why);
        out.push(finding.read(size).read(enabled).set(size, "inherit").safe());
    }
    if thp.off_here == Some(true) {
        let why = "whoever started this shell or service has forbidden them by prctl(PR_SET_THP_DISABLE), \
                   and every program started from here inherits that";
        out.push(
            Finding::problem("thp-off-here", "transparent huge pages are off for what is started from here", why)
                .seen("/proc/self/status", "THP_enabled: 0")
                .advice("start from elsewhere (look for a service manager's or container's option), or use --backing hugetlb"),
        );
    }
    let open = enabled.chosen() != "never" && thp.off_here != Some(true);
    let size_open = thp.size_enabled.as_ref().is_none_or(|r| r.chosen() != "never");
    if let Some(probes) = facts.probes.as_ref().filter(|p| open && size_open && p.fault.failed()) {
        let why = "MADV_HUGEPAGE and a first touch gave small pages, though the switches allow huge ones";
        let detail = probes.fault.detail.clone().unwrap_or_default();
        let mut finding = Finding::warning("thp-refused", "transparent huge pages do not come", why)
            .seen("tried: MADV_HUGEPAGE", detail)
            .read(enabled);
        if let Some(compact) = &facts.memory.compact {
            finding = finding.command(super::write_command(1, compact)).safe();
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
                "huge pages come only while memory happens to be unbroken",
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
                 'defer+madvise' does that only for those that have not asked",
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
                "with 'enabled' on always every program's fault reclaims and compacts until it has \
                 a huge page: stalls of milliseconds",
            )
            .read(defrag)
            .set(defrag, "madvise"),
        )),
        _ => {}
    }
}

/// The kernel's counts of such waits since boot.
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
        let why = "it collapses small pages only if a free huge page happens to be there";
        let finding = Finding::note("khugepaged-defrag-off", "khugepaged does not make room", why);
        out.push(finding.read(off).set(off, 1).safe());
    }
    let (Some(sleep), Some(pages)) = (&thp.scan_sleep, &thp.pages_to_scan) else { return };
    let (Some(millis), Some(count)) = (sleep.number(), pages.number()) else { return };
    // A sleep of 0 is none.
    let rate = count as f64 * 1000.0 / millis.max(1) as f64;
    if rate * 4.0 < USUAL_RATE {
        let base = facts.memory.base_page.unwrap_or(4096) as f64;
        let speed = format!("{:.2} MB a second", rate * base / f64::from(1 << 20));
        let slow_sleep = millis > 10_000;
        let setting: (&Reading, u64) = if slow_sleep { (sleep, 10_000) } else { (pages, 4096) };
        let finding = Finding::note(
            "khugepaged-slow",
            "khugepaged hardly ever looks for pages to collapse",
            format!("it looks at {speed}, a quarter of the usual speed or less: small pages stay small"),
        );
        let mut finding = finding.read(sleep).read(pages).set(setting.0, setting.1).safe();
        if slow_sleep && count < 1024 {
            let second = super::write_command(4096, &pages.source);
            finding.command = finding.command.map(|first| format!("{first}; {second}"));
        }
        out.push(finding);
    }
}

fn shmem(facts: &Facts, out: &mut Vec<Finding>) {
    let Some(shmem) = &facts.thp.shmem_enabled else { return };
    let collapse_fails = facts.probes.as_ref().is_some_and(|p| p.collapse_shmem.failed());
    let (severity_is_warning, why) = match shmem.chosen() {
        "deny" => (true, "'deny' forbids huge pages in every tmpfs and memfd, whatever it was mounted with"),
        // Where MADV_COLLAPSE works it does not ask this switch.
        "never" if collapse_fails => {
            (false, "and MADV_COLLAPSE, which would not need it, does not work here")
        }
        _ => return,
    };
    let make = if severity_is_warning { Finding::warning } else { Finding::note };
    let finding = make("shmem-off", "shared memory gets no huge pages", why);
    out.push(finding.read(shmem).set(shmem, "advise").safe());
}
