// SPDX-License-Identifier: Apache-2.0
//! Counts what the source counts of each copy: cycles, instructions, misses of caches and TLBs, cycles of the bus, by the events
//! that the kernel names for every CPU (perf_event_open(2), `PERF_TYPE_HARDWARE` and `PERF_TYPE_HW_CACHE`), and what it counts itself.

use hugelift_measure::perf::counters::{Code, Counters, Start};
use hugelift_measure::pmu::Count;

/// What a figure is given for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Per {
    /// One kB that is copied.
    Kilobyte,
    /// One copy.
    Copy,
}

/// The events with their names. Those of the CPU are first.
pub const EVENTS: [(&str, Code, Per); 12] = [
    ("cycles", Code::CYCLES, Per::Kilobyte),
    ("instructions", Code::INSTRUCTIONS, Per::Kilobyte),
    ("cache references", Code::CACHE_REFERENCES, Per::Kilobyte),
    ("cache misses", Code::CACHE_MISSES, Per::Kilobyte),
    ("bus cycles", Code::BUS_CYCLES, Per::Kilobyte),
    ("L1 load misses", Code::L1D_LOAD_MISSES, Per::Kilobyte),
    ("last-level load misses", Code::LL_LOAD_MISSES, Per::Kilobyte),
    ("TLB load misses", Code::DTLB_LOAD_MISSES, Per::Kilobyte),
    ("TLB store misses", Code::DTLB_STORE_MISSES, Per::Kilobyte),
    ("page faults", Code::MINOR_FAULTS, Per::Copy),
    ("context switches", Code::CONTEXT_SWITCHES, Per::Copy),
    ("migrations", Code::MIGRATIONS, Per::Copy),
];

/// The events that are counted together. Each set has a copy of its own: a PMU has few counters, and switching others on would be
/// counted too.
const SETS: [std::ops::Range<usize>; 7] = [0..2, 2..4, 4..5, 5..6, 6..7, 7..9, 9..12];

/// Figures in the order of [`EVENTS`]; `None` for events that this CPU does not count.
pub type Figures = [Option<f64>; EVENTS.len()];

/// Open counters of this thread, by set; `None` where the CPU counts none of the set.
pub struct Counting([Option<Counters>; SETS.len()]);

/// Opens the counters. What cannot be opened is named in a note.
pub fn open(notes: &mut Vec<String>) -> Option<Counting> {
    let own = nix::unistd::gettid().as_raw();
    let mut refusal = None;
    let sets = SETS.map(|set| {
        let groups: Vec<Vec<Code>> = EVENTS[set].iter().map(|(_, code, _)| vec![*code]).collect();
        let opened = Counters::open(&groups, &[own], Start::Asked);
        opened.map_err(|why| refusal = Some(why)).ok()
    });
    if let (true, Some(why)) = (sets.iter().all(Option::is_none), refusal) {
        notes.push(format!("cycles, cache and TLB misses were not counted: {why}"));
        return None;
    }
    let counting = Counting(sets);
    notes.extend(missing(&counting.read()));
    Some(counting)
}

/// Names the events that this CPU does not count, and what stands for them.
fn missing(counts: &[Vec<Option<Count>>]) -> Option<String> {
    let is_missing = |counts: &Vec<Option<Count>>| counts.first().copied().flatten().is_none();
    let all = EVENTS.iter().zip(counts).filter(|(_, counts)| is_missing(counts));
    let names: Vec<&str> = all.map(|((name, ..), _)| *name).collect();
    (!names.is_empty()).then(|| {
        format!(
            "not counted here: {} (no PMU, as in most guests, or none with these events); the CPU time stands for cycles, and \
             the speed of reading by size of the block for the misses of caches",
            names.join(", ")
        )
    })
}

impl Counting {
    /// Returns the figures of `work`, which copies `bytes` once. It is done once for each set of events.
    pub fn around(&self, bytes: usize, work: impl Fn()) -> Figures {
        let before = self.read();
        for counters in self.0.iter().flatten() {
            counters.enable();
            work();
            counters.disable();
        }
        figures(&before, &self.read(), bytes)
    }

