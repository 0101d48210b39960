// SPDX-License-Identifier: Apache-2.0
//! What is measured: the three implementations of `hugelift-epoch`, and two libraries beside them.

use hugelift_epoch::{Contract, Domain, Inside, MOST_TASKS, Stamp, Task};

/// Something that tasks enter and exit.
pub trait Scheme: Sync + Sized {
    /// As shown.
    const NAME: &'static str;

    /// What a task needs to enter.
    type Task<'s>
    where
        Self: 's;

    /// Inside as long as it lives.
    type Inside<'t>
    where
        Self: 't;

    /// An empty one.
    fn new() -> Self;

    /// One more task; to be called by the thread that is it.
    fn task(&self) -> Self::Task<'_>;

    /// Enters.
    fn enter<'t>(task: &'t mut Self::Task<'_>) -> Self::Inside<'t>;

    /// What pages are marked with; 0 where there is no such thing.
    fn stamp(_inside: &Self::Inside<'_>) -> u64 {
        0
    }

    /// Waits for a mark; `false` where there is no such thing.
    fn wait_for(&self, _mark: u64) -> bool {
        false
    }
}

/// One of our own.
pub struct Own<C: Contract>(Domain<C>);

impl<C: Contract + 'static> Scheme for Own<C> {
    const NAME: &'static str = C::NAME;
    type Task<'s> = Task<'s, C>;
    type Inside<'t> = Inside<'t, C>;

    fn new() -> Own<C> {
        // As many as anybody has CPUs; those without a task cost waiters a look each.
        let tasks = 4 * std::thread::available_parallelism().map_or(1, usize::from) + 4;
        Own(Domain::new(tasks.min(MOST_TASKS)))
    }

    fn task(&self) -> Task<'_, C> {
        self.0.join().expect("no experiment has more tasks")
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

/// The crate crossbeam-epoch: its handle, without the look-up in thread-local storage.
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

/// The crate seize, by its guards that belong to the thread.
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
