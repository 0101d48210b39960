// SPDX-License-Identifier: Apache-2.0
//! Measures one fork and the writes after it.

use super::case::{Case, Pattern};
use super::fork::Checkpoint;
use crate::block::Block;
use crate::clock::{since_ns, thread_cpu_ns};
use crate::memory::{Pages, page_faults};
use anyhow::{Context as _, Result};
use hugelift_core::addr::PageSize;
use hugelift_core::smaps::Usage;
use hugelift_linux::machine::base_page;
use std::time::Instant;

/// The maximum number of random loads in one measurement.
const LOADS: usize = 1 << 17;

/// How many writes are made between two checks whether to stop.
const TURN: usize = 1 << 12;

/// The measurements of one fork.
#[derive(Clone, Debug)]
pub struct Forked {
    /// Time of fork(2) itself, in nanoseconds.
    pub fork_ns: f64,
    /// Time of each write, in nanoseconds.
    pub writes: Vec<u32>,
    /// Page faults of all writes.
    pub faults: u64,
    /// Bytes that were copied.
    pub copied: u64,
    /// Bytes on huge pages before the fork, after the writes, and after the end of the child.
    pub huge: [u64; 3],
    /// Nanoseconds per random load before the fork and after the end of the child.
    pub load_ns: [f64; 2],
    /// The memory after its pages were joined to huge ones again.
    pub joined: Option<Joined>,
}

/// The state after `MADV_COLLAPSE`.
#[derive(Clone, Copy, Debug)]
pub struct Joined {
    /// Time of the call for all memory, in nanoseconds.
    pub took_ns: f64,
    /// Bytes on huge pages.
    pub huge: u64,
    /// Nanoseconds per random load.
    pub load_ns: f64,
}

/// Forks, writes, ends the child and measures each step. Returns `None` if `stop` returns `true` in between.
/// `clock` is the cost of reading the clock, in nanoseconds.
///
/// # Errors
/// There is too little memory, fork(2) fails, or /proc cannot be read.
pub fn once(
    case: Case,
    huge: PageSize,
    clock: u32,
    stop: &mut dyn FnMut() -> bool,
) -> Result<Option<Forked>> {
    let bytes = case.huge_pages * huge.bytes();
    let memory = Block::filled(case.pages, bytes, 1).context("cannot fill the memory")?;
    let offsets = offsets(case, huge);
    // If the child had this memory too, storing a time would copy a page.
    let times = Block::filled(Pages::Small, (size_of::<u32>() * offsets.len()) as u64, 0);
    let times = times.context("cannot make room for the times")?;
    times.keep_from_children().context("MADV_DONTFORK")?;
    if stop() {
        return Ok(None);
    }
    let load_before = load_ns(&memory);
    let huge_before = memory.usage()?.huge();

    let (child, fork) = Checkpoint::fork()?;
    let shared = memory.usage()?;
    let faults_before = page_faults()?;
    for (i, &offset) in offsets.iter().enumerate() {
        let began = Instant::now();
        memory.write(offset, 2);
        times.store(i, since_ns(began).saturating_sub(clock));
        if i % TURN == TURN - 1 && stop() {
            return Ok(None);
        }
    }
    let faults = page_faults()? - faults_before;
    let written = memory.usage()?;
    drop(child);

    let huge_alone = memory.usage()?.huge();
    let load_after = load_ns(&memory);
    let joined = if case.pages == Pages::Thp { join(&memory)? } else { None };
    Ok(Some(Forked {
        fork_ns: fork.as_nanos() as f64,
        writes: times.numbers(offsets.len()),
        faults,
        copied: copied(&shared, &written),
        huge: [huge_before, written.huge(), huge_alone],
        load_ns: [load_before, load_after],
        joined,
    }))
}

/// Returns the offsets that are written to, each once.
fn offsets(case: Case, huge: PageSize) -> Vec<usize> {
    let (base, huge) = (base_page().bytes(), huge.bytes());
    let in_one = huge / base;
    let mut random = fastrand::Rng::new();
    let mut pages: Vec<u64> = match case.pattern {
        Pattern::OnePerHuge => (0..case.huge_pages).map(|i| i * in_one + random.u64(0..in_one)).collect(),
        Pattern::Random | Pattern::Every => (0..case.huge_pages * in_one).collect(),
    };
    if case.pattern == Pattern::Random {
        random.shuffle(&mut pages);
        pages.truncate((case.huge_pages * case.pattern.written(in_one)) as usize);
    }
    pages.into_iter().map(|page| (page * base) as usize).collect()
}

