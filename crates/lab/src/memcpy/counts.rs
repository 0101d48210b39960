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

/// An event of the kernel's list.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Its name in the report.
    pub name: &'static str,
    code: Code,
    /// What its figure is given for.
    pub per: Per,
    /// Events of one set are counted at once. A set is no larger than what every CPU has counters for: with more, the kernel takes
    /// turns, and a short copy ends before the turn of the last.
    set: usize,
    /// What stands for it where the CPU does not count it.
    instead: Option<&'static str>,
}

const fn event(name: &'static str, code: Code, set: usize, instead: Option<&'static str>) -> Event {
    Event { name, code, per: Per::Kilobyte, set, instead }
}

/// What the kernel counts itself.
const fn kernel(name: &'static str, code: Code) -> Event {
    Event { name, code, per: Per::Copy, set: SETS - 1, instead: None }
}

/// How many sets there are. The last one is of the kernel.
const SETS: usize = 5;

/// From which cache the bytes come is seen by the speed, too.
const BY_SPEED: Option<&'static str> = Some("the speed of reading alone by size of block");

/// The events. Those of the CPU are first.
pub const EVENTS: [Event; 12] = [
    event("cycles", Code::CYCLES, 0, Some("CPU time")),
    event("instructions", Code::INSTRUCTIONS, 0, None),
    event("bus cycles", Code::BUS_CYCLES, 0, None),
    event("cache references", Code::CACHE_REFERENCES, 1, None),
    event("cache misses", Code::CACHE_MISSES, 1, BY_SPEED),
    event("L1 load misses", Code::L1D_LOAD_MISSES, 2, BY_SPEED),
    event("last-level load misses", Code::LL_LOAD_MISSES, 2, BY_SPEED),
    event("TLB load misses", Code::DTLB_LOAD_MISSES, 3, None),
    event("TLB store misses", Code::DTLB_STORE_MISSES, 3, None),
    kernel("page faults", Code::MINOR_FAULTS),
    kernel("context switches", Code::CONTEXT_SWITCHES),
    kernel("migrations", Code::MIGRATIONS),
];

/// Figures in the order of [`EVENTS`]; `None` for events that this CPU does not count.
pub type Figures = [Option<f64>; EVENTS.len()];

/// Counts of all events, or of those of one set.
type Counts = [Option<Count>; EVENTS.len()];

/// Open counters of this thread, set by set; `None` where the CPU has no event of a set.
pub struct Counting([Option<Counters>; SETS]);

/// Opens the counters. Notes name what is not counted, and why.
pub fn open(notes: &mut Vec<String>) -> Option<Counting> {
    let mut why = None;
    let counting = Counting(std::array::from_fn(|set| {
        let groups: Vec<Vec<Code>> = of_set(set).map(|(_, event)| vec![event.code]).collect();
        let opened = Counters::open(&groups, &[nix::unistd::gettid().as_raw()], Start::Asked);
        opened.map_err(|error| why = Some(error)).ok()
    }));
    if counting.0.iter().all(Option::is_none) {
        let why = why.map_or(String::new(), |why| format!(": {why}"));
        notes.push(format!("cycles, cache and TLB misses, and page faults were not counted{why}"));
        return None;
    }
    notes.extend(missing(&counting.read()));
    if counting.0.iter().flatten().any(|counters| counters.user_only) {
        notes.push(
            "events in the kernel are not counted; root, or sysctl kernel.perf_event_paranoid=1, counts them"
                .into(),
        );
    }
    Some(counting)
}

/// Returns the events of a set with their places.
fn of_set(set: usize) -> impl Iterator<Item = (usize, Event)> {
    EVENTS.into_iter().enumerate().filter(move |(_, event)| event.set == set)
}

/// Names the events that this CPU does not count, and what stands for them.
fn missing(counts: &Counts) -> Option<String> {
    let all: Vec<&Event> =
        EVENTS.iter().zip(counts).filter(|(_, count)| count.is_none()).map(|(event, _)| event).collect();
    let names: Vec<&str> = all.iter().map(|event| event.name).collect();
    let mut stands: Vec<&str> = all.iter().filter_map(|event| event.instead).collect();
    stands.dedup();
    let stands = stands.into_iter().map(|instead| {
        let named = all.iter().filter(|event| event.instead == Some(instead)).map(|event| event.name);
        format!("{instead} stands for {}", named.collect::<Vec<_>>().join(", "))
    });
    let stands: String = stands.map(|stands| format!("; {stands}")).collect();
    (!names.is_empty()).then(|| {
        format!("not counted here: {} (this machine has no PMU, as most guests, or its PMU has not got them){stands}", names.join(", "))
    })
}

