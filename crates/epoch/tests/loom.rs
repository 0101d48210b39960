// SPDX-License-Identifier: Apache-2.0
//! The three implementations under a model checker. loom runs each test in every order of its atomic
//! operations, with a bound on preemptions, and with every value that a load may see on a weakly ordered
//! machine. The sources are compiled a second time here, with loom's atomics and locks.
//!
//! Memory that is freed after a wait is a loom cell: an access that is not ordered before fails the test.

#![allow(dead_code, reason = "the tests use only a part of the sources")]

#[path = "../src/contract.rs"]
mod contract;
#[path = "../src/donated.rs"]
mod donated;
#[path = "../src/epochs.rs"]
mod epochs;
#[path = "../src/locked.rs"]
mod locked;

/// The module that the sources use as `crate::sync`.
mod sync {
    pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
    pub use loom::sync::{Condvar, Mutex, MutexGuard};
    pub use std::sync::PoisonError;

    pub fn publish(word: &AtomicU64, value: u64) {
        word.store(value, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    #[derive(Debug, Default)]
    pub struct Backoff(());

    impl Backoff {
        pub fn wait(&mut self) {
            loom::thread::yield_now();
        }
    }
}

use contract::{Contract, Stamp};
use donated::Donated;
use epochs::Epochs;
use locked::Locked;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use loom::thread;

/// Two memories, one of them in use. The other one is free, and its owner writes to it.
struct Memory<C> {
    contract: C,
    used: AtomicUsize,
    cells: [UnsafeCell<u64>; 2],
    /// The mark of a page: the stamp of the task that dropped the last reference; 0 for none.
    mark: AtomicU64,
}

impl<C: Contract + 'static> Memory<C> {
    fn new(tasks: usize) -> Arc<Memory<C>> {
        Arc::new(Memory {
            contract: C::new(tasks),
            used: AtomicUsize::new(0),
            cells: [UnsafeCell::new(1), UnsafeCell::new(2)],
            mark: AtomicU64::new(0),
        })
    }

    /// Starts a thread that enters, reads the memory in use and exits, `times` times.
    fn reader(memory: &Arc<Self>, task: usize, times: usize) -> thread::JoinHandle<()> {
        let memory = Arc::clone(memory);
        thread::spawn(move || {
            for _ in 0..times {
                memory.contract.enter(task);
                memory.read();
                memory.contract.exit(task);
            }
        })
    }

    fn read(&self) {
        let used = self.used.load(Ordering::Relaxed);
        // SAFETY: loom checks that no thread writes to it meanwhile, which this test is for.
        self.cells[used].with(|cell| assert_eq!(unsafe { *cell }, used as u64 + 1));
    }

    fn free(&self, cell: usize) {
        // SAFETY: as in `read`.
        self.cells[cell].with_mut(|cell| unsafe { *cell = 99 });
    }
}

/// Checks `model` with at most `preemptions` preemptions. Without a bound it would run for hours.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    // The steps of one order of events; loops that poll take many.
    builder.max_branches = 5_000;
    builder.check(model);
}

/// No task reads memory that was taken out of use before a wait.
fn freed_after_wait<C: Contract + 'static>(readers: usize, times: usize, preemptions: usize) {
    check(preemptions, move || {
        let memory = Memory::<C>::new(readers);
        let readers: Vec<_> = (0..readers).map(|task| Memory::reader(&memory, task, times)).collect();
        memory.used.store(1, Ordering::Relaxed);
        memory.contract.wait();
        memory.free(0);
        for reader in readers {
            reader.join().expect("a reader ends");
        }
    });
}