    /// Returns the counts so far in the order of [`EVENTS`].
    fn read(&self) -> Vec<Vec<Option<Count>>> {
        let of_set = |(set, counters): (std::ops::Range<usize>, &Option<Counters>)| match counters {
            Some(counters) => counters.read(),
            None => vec![vec![None]; set.len()],
        };
        SETS.into_iter().zip(&self.0).flat_map(of_set).collect()
    }
}

fn figures(before: &[Vec<Option<Count>>], after: &[Vec<Option<Count>>], bytes: usize) -> Figures {
    let first = |counts: &Vec<Option<Count>>| counts.first().copied().flatten();
    let mut figures = Figures::default();
    for ((slot, (_, _, per)), (before, after)) in figures.iter_mut().zip(EVENTS).zip(before.iter().zip(after))
    {
        let share = if per == Per::Kilobyte { bytes as f64 / 1024.0 } else { 1.0 };
        let count = || first(after)?.since(first(before).unwrap_or_default()).scaled();
        *slot = count().map(|count| count / share);
    }
    figures
}

/// Returns the cycles of an instruction (CPI), if both were counted.
pub fn cycles_per_instruction(figures: &Figures) -> Option<f64> {
    let (cycles, instructions) = (figures[0]?, figures[1].filter(|count| *count > 0.0)?);
    Some(cycles / instructions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(values: [Option<u64>; EVENTS.len()]) -> Vec<Vec<Option<Count>>> {
        values.iter().map(|value| vec![value.map(Count::whole)]).collect()
    }

    #[test]
    fn issue_34_6_counts_are_given_for_a_kilobyte_and_a_copy() {
        let before = vec![vec![Some(Count::default())]; EVENTS.len()];
        let mut values = [Some(2048); EVENTS.len()];
        (values[0], values[1], values[4]) = (Some(8192), Some(4096), None);
        let figures = figures(&before, &counted(values), 4096);
        assert_eq!((figures[0], figures[1], figures[2]), (Some(2048.0), Some(1024.0), Some(512.0)));
        assert_eq!((figures[4], figures[9]), (None, Some(2048.0)));
        assert_eq!(cycles_per_instruction(&figures), Some(2.0));
        assert_eq!(cycles_per_instruction(&Figures::default()), None);
    }

    #[test]
    fn issue_34_6_what_is_not_counted_is_named() {
        let mut values = [Some(1); EVENTS.len()];
        assert_eq!(missing(&counted(values)), None);
        (values[0], values[4]) = (None, None);
        let said = missing(&counted(values)).unwrap();
        assert!(said.starts_with("not counted here: cycles, bus cycles (no PMU"), "{said}");
    }

    #[test]
    fn the_events_of_the_cpu_are_first() {
        const OF_CPU: usize = 9;
        let in_sets: Vec<usize> = SETS.into_iter().flatten().collect();
        assert_eq!(in_sets, (0..EVENTS.len()).collect::<Vec<_>>(), "each event is in one set");
        let is_of_cpu = |index: usize| EVENTS[index].2 == Per::Kilobyte;
        assert!((0..OF_CPU).all(is_of_cpu) && !(OF_CPU..EVENTS.len()).any(is_of_cpu));
    }

    /// What the kernel counts itself is counted anywhere.
    #[test]
    fn issue_34_6_page_faults_of_a_copy_are_counted() {
        let mut notes = Vec::new();
        let Some(counting) = open(&mut notes) else { return println!("SKIP: {notes:?}") };
        let figures = counting.around(1 << 20, || drop(std::hint::black_box(vec![1u8; 64 << 20])));
        assert!(figures[9].is_some_and(|faults| faults >= 1.0), "{figures:?}");
        assert_eq!(figures[0].is_none(), notes.iter().any(|note| note.contains("cycles")), "{notes:?}");
    }
}
