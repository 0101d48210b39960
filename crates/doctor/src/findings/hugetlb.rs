// SPDX-License-Identifier: Apache-2.0
//! The hugetlb pools: their supply, their limits and their nodes.

use super::finding::Finding;
use super::shell::quoted;
use crate::facts::{Facts, Reading};
use hugelift_core::addr::human_bytes;
use hugelift_core::addr::size_word;
use hugelift_core::pool::SizePool;

/// The size proposed where no program is known: enough for the code of most programs.
const SOME_BYTES: u64 = 128 << 20;
/// A pool is idle if its free pages take more than one part in this of memory.
const IDLE_SHARE: u64 = 4;
/// The proposed overcommit: one part in this of memory.
const OVERCOMMIT_SHARE: u64 = 8;

pub(super) fn findings(facts: &Facts, out: &mut Vec<Finding>) {
    let usual = facts.thp.page_size;
    let main = facts.pools.iter().find(|p| Some(p.page_size) == usual || (usual.is_none() && p.default));
    if let Some(pool) = main {
        supply(facts, pool, out);
        overcommit(facts, pool, out);
    }
    for pool in &facts.pools {
        idle(facts, pool, out);
        nodes(facts, pool, out);
    }
    if let (Some(probes), Some(pool)) = (&facts.probes, facts.pools.iter().find(|p| p.default))
        && probes.hugetlb.failed()
        && pool.available > 0
    {
        let why = "the pool has free pages, but a process started from here does not get them: a control \
                   group or a cpuset limits it";
        let detail = probes.hugetlb.detail.clone().unwrap_or_default();
        out.push(
            Finding::problem("pool-refused", "a process started from here gets no pages of the pool", why)
                .seen("tried: MAP_HUGETLB", detail)
                .read(&reading(facts, pool, "free_hugepages", pool.free))
                .advice("see /proc/self/cgroup and /proc/self/cpuset"),
        );
    }
}

/// Returns the path of a pool's file.
fn path(facts: &Facts, pool: &SizePool, name: &str) -> String {
    let root = facts.root.as_deref().unwrap_or_default();
    format!("{root}/sys/kernel/mm/hugepages/hugepages-{}kB/{name}", pool.page_size >> 10)
}

fn reading(facts: &Facts, pool: &SizePool, name: &str, value: u64) -> Reading {
    Reading { source: path(facts, pool, name), value: value.to_string() }
}

/// Returns the command `hugelift pool set` with these arguments.
fn set(facts: &Facts, words: &str) -> String {
    match &facts.root {
        None => format!("hugelift pool set {words}"),
        Some(root) => format!("hugelift pool set {words} --root {}", quoted(root)),
    }
}

fn supply(facts: &Facts, pool: &SizePool, out: &mut Vec<Finding>) {
    if pool.available > 0 {
        return;
    }
    let size = human_bytes(pool.page_size);
    let wanted = facts.process.as_ref().map(|p| p.text.liftable.saturating_sub(p.text.huge));
    let pages = wanted.filter(|b| *b > 0).unwrap_or(SOME_BYTES).div_ceil(pool.page_size.max(1)).max(1);
    let command = set(facts, &format!("{}=+{pages}", size_word(pool.page_size)));
    let finding = if pool.total == 0 {
        // This is only a note, since it is so on every machine where no pool was configured.
        let why = "the pages of a pool are reserved: a program gets them at once, however fragmented memory is. \
                   Without a pool, hugelift uses transparent huge pages";
        Finding::note("pool-empty", format!("the pool of {size} pages is empty"), why)
    } else {
        let why = "all its pages are in use or reserved: the next program gets none";
        Finding::warning("pool-used-up", format!("the pool of {size} pages is used up"), why)
    };
    out.push(
        finding
            .read(&reading(facts, pool, "nr_hugepages", pool.total))
            .read(&reading(facts, pool, "free_hugepages", pool.free))
            .read(&reading(facts, pool, "resv_hugepages", pool.reserved))
            .read(&reading(facts, pool, "nr_overcommit_hugepages", pool.overcommit))
            .command(command),
    );
}