impl Counting {
    /// Returns the figures of `work`, which copies `bytes` once. It runs `times` times for each set.
    pub fn around(&self, bytes: usize, times: usize, work: impl Fn()) -> Figures {
        let mut figures = Figures::default();
        for (set, counters) in self.0.iter().enumerate() {
            let Some(counters) = counters else { continue };
            let before = self.read();
            counters.enable();
            (0..times).for_each(|_| work());
            counters.disable();
            let of_set_now = figures_of(&before, &self.read(), bytes, times);
            of_set(set).for_each(|(at, _)| figures[at] = of_set_now[at]);
        }
        figures
    }

    fn read(&self) -> Counts {
        let mut counts = Counts::default();
        for (set, counters) in self.0.iter().enumerate() {
            let read = counters.as_ref().map(Counters::read).unwrap_or_default();
            for ((at, _), count) in of_set(set).zip(read) {
                counts[at] = count.first().copied().flatten();
            }
        }
        counts
    }
}

fn figures_of(before: &Counts, after: &Counts, bytes: usize, times: usize) -> Figures {
    std::array::from_fn(|at| {
        let count = after[at]?.since(before[at].unwrap_or_default()).scaled()? / times.max(1) as f64;
        Some(match EVENTS[at].per {
            Per::Kilobyte => count * 1024.0 / bytes.max(1) as f64,
            Per::Copy => count,
        })
    })
}

/// Returns the cycles of an instruction (CPI), if both were counted.
pub fn cycles_per_instruction(figures: &Figures) -> Option<f64> {
    let (cycles, instructions) = (figures[0]?, figures[1].filter(|count| *count > 0.0)?);
    Some(cycles / instructions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(name: &str) -> usize {
        EVENTS.iter().position(|event| event.name == name).unwrap()
    }

    #[test]
    fn issue_34_6_counts_are_given_for_a_kilobyte_and_a_copy() {
        let before = [Some(Count::whole(100)); EVENTS.len()];
        let mut after = [Some(2048); EVENTS.len()];
        (after[at("cycles")], after[at("instructions")]) = (Some(8192), Some(4096));
        let mut after: Counts = after.map(|value| {
            let more = Count::whole(value?);
            Some(Count { value: more.value + 100, enabled_ns: 2, running_ns: 2 })
        });
        after[at("bus cycles")] = None;
        // On the PMU for a quarter of the time.
        after[at("cache misses")] = Some(Count { value: 612, enabled_ns: 5, running_ns: 2 });
        let figures = figures_of(&before, &after, 4096, 2);
        let of = |name| figures[at(name)];
        assert_eq!((of("cycles"), of("instructions")), (Some(1024.0), Some(512.0)));
        assert_eq!((of("TLB load misses"), of("bus cycles")), (Some(256.0), None));
        assert_eq!((of("cache misses"), of("page faults")), (Some(256.0), Some(1024.0)));
        assert_eq!(cycles_per_instruction(&figures), Some(2.0));
        assert_eq!(cycles_per_instruction(&Figures::default()), None);
    }

    #[test]
    fn issue_34_6_what_is_not_counted_is_named() {
        let mut counts: Counts = [Some(Count::whole(1)); EVENTS.len()];
        assert_eq!(missing(&counts), None);
        for name in ["cycles", "bus cycles", "cache misses", "L1 load misses"] {
            counts[at(name)] = None;
        }
        let said = missing(&counts).unwrap();
        assert!(
            said.starts_with("not counted here: cycles, bus cycles, cache misses, L1 load misses (this"),
            "{said}"
        );
        assert!(said.contains(
            "); CPU time stands for cycles; the speed of reading alone by size of block stands for cache"
        ));
        assert!(said.ends_with(" stands for cache misses, L1 load misses"), "{said}");
    }

    /// CPUs have four counters at least, of which the watchdog of the kernel may take one.
    #[test]
    fn issue_34_6_no_set_needs_more_counters_than_a_cpu_has() {
        for set in 0..SETS {
            let count = of_set(set).count();
            assert!((1..=3).contains(&count), "{set}: {count}");
            let per = |per| of_set(set).all(|(_, event)| event.per == per);
            assert!(per(if set + 1 == SETS { Per::Copy } else { Per::Kilobyte }), "{set}");
        }
        assert_eq!(
            (EVENTS[0].name, EVENTS[1].name, EVENTS[0].set, EVENTS[1].set),
            ("cycles", "instructions", 0, 0)
        );
    }

    /// What the kernel counts itself is counted anywhere.
    #[test]
    fn issue_34_6_page_faults_of_a_copy_are_counted() {
        let mut notes = Vec::new();
        let Some(counting) = open(&mut notes) else { return println!("SKIP: {notes:?}") };
        let figures = counting.around(1 << 20, 3, || drop(std::hint::black_box(vec![1u8; 64 << 20])));
        assert!(figures[at("page faults")].is_some_and(|faults| faults >= 1.0), "{figures:?}");
        let is_missing = figures[at("cycles")].is_none();
        assert_eq!(
            is_missing,
            notes.iter().any(|note| note.contains("not counted here: cycles")),
            "{notes:?}"
        );
    }
}
