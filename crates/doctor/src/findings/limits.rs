// SPDX-License-Identifier: Apache-2.0
//! Limits of control groups, and RLIMIT_MEMLOCK.

use super::finding::Finding;
use crate::facts::{Facts, GroupLimit};
use hugelift_core::addr::human_bytes;

/// The least memory that should be left under a memory limit: the code of a large program.
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

fn with_limit(group: &GroupLimit, finding: Finding) -> Finding {
    let used = format!("{} of it used", human_bytes(group.used));
    finding.read(&group.limit).seen("its usage", used).set(&group.limit, &group.unlimited)
}

fn hugetlb(group: &GroupLimit, left: u64, out: &mut Vec<Finding>) {
    let Some(page) = group.page_size.filter(|page| left < *page) else { return };
    let size = human_bytes(page);
    let why = "the kernel enforces it at the page fault, by SIGBUS, after mmap(2) has succeeded; hugelift gets an \
               error and uses transparent huge pages, other programs are killed";
    let title = format!("a control group allows no further page of {size}");
    out.push(with_limit(group, Finding::problem("cgroup-hugetlb", title, why)));
}

fn memory(group: &GroupLimit, left: u64, out: &mut Vec<Finding>) {
    if left >= LITTLE {
        return;
    }
    let why = "at the limit the kernel reclaims memory, then kills; so hugelift copies nothing there unless --spare allows it";
    let title = format!("only {} are left under the memory limit of a control group", human_bytes(left));
    out.push(with_limit(group, Finding::warning("cgroup-memory", title, why)));
}

fn memlock(facts: &Facts, out: &mut Vec<Finding>) {
    let huge = facts.thp.page_size.unwrap_or(2 << 20);
    let Some((limit, soft)) = facts.memlock.and_then(|l| Some((l, l.soft.filter(|s| *s < huge)?))) else {
        return;
    };
    let why = "the limit is less than one huge page: programs that put shared memory on huge pages by shmget(2) \
               (databases, JVMs) or lock their code fail without CAP_IPC_LOCK";
    let root = facts.root.as_deref().unwrap_or_default();
    let source = match &facts.process {
        Some(process) => format!("{root}/proc/{}/limits", process.pid),
        None => format!("{root}/proc/self/limits"),
    };
    let word = |bytes: Option<u64>| bytes.map_or("unlimited".to_string(), |b| b.to_string());
    let value = format!("Max locked memory: {soft}, at most {}", word(limit.hard));
    // Without privilege it can be raised to the hard limit.
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
    let advice = "for services set LimitMEMLOCK=infinity; for logins edit /etc/security/limits.conf";
    out.push(
        Finding::note("memlock", format!("only {} of memory may be locked", human_bytes(soft)), why)
            .seen(source, value)
            .command(command)
            .advice(advice),
    );
}
