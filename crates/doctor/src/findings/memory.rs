// SPDX-License-Identifier: Apache-2.0
//! Memory: fragmentation, commitment, and what a CPU's defects make of huge pages.

use super::{Finding, write_command};
use crate::facts::{Facts, Zone};
use hugelift_core::addr::human_bytes;

/// A zone with less free memory than this is short of memory, not fragmented.
const MUCH_FREE: u64 = 128 << 20;
/// Of a zone's free memory, at least one part in so many should be in huge pages.
const HUGE_SHARE: u64 = 8;
/// Less than this left to commit is little: a large program's code and data.
const HEADROOM: u64 = 512 << 20;

pub(super) fn findings(facts: &Facts, out: &mut Vec<Finding>) {
    fragmentation(facts, out);
    commitment(facts, out);
    multihit(facts, out);
    if let Some(off) = facts.memory.proactiveness.as_ref().filter(|r| r.value == "0") {
        let why = "memory is put together only when somebody waits for it";
        let finding =
            Finding::note("no-proactive-compaction", "the kernel does not keep huge pages in stock", why);
        out.push(finding.read(off).set(off, 20).safe());
    }
}

/// Free bytes of a zone, and how many huge pages its free blocks hold as they are.
pub fn free_and_huge(zone: &Zone, base: u64, huge: u64) -> (u64, u64) {
    let (mut bytes, mut pages) = (0u64, 0u64);
    for (order, blocks) in zone.free.iter().enumerate() {
        let block = u32::try_from(order).ok().and_then(|o| base.checked_shl(o)).unwrap_or(0);
        bytes = bytes.saturating_add(blocks.saturating_mul(block));
        pages = pages.saturating_add(blocks.saturating_mul(block / huge.max(1)));
    }
    (bytes, pages)
}

/// Huge pages that could be had now, without any being moved or dropped.
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
        "free memory is in pieces too small for huge pages",
        "until it is put together, huge pages come late or not at all, and a pool cannot grow",
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
    let why = "every private copy counts against the limit whether it is touched or not, and the pools lower \
               it: lifting, and fork, fail with ENOMEM";
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
        let why = "this CPU can hang on huge pages of code that change under it, so KVM hosts split the huge \
                   pages that their guests execute from: code gains little here, data as ever";
        out.push(
            Finding::note("itlb-multihit", "the host may split huge pages of code", why)
                .read(state)
                .advice("on the host, if it trusts its guests: echo off > /sys/module/kvm/parameters/nx_huge_pages; measure with hugelift compare"),
        );
    }
}
