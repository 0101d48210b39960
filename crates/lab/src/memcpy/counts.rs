// SPDX-License-Identifier: Apache-2.0
//! Counts cache and TLB misses, by the events that the kernel names for every CPU (perf_event_open(2),
//! `PERF_TYPE_HW_CACHE`).

use hugelift_measure::perf::counters::{Code, Counters, Start};
use hugelift_measure::pmu::Count;

/// The events with their names.
pub const EVENTS: [(&str, Code); 4] = [
    ("L1 load misses", Code::L1D_LOAD_MISSES),
    ("last-level load misses", Code::LL_LOAD_MISSES),
    ("TLB load misses", Code::DTLB_LOAD_MISSES),
    ("TLB store misses", Code::DTLB_STORE_MISSES),
];

/// Misses per kB copied, in the order of [`EVENTS`]; `None` for events that this CPU does not count.
pub type Misses = [Option<f64>; EVENTS.len()];

/// Open counters of this thread.
pub struct Counting(Counters);

/// Opens the counters. If that fails, a note says why.
pub fn open(notes: &mut Vec<String>) -> Option<Counting> {
    let groups = EVENTS.map(|(_, code)| vec![code]);
    match Counters::open(&groups, &[nix::unistd::gettid().as_raw()], Start::Asked) {
        Ok(counters) => Some(Counting(counters)),
        Err(why) => {
            notes.push(format!("cache and TLB misses were not counted: {why}"));
            None
        }
    }
}

impl Counting {
    /// Returns the misses while `work` copies `bytes`.
    pub fn around(&self, bytes: usize, work: impl Fn()) -> Misses {
        let counts = || -> Vec<Count> {
            let first = |group: Vec<Option<Count>>| group.first().copied().flatten().unwrap_or_default();
            self.0.read().into_iter().map(first).collect()
        };
        let before = counts();
        self.0.enable();
        work();
        self.0.disable();
        let mut misses = Misses::default();
        for ((slot, before), after) in misses.iter_mut().zip(before).zip(counts()) {
            *slot = after.since(before).scaled().map(|count| count / bytes as f64 * 1024.0);
        }
        misses
    }
}