fn overcommit(facts: &Facts, pool: &SizePool, out: &mut Vec<Finding>) {
    let file = reading(facts, pool, "nr_overcommit_hugepages", pool.overcommit);
    if pool.overcommit == 0 {
        let memory = facts.memory.total.unwrap_or(8 << 30);
        let pages = (memory / OVERCOMMIT_SHARE / pool.page_size.max(1)).max(1);
        let why = "the kernel adds no page on demand: a request beyond the pool fails. Overcommit takes no memory \
                   until pages are used, and gives it back afterwards";
        out.push(
            Finding::note("no-overcommit", "the pool cannot grow on demand", why)
                .read(&file)
                .command(set(facts, &format!("--overcommit {}={pages}", size_word(pool.page_size))))
                .safe(),
        );
    }
    if pool.surplus > 0 && pool.surplus > pool.total / 2 {
        let why = "surplus pages go back to the kernel when they are freed, and it may not find them again";
        let keep = format!("{}={}", size_word(pool.page_size), pool.total);
        out.push(
            Finding::note("pool-surplus", "most pages of the pool are surplus pages, added on demand", why)
                .read(&reading(facts, pool, "surplus_hugepages", pool.surplus))
                .read(&reading(facts, pool, "nr_hugepages", pool.total))
                .command(set(facts, &keep)),
        );
    }
}

/// Finds pools whose pages are unused: no other program can use that memory.
fn idle(facts: &Facts, pool: &SizePool, out: &mut Vec<Finding>) {
    let idle = pool.free.saturating_sub(pool.reserved);
    let bytes = idle.saturating_mul(pool.page_size);
    if facts.memory.total.is_none_or(|memory| bytes <= memory / IDLE_SHARE) {
        return;
    }
    let why = format!(
        "{} are in the pool and unused: neither other programs nor the page cache can use them",
        human_bytes(bytes)
    );
    let keep = format!("{}={}", size_word(pool.page_size), pool.permanent().saturating_sub(idle));
    out.push(
        Finding::warning(
            "pool-idle",
            format!("the pool of {} pages is mostly idle", human_bytes(pool.page_size)),
            why,
        )
        .read(&reading(facts, pool, "free_hugepages", pool.free))
        .read(&reading(facts, pool, "resv_hugepages", pool.reserved))
        .command(set(facts, &keep)),
    );
}

fn nodes(facts: &Facts, pool: &SizePool, out: &mut Vec<Finding>) {
    if pool.total == 0 || pool.nodes.len() < 2 {
        return;
    }
    let allowed = |node: u32| facts.nodes_allowed.as_ref().is_none_or(|all| all.contains(&node));
    let usable: Vec<_> = pool.nodes.iter().filter(|n| allowed(n.node)).collect();
    let Some(empty) = usable.iter().find(|n| n.total == 0) else { return };
    let root = facts.root.as_deref().unwrap_or_default();
    let folder = format!("hugepages/hugepages-{}kB/nr_hugepages", pool.page_size >> 10);
    let share = (pool.permanent() / pool.nodes.len() as u64).max(1);
    let words = format!("{}={share} --node {}", size_word(pool.page_size), empty.node);
    let size = human_bytes(pool.page_size);
    let finding = if usable.iter().all(|n| n.total == 0) {
        let why = "programs started from here may use only other nodes (Mems_allowed_list), and a page fault \
                   that finds no page there ends in SIGBUS";
        Finding::problem(
            "pool-other-nodes",
            format!("the pool of {size} pages is on nodes that programs from here may not use"),
            why,
        )
    } else {
        let why = "each node has a pool of its own: a program there gets pages of another node, which are slower, \
                   or none if it is bound to its node";
        Finding::warning("pool-node-empty", format!("node {} has no pages of {size}", empty.node), why)
    };
    let mut finding = finding.command(set(facts, &words));
    for node in &pool.nodes {
        let source = format!("{root}/sys/devices/system/node/node{}/{folder}", node.node);
        finding = finding.seen(source, node.total.to_string());
    }
    out.push(finding);
}
