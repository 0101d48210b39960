// SPDX-License-Identifier: Apache-2.0
//! The measurements of a scheme: entering and exiting by one task alone, and tasks that drop references to
//! pages while a waiter waits for pages.

use super::scheme::Scheme;
use crate::cpus;
use crate::progress::Progress;
use hugelift_measure::interrupt;
use nix::sched::{sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use nix::unistd::Pid;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// How often a task enters and exits in one timed batch. A batch takes some microseconds, in which another
/// program seldom gets the CPU.
const BATCH: u32 = 500;

/// Batches in one measurement.
const BATCHES: usize = 40;

/// Measures the nanoseconds of entering and exiting by one task alone: the median of the batches.
pub fn uncontended<S: Scheme>() -> f64 {
    let scheme = S::new();
    let mut task = scheme.task();
    let mut times: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let began = Instant::now();
            for _ in 0..BATCH {
                // The compiler cannot leave these atomic operations out.
                drop(S::enter(&mut task));
            }
            began.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[BATCHES / 2]
}

/// Page table entries of each task.
const ENTRIES: usize = 64;

/// Entries that one operation clears.
const CLEARED: usize = 8;

/// The pause of the waiter between two pages.
const BETWEEN_WAITS: Duration = Duration::from_micros(200);

/// The page table of a task, and the pages that it refers to.
#[repr(align(128))]
struct Table {
    /// The number of a page plus 1; 0 if there is no page.
    entries: [AtomicU32; ENTRIES],
    /// For each page the mark of the last task that has dropped a reference to it.
    marks: [AtomicU64; ENTRIES],
}

impl Table {
    fn new() -> Table {
        Table {
            entries: std::array::from_fn(|page| AtomicU32::new(page as u32 + 1)),
            marks: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Drops eight references inside, then makes them again, as an unmapping and a mapping do to a page table.
    #[inline]
    fn operation<S: Scheme>(&self, task: &mut S::Task<'_>, first: usize) {
        let pages = (0..CLEARED).map(|i| (first + i) % ENTRIES);
        let inside = S::enter(task);
        let stamp = S::stamp(&inside);
        for page in pages.clone() {
            self.entries[page].store(0, Ordering::Relaxed);
            self.marks[page].store(stamp, Ordering::Release);
        }
        drop(inside);
        for page in pages {
            self.entries[page].store(page as u32 + 1, Ordering::Relaxed);
        }
    }
}

/// The measurements of one turn.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Turn {
    /// Operations per second of all tasks together.
    pub rate: f64,
    /// CPU time per operation in nanoseconds, with that of the waiter.
    pub cpu: f64,
    /// The longest wait for a page in seconds; `None` if there was none.
    pub longest_wait: Option<f64>,
}

/// Runs `tasks` tasks for `time`, while a waiter waits for pages of theirs. Returns `None` if it was stopped.
///
/// The calling thread is the first task, so that what it waits for a CPU shows whether other programs
/// disturbed the turn. If each task can have a CPU of its own, it gets one.
pub fn turn<S: Scheme>(tasks: usize, time: Duration, progress: &mut Progress) -> Option<Turn> {
    let scheme = S::new();
    let tables: Vec<Table> = (0..tasks.max(1)).map(|_| Table::new()).collect();
    let (start, stop) = (Barrier::new(tables.len() + 2), AtomicBool::new(false));
    let first = OnceLock::new();
    let cpus = cpus::allowed();
    let cpu = |task: usize| cpus.get(task).copied().filter(|_| tasks <= cpus.len());
    let work = |number: usize, table: &Table| {
        let mut task = scheme.task();
        if let Some(cpu) = cpu(number) {
            cpus::pin_to(cpu);
        }
        start.wait();
        first.get_or_init(Instant::now);
        let mut done = 0u64;
        while !stop.load(Ordering::Relaxed) {
            table.operation::<S>(&mut task, done as usize * CLEARED);
            done += 1;
        }
        done
    };
    let time = time.min(progress.left());
    let before = cpu_time();
    let (done, elapsed, longest_wait) = thread::scope(|scope| {
        let (work, start, stop, first) = (&work, &start, &stop, &first);
        let others: Vec<_> = tables
            .iter()
            .enumerate()
            .skip(1)
            .map(|(number, table)| scope.spawn(move || work(number, table)))
            .collect();
        let waiter = scope.spawn(|| waits(&scheme, &tables, start, stop));
        let clock = scope.spawn(move || {
            start.wait();
            let began = Instant::now();
            while let Some(left) = time.checked_sub(began.elapsed()).filter(|left| !left.is_zero())
                && interrupt::check().is_ok()
            {
                thread::sleep(left.min(POLL));
            }
            stop.store(true, Ordering::Relaxed);
            // This thread may have run first long after the tasks began.
            first.get().map_or(f64::NAN, |first| first.elapsed().as_secs_f64())
        });
        let affinity = sched_getaffinity(Pid::from_raw(0));
        let own = work(0, &tables[0]);
        if let Ok(set) = affinity {
            let _ = sched_setaffinity(Pid::from_raw(0), &set);
        }
        let done = own + others.into_iter().map(|other| other.join().unwrap_or(0)).sum::<u64>();
        (done, clock.join().unwrap_or(f64::NAN), waiter.join().ok().flatten())
    });
    let cpu = (cpu_time() - before) * 1e9 / done.max(1) as f64;
    (!progress.is_over()).then_some(Turn { rate: done as f64 / elapsed, cpu, longest_wait })
}

/// How often a turn checks whether ctrl-C was pressed.
const POLL: Duration = Duration::from_millis(50);

/// Waits for a page of each task in turn. Returns the longest wait in seconds; `None` if there was none.
fn waits<S: Scheme>(scheme: &S, tables: &[Table], start: &Barrier, stop: &AtomicBool) -> Option<f64> {
    start.wait();
    let mut longest = None::<f64>;
    for turn in 0.. {
        let mark = tables[turn % tables.len()].marks[turn % ENTRIES].load(Ordering::Acquire);
        let began = Instant::now();
        // At least one wait, also if the waiter gets a CPU only after the end.
        if !scheme.wait_for(mark) {
            break;
        }
        let waited = began.elapsed().as_secs_f64();
        longest = Some(longest.unwrap_or(0.0).max(waited));
        if stop.load(Ordering::Relaxed) {
            break;
        }
        thread::sleep(BETWEEN_WAITS);
    }
    longest
}

/// Returns the CPU time of this process in seconds.
fn cpu_time() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF);
    let times =
        usage.map(|usage| usage.user_time().num_microseconds() + usage.system_time().num_microseconds());
    times.unwrap_or(0) as f64 / 1e6
}

/// Measures the nanoseconds of one operation by one task, without entering and exiting.
pub fn work_alone() -> f64 {
    struct Nothing;
    impl Scheme for Nothing {
        const NAME: &'static str = "nothing";
        type Task<'s> = ();
        type Inside<'t> = ();
        fn new() -> Nothing {
            Nothing
        }
        fn task(&self) {}
        fn enter(_task: &mut ()) {}
    }
    let table = Table::new();
    let mut times: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let began = Instant::now();
            for i in 0..BATCH {
                table.operation::<Nothing>(&mut (), black_box(i as usize));
            }
            began.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[BATCHES / 2]
}

/// Returns the seconds between two waits, for the model.
pub fn between_waits() -> f64 {
    BETWEEN_WAITS.as_secs_f64()
}