/// Returns the bytes that have become private to the parent. Pss counts a page that both processes have as
/// half of it for each; hugetlb pages are counted as shared or private.
fn copied(before: &Usage, after: &Usage) -> u64 {
    let hugetlb = after.private_hugetlb.saturating_sub(before.private_hugetlb);
    hugetlb + 2 * after.pss.saturating_sub(before.pss)
}

/// Returns the CPU time of one random load whose address depends on the load before, in nanoseconds. Returns
/// the better of two runs, since the first one also finds other data in the caches.
fn load_ns(memory: &Block) -> f64 {
    let loads = (memory.len() / 256).min(LOADS);
    loads_ns(memory, loads).min(loads_ns(memory, loads))
}

fn loads_ns(memory: &Block, loads: usize) -> f64 {
    let lines = memory.len() / 64;
    let mut random = fastrand::Rng::with_seed(1);
    // Drawn before, so that the figure has no time of the generator in it.
    let order: Vec<usize> = (0..loads).map(|_| random.usize(..lines) * 64).collect();
    let before = thread_cpu_ns();
    let mut last = 0;
    for offset in &order {
        // The memory holds small numbers, so `last` is always 0. The CPU learns that only from the load, so no
        // load begins before the last one ends.
        last = usize::from(memory.read(offset + last) >> 7);
    }
    (thread_cpu_ns() - before) as f64 / loads as f64
}

fn join(memory: &Block) -> Result<Option<Joined>> {
    let began = Instant::now();
    if memory.collapse().is_err() {
        return Ok(None);
    }
    let took_ns = began.elapsed().as_nanos() as f64;
    Ok(Some(Joined { took_ns, huge: memory.usage()?.huge(), load_ns: load_ns(memory) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Latencies;
    use hugelift_linux::machine::{probe, thp_page};

    fn run(pages: Pages, pattern: Pattern) -> Option<Forked> {
        let _alone = crate::alone();
        let huge = thp_page()?;
        if pages == Pages::Thp && probe(None).thp_off.is_some() {
            return None;
        }
        let case = Case { huge_pages: 4, pages, pattern };
        once(case, huge, 0, &mut || false).expect("8 MB and a child")
    }

    #[test]
    fn small_pages_are_copied_one_by_one() {
        for pattern in Pattern::ALL {
            let Some(forked) = run(Pages::Small, pattern) else { return };
            let huge = thp_page().map_or(0, |page| page.bytes());
            let written = 4 * pattern.written(huge / base_page().bytes());
            assert_eq!(forked.writes.len() as u64, written, "{pattern:?}");
            assert_eq!(forked.copied, written * base_page().bytes(), "{pattern:?}");
            assert!(forked.faults >= written && forked.fork_ns > 0.0, "{forked:?}");
            assert_eq!((forked.huge, forked.joined.is_none()), ([0; 3], true));
            // A fault with a copy takes longer than the resolution of the clock.
            assert!(Latencies::new(forked.writes).percentile(0.5) > Some(0.0), "{pattern:?}");
        }
    }

    #[test]
    fn a_write_splits_or_copies_a_transparent_huge_page() {
        let Some(forked) = run(Pages::Thp, Pattern::OnePerHuge) else {
            println!("SKIP: no transparent huge pages");
            return;
        };
        let huge = thp_page().map_or(0, |page| page.bytes());
        // Each huge page is split and copied in part, or copied as a whole.
        assert!(forked.huge[0] <= 4 * huge, "{forked:?}");
        assert!(forked.huge[1] == 0 || forked.copied >= forked.huge[0], "{forked:?}");
        assert!(forked.copied >= 4 * base_page().bytes(), "{forked:?}");
        let Some(joined) = forked.joined else { return };
        assert!(joined.huge >= forked.huge[2] && joined.took_ns > 0.0 && joined.load_ns > 0.0, "{forked:?}");
    }

    #[test]
    fn every_place_is_written_once() {
        let huge = PageSize::MB2;
        let in_one = huge.bytes() / base_page().bytes();
        for pattern in Pattern::ALL {
            let case = Case { huge_pages: 3, pages: Pages::Small, pattern };
            let mut all = offsets(case, huge);
            assert_eq!(all.len() as u64, 3 * pattern.written(in_one));
            assert!(all.iter().all(|o| *o < 6 << 20 && (*o as u64).is_multiple_of(base_page().bytes())));
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len() as u64, 3 * pattern.written(in_one), "{pattern:?}");
        }
    }

    #[test]
    fn it_stops_on_request() {
        let _alone = crate::alone();
        let case = Case { huge_pages: 1, pages: Pages::Small, pattern: Pattern::Every };
        assert!(once(case, PageSize::MB2, 0, &mut || true).expect("2 MB").is_none());
    }
}
