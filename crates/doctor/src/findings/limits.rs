// SPDX-License-Identifier: Apache-2.0
//! Limits of control groups and of resources.

use super::Finding;
use crate::facts::{Facts, GroupLimit};
use hugelift_core::addr::human_bytes;

/// Less than this left under a memory limit is too little for the code of a large program.
const LITTLE: u64 = 64 << 20;

pub(super) fn findings(facts: &Facts, out: &mut Vec<Finding>) {
    for group in &facts.groups {
        let left = group.bytes.saturating_sub(group.used);
        match group.controller.as_str() {
            "hugetlb" => hugetlb(group, left, out),
            _ => memory(group, left, out),
        }
    }
    memlock(facts, out);
}

fn lifted(group: &GroupLimit, finding: Finding) -> Finding {
    let used = format!("{} of it used", human_bytes(group.used));
    finding.read(&group.limit).seen("its usage", used).set(&group.limit, &group.unlimited)
}

fn hugetlb(group: &GroupLimit, left: u64, out: &mut Vec<Finding>) {
    let Some(page) = group.page_size.filter(|page| left < *page) else { return };
    let size = human_bytes(page);
    let why = "it is enforced at the page fault, by SIGBUS, after mmap has succeeded; hugelift sees the error \
               and takes transparent pages, others die";
    let title = format!("a control group allows no further page of {size}");
    out.push(lifted(group, Finding::problem("cgroup-hugetlb", title, why)));
}

fn memory(group: &GroupLimit, left: u64, out: &mut Vec<Finding>) {
    if left >= LITTLE {
        return;
    }
    let why = "at the limit the kernel reclaims, then kills; so hugelift copies nothing there that `--spare` does not allow";
    let title = format!("a control group leaves {} of memory", human_bytes(left));
    out.push(lifted(group, Finding::warning("cgroup-memory", title, why)));
}

fn memlock(facts: &Facts, out: &mut Vec<Finding>) {
    let huge = facts.thp.page_size.unwrap_or(2 << 20);
    let Some((limit, soft)) = facts.memlock.and_then(|l| Some((l, l.soft.filter(|s| *s < huge)?))) else {
        return;
    };
    let why = "not one huge page can be locked: programs that put shared memory on huge pages with shmget \
               (databases, JVMs) or lock their code fail without CAP_IPC_LOCK";
    let root = facts.root.as_deref().unwrap_or_default();
    let source = match &facts.process {
        Some(process) => format!("{root}/proc/{}/limits", process.pid),
        None => format!("{root}/proc/self/limits"),
    };
    let word = |bytes: Option<u64>| bytes.map_or("unlimited".to_string(), |b| b.to_string());
    let value = format!("Max locked memory: {soft}, at most {}", word(limit.hard));
    // Without privilege it can be raised as far as the hard limit.
    let enough = limit.hard.is_none_or(|hard| hard >= huge);
    let to = if enough { word(limit.hard) } else { "unlimited".into() };
    let command = match &facts.process {
        Some(process) if enough => format!("prlimit --pid {} --memlock={to}:", process.pid),
        Some(process) => format!("prlimit --pid {} --memlock=unlimited", process.pid),
        // ulimit counts in kB.
        None if enough => {
            format!("ulimit -S -l {}", limit.hard.map_or("unlimited".into(), |b| (b >> 10).to_string()))
        }
        None => "ulimit -l unlimited".into(),
    };
    let advice = "for services LimitMEMLOCK=infinity; for logins /etc/security/limits.conf";
    out.push(
        Finding::note("memlock", format!("only {} may be locked", human_bytes(soft)), why)
            .seen(source, value)
            .command(command)
            .advice(advice),
    );
}
