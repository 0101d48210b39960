// SPDX-License-Identifier: Apache-2.0
//! Memory: fragmentation, the commit limit, and a CPU defect that makes hosts split huge pages.

use super::finding::Finding;
use super::shell::write_command;
use crate::facts::{Facts, Zone};
use hugelift_core::addr::human_bytes;

/// A zone with less free memory than this is short of memory rather than fragmented.
const MUCH_FREE: u64 = 128 << 20;
/// At least one part in this of a zone's free memory should be free huge pages.
const HUGE_SHARE: u64 = 8;
/// The least memory that should be left to commit: the code and data of a large program.
const HEADROOM: u64 = 512 << 20;

pub(super) fn findings(facts: &Facts, out: &mut Vec<Finding>) {
    fragmentation(facts, out);
    commitment(facts, out);
    multihit(facts, out);
    if let Some(off) = facts.memory.proactiveness.as_ref().filter(|r| r.value == "0") {
        let why = "memory is compacted only when a program waits for it";
        let finding =
            Finding::note("no-proactive-compaction", "the kernel does not compact memory in advance", why);
        out.push(finding.read(off).set(off, 20).safe());
    }
}

/// Returns the free bytes of a zone, and how many huge pages its free blocks hold.
pub(super) fn free_and_huge(zone: &Zone, base: u64, huge: u64) -> (u64, u64) {
    let (mut bytes, mut pages) = (0u64, 0u64);
    for (order, blocks) in zone.free.iter().enumerate() {
        let block = u32::try_from(order).ok().and_then(|o| base.checked_shl(o)).unwrap_or(0);
        bytes = bytes.saturating_add(blocks.saturating_mul(block));
        pages = pages.saturating_add(blocks.saturating_mul(block / huge.max(1)));
    }
    (bytes, pages)
}

/// Returns the huge pages that are free now, without compaction or reclaim.
pub fn ready_huge_pages(facts: &Facts) -> Option<u64> {
    let (base, huge) = (facts.memory.base_page?, facts.thp.page_size?);
    let zones = &facts.memory.zones;
    (!zones.is_empty())
        .then(|| zones.iter().map(|z| free_and_huge(z, base, huge).1).fold(0, u64::saturating_add))
}

fn fragmentation(facts: &Facts, out: &mut Vec<Finding>) {
    let (Some(base), Some(huge)) = (facts.memory.base_page, facts.thp.page_size) else { return };
    let broken = |zone: &&Zone| {
        let (bytes, pages) = free_and_huge(zone, base, huge);
        bytes >= MUCH_FREE.max(huge.saturating_mul(HUGE_SHARE))
            && pages.saturating_mul(huge) < bytes / HUGE_SHARE
    };
    let zones: Vec<&Zone> = facts.memory.zones.iter().filter(broken).collect();
    if zones.is_empty() {
        return;
    }
    let size = human_bytes(huge);
    let mut finding = Finding::warning(
        "fragmented",
        "free memory is in blocks too small for huge pages",
        "until it is compacted, huge pages are allocated late or not at all, and a pool cannot grow",
    );
    let root = facts.root.as_deref().unwrap_or_default();
    for zone in zones {
        let (bytes, pages) = free_and_huge(zone, base, huge);
        let value = format!(
            "node {} zone {}: {} free, {pages} pages of {size} in it",
            zone.node,
            zone.name,
            human_bytes(bytes)
        );
        finding = finding.seen(format!("{root}/proc/buddyinfo"), value);
    }
    if let Some(compact) = &facts.memory.compact {
        finding = finding.command(write_command(1, compact)).safe();
    }
    out.push(finding);
}

fn commitment(facts: &Facts, out: &mut Vec<Finding>) {
    let memory = &facts.memory;
    let Some(strict) = memory.overcommit.as_ref().filter(|r| r.value == "2") else { return };
    let (Some(limit), Some(used)) = (memory.commit_limit, memory.committed) else { return };
    let left = limit.saturating_sub(used);
    if left >= HEADROOM {
        return;
    }
    let why = "all private memory counts against the limit, touched or not, and the hugetlb pools lower the \
               limit: a lift, and fork(2), fail with ENOMEM";
    out.push(
        Finding::warning(
            "strict-overcommit",
            format!("only {} may still be committed", human_bytes(left)),
            why,
        )
        .read(strict)
        .seen(
            "/proc/meminfo",
            format!("CommitLimit {}, Committed_AS {}", human_bytes(limit), human_bytes(used)),
        )
        .set(strict, 0),
    );
}

fn multihit(facts: &Facts, out: &mut Vec<Finding>) {
    let Some(state) = &facts.memory.itlb_multihit else { return };
    if facts.guest == Some(true) && !state.value.starts_with("Not affected") {
        let why = "this CPU can hang when the size of a page of code changes while it runs, so KVM hosts split the \
                   huge pages from which guests execute: code gains little here, data gains as usual";
        out.push(
            Finding::note("itlb-multihit", "the host may split huge pages of code", why)
                .read(state)
                .advice("on the host, if it trusts its guests: echo off > /sys/module/kvm/parameters/nx_huge_pages; measure with hugelift compare"),
        );
    }
}
