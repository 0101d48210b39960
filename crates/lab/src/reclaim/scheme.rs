// SPDX-License-Identifier: Apache-2.0
//! The schemes that are measured: the three implementations of `hugelift-epoch`, and two libraries.

use hugelift_epoch::{Contract, Domain, Inside, MAX_TASKS, Stamp, Task};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A scheme: tasks enter and exit, and may wait for each other.
pub trait Scheme: Sync + Sized {
    /// Name that is shown.
    const NAME: &'static str;

    /// The handle by which a task enters.
    type Task<'s>
    where
        Self: 's;

    /// The guard: the task is inside as long as it lives.
    type Inside<'t>
    where
        Self: 't;

    /// Makes a scheme without tasks.
    fn new() -> Self;

    /// Adds a task. The thread of the task must call this.
    fn task(&self) -> Self::Task<'_>;

    /// Makes the task enter.
    fn enter<'t>(task: &'t mut Self::Task<'_>) -> Self::Inside<'t>;

    /// Returns the mark for pages; 0 if the scheme has none.
    fn stamp(_inside: &Self::Inside<'_>) -> u64 {
        0
    }

    /// Waits until a mark is passed. Returns `false` if the scheme has no wait.
    fn wait_for(&self, _mark: u64) -> bool {
        false
    }
}

/// An implementation of `hugelift-epoch`.
pub struct Own<C: Contract>(Domain<C>);

impl<C: Contract + 'static> Scheme for Own<C> {
    const NAME: &'static str = C::NAME;
    type Task<'s> = Task<'s, C>;
    type Inside<'t> = Inside<'t, C>;

    fn new() -> Own<C> {
        // Room for all tasks of an experiment. A free place costs a waiter a read.
        let tasks = 4 * std::thread::available_parallelism().map_or(1, usize::from) + 4;
        Own(Domain::new(tasks.min(MAX_TASKS)))
    }

    fn task(&self) -> Task<'_, C> {
        self.0.join().expect("an experiment has no more tasks")
    }

    #[inline]
    fn enter<'t>(task: &'t mut Task<'_, C>) -> Inside<'t, C> {
        task.enter()
    }

    #[inline]
    fn stamp(inside: &Inside<'_, C>) -> u64 {
        inside.stamp().to_bits()
    }

    fn wait_for(&self, mark: u64) -> bool {
        self.0.wait_for(Stamp::from_bits(mark));
        true
    }
}

/// A lock whose waiters spin, taken to enter and to exit. It has no wait. It is measured only because the
/// model of such a lock must be compared with something.
#[derive(Default)]
pub struct Spinning {
    lock: OwnLines<AtomicBool>,
    /// What the lock protects.
    generation: OwnLines<AtomicU64>,
}

/// Data on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct OwnLines<T>(T);

/// Takes the lock again when it is dropped.
pub struct InsideSpinning<'t>(&'t Spinning);

impl Spinning {
    #[inline]
    fn count(&self) {
        let (OwnLines(lock), OwnLines(generation)) = (&self.lock, &self.generation);
        while lock.swap(true, Ordering::Acquire) {
            while lock.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        }
        generation.store(generation.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        lock.swap(false, Ordering::Release);
    }
}

impl Drop for InsideSpinning<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.count();
    }
}

impl Scheme for Spinning {
    const NAME: &'static str = "one lock, spinning";
    type Task<'s> = &'s Spinning;
    type Inside<'t> = InsideSpinning<'t>;

    fn new() -> Spinning {
        Spinning::default()
    }

    fn task(&self) -> &Spinning {
        self
    }

    #[inline]
    fn enter<'t>(task: &'t mut Self::Task<'_>) -> InsideSpinning<'t> {
        task.count();
        InsideSpinning(task)
    }
}

/// The crate crossbeam-epoch, by its handle, which avoids the look-up in thread-local storage.
pub struct Crossbeam(crossbeam_epoch::Collector);

impl Scheme for Crossbeam {
    const NAME: &'static str = "crossbeam-epoch";
    type Task<'s> = crossbeam_epoch::LocalHandle;
    type Inside<'t> = crossbeam_epoch::Guard;

    fn new() -> Crossbeam {
        Crossbeam(crossbeam_epoch::Collector::new())
    }

    fn task(&self) -> crossbeam_epoch::LocalHandle {
        self.0.register()
    }

    #[inline]
    fn enter(task: &mut crossbeam_epoch::LocalHandle) -> crossbeam_epoch::Guard {
        task.pin()
    }
}

/// The crate seize, by its guards for the current thread.
pub struct Seize(seize::Collector);

impl Scheme for Seize {
    const NAME: &'static str = "seize";
    type Task<'s> = &'s seize::Collector;
    type Inside<'t> = seize::LocalGuard<'t>;

    fn new() -> Seize {
        Seize(seize::Collector::new())
    }

    fn task(&self) -> &seize::Collector {
        &self.0
    }

    #[inline]
    fn enter<'t>(task: &'t mut Self::Task<'_>) -> seize::LocalGuard<'t> {
        task.enter()
    }
}