/// No task reads memory after a wait for the mark of its page, while other tasks enter and exit.
fn freed_after_wait_for<C: Contract + 'static>(others: usize, preemptions: usize) {
    check(preemptions, move || {
        let memory = Memory::<C>::new(others + 1);
        let dropper = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                memory.contract.enter(others);
                memory.mark.store(memory.contract.stamp(others).to_bits(), Ordering::Release);
                memory.read();
                memory.contract.exit(others);
            })
        };
        let others: Vec<_> = (0..others)
            .map(|task| {
                let memory = Arc::clone(&memory);
                thread::spawn(move || {
                    memory.contract.enter(task);
                    memory.contract.exit(task);
                })
            })
            .collect();
        let mark = memory.mark.load(Ordering::Acquire);
        if mark != 0 {
            memory.contract.wait_for(Stamp::from_bits(mark));
            memory.free(0);
        }
        dropper.join().expect("the dropper ends");
        for other in others {
            other.join().expect("another ends");
        }
    });
}

/// The maker of a stamp is waited for, however slow it was to enter: `wait_for` returns only when it has
/// exited. Meanwhile another thread enters and exits `entries` times, then waits for all tasks.
fn maker_of_a_stamp_has_left<C: Contract + 'static>(entries: usize, preemptions: usize) {
    check(preemptions, move || {
        let memory = Memory::<C>::new(2);
        let waiter = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                for _ in 0..entries {
                    memory.contract.enter(0);
                    memory.contract.exit(0);
                }
                memory.contract.wait();
            })
        };
        let maker = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                memory.contract.enter(1);
                memory.mark.store(memory.contract.stamp(1).to_bits(), Ordering::Release);
                memory.read();
                memory.contract.exit(1);
            })
        };
        let mark = memory.mark.load(Ordering::Acquire);
        if mark != 0 {
            memory.contract.wait_for(Stamp::from_bits(mark));
            memory.free(0);
        }
        waiter.join().expect("the waiter ends");
        maker.join().expect("the maker ends");
    });
}

/// Two threads wait at once: both wake up, and no task reads what is freed afterwards.
fn two_wait<C: Contract + 'static>(preemptions: usize) {
    check(preemptions, move || {
        let memory = Memory::<C>::new(1);
        let reader = Memory::reader(&memory, 0, 1);
        memory.used.store(1, Ordering::Relaxed);
        let second = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || memory.contract.wait())
        };
        memory.contract.wait();
        memory.free(0);
        second.join().expect("it wakes up");
        reader.join().expect("a reader ends");
    });
}

/// After any order of entering and exiting the list is intact: a new task is waited for.
fn enters_and_exits<C: Contract + 'static>(tasks: usize, times: usize, preemptions: usize) {
    check(preemptions, move || {
        let memory = Memory::<C>::new(tasks);
        let readers: Vec<_> = (0..tasks).map(|task| Memory::reader(&memory, task, times)).collect();
        for reader in readers {
            reader.join().expect("a reader ends");
        }
        memory.contract.wait();
        let late = Memory::reader(&memory, 0, 1);
        memory.used.store(1, Ordering::Relaxed);
        memory.contract.wait();
        memory.free(0);
        late.join().expect("the late one ends");
    });
}

macro_rules! models {
    ($($module:ident $contract:ty;)*) => {$(
        mod $module {
            use super::*;

            #[test]
            fn one_reader_freed_after_wait() {
                freed_after_wait::<$contract>(1, 2, 3);
            }

            #[test]
            fn two_readers_freed_after_wait() {
                freed_after_wait::<$contract>(2, 1, 2);
            }

            #[test]
            fn freed_after_wait_for_a_mark() {
                freed_after_wait_for::<$contract>(1, 2);
            }

            #[test]
            fn maker_of_a_stamp_has_left_while_another_waits() {
                maker_of_a_stamp_has_left::<$contract>(0, 2);
            }

            #[test]
            fn maker_of_a_stamp_has_left_while_another_enters_and_waits() {
                maker_of_a_stamp_has_left::<$contract>(1, 2);
            }

            #[test]
            fn two_wait_at_once() {
                two_wait::<$contract>(2);
            }

            #[test]
            fn the_list_stays_intact() {
                enters_and_exits::<$contract>(2, 1, 3);
            }
        }
    )*};
}

models! {
    a_locked Locked;
    b_epochs Epochs;
    c_donated Donated;
}
