// SPDX-License-Identifier: Apache-2.0
//! Threads that really free the memory that they have unlinked, with all three implementations. Under Miri
//! there are few rounds; it detects every use after free and every data race in them.

use hugelift_epoch::{Contract, Domain, Donated, Epochs, Locked, Stamp};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::thread;

const ROUNDS: usize = if cfg!(miri) { 12 } else { 2000 };
/// How many stamps are made and waited for.
const STAMPS: u64 = if cfg!(miri) { 12 } else { 250_000 };

/// Pages and the memory that each refers to.
struct Pages {
    pages: [AtomicPtr<Memory>; 3],
    /// The stamp of the task that has last dropped a reference to each page.
    marks: [AtomicU64; 3],
}

/// The same number twice, so that half a write is detected.
struct Memory(u64, u64);

impl Pages {
    fn new() -> Pages {
        Pages {
            pages: std::array::from_fn(|page| AtomicPtr::new(memory(page as u64))),
            marks: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Reads a page. The calling task must be inside.
    fn read(&self, page: usize) {
        let memory = self.pages[page].load(Ordering::Acquire);
        // SAFETY: the memory was in use while this task was inside, and is freed after a wait for the task,
        // which this test checks.
        let memory = unsafe { &*memory };
        assert_eq!(memory.0, memory.1);
    }

    /// Gives the page other memory and returns the old one, which the caller frees. (It is not a box, since a
    /// box would claim to be the only user.)
    fn replace(&self, page: usize, number: u64) -> *mut Memory {
        self.pages[page].swap(memory(number), Ordering::AcqRel)
    }
}

/// Frees memory that [`Pages::replace`] has unlinked, once no task reads it any more.
fn free(old: *mut Memory) {
    // SAFETY: it comes from `memory`, and the swap gave it to this thread only.
    drop(unsafe { Box::from_raw(old) });
}

impl Drop for Pages {
    fn drop(&mut self) {
        for page in 0..self.pages.len() {
            free(*self.pages[page].get_mut());
        }
    }
}

fn memory(number: u64) -> *mut Memory {
    Box::into_raw(Box::new(Memory(number, number)))
}

/// Four threads read; two unlink, wait and free. With more threads than CPUs, some lose their CPU while inside.
fn unlink_wait_free<C: Contract>() {
    let (domain, pages, done) = (Domain::<C>::new(4), Pages::new(), AtomicBool::new(false));
    thread::scope(|scope| {
        let readers: Vec<_> = (0..4)
            .map(|first| {
                let (domain, pages, done) = (&domain, &pages, &done);
                scope.spawn(move || {
                    let mut task = domain.join().expect("room for four");
                    let mut reads = 0;
                    // On a busy machine the others may be done before it begins.
                    while reads == 0 || !done.load(Ordering::Relaxed) {
                        let inside = task.enter();
                        (0..3).for_each(|page| pages.read((first + page) % 3));
                        drop(inside);
                        reads += 1;
                    }
                    reads
                })
            })
            .collect();
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let (domain, pages) = (&domain, &pages);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let old = pages.replace((round + writer) % 3, round as u64);
                        domain.wait();
                        free(old);
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().expect("no wait hangs or panics");
        }
        done.store(true, Ordering::Relaxed);
        let reads: u64 = readers.into_iter().map(|reader| reader.join().expect("no reader panics")).sum();
        assert!(reads >= 4);
    });
}

/// Tasks unlink while they are inside and mark the page; other threads wait for the mark.
fn marks<C: Contract>() {
    let (domain, pages) = (Domain::<C>::new(3), Pages::new());
    thread::scope(|scope| {
        for page in 0..3 {
            let (domain, pages) = (&domain, &pages);
            scope.spawn(move || {
                let mut task = domain.join().expect("room for three");
                for round in 0..ROUNDS {
                    let inside = task.enter();
                    pages.read((page + 1) % 3);
                    let old = pages.replace(page, round as u64);
                    pages.marks[page].store(inside.stamp().to_bits(), Ordering::Release);
                    drop(inside);
                    // Other tasks may have entered before or after this one. All have to exit.
                    domain.wait();
                    free(old);
                }
            });
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let mark = pages.marks[page].load(Ordering::Acquire);
                    domain.wait_for(Stamp::from_bits(mark));
                }
            });
        }
    });
}

/// The last stamp that its maker has published.
#[derive(Default)]
struct Made {
    /// The last stamp and its round.
    published: Mutex<Option<(Stamp, u64)>>,
    /// The last round that the maker has left.
    left: AtomicU64,
}

/// The promise of `wait_for`: when it returns, the maker of the stamp has left the round in which it made the
/// stamp. Two threads wait for all tasks again and again, so that epochs and generations advance quickly: a
/// maker that was slow to enter must be waited for too.
fn stamps<C: Contract>() {
    let (domain, made, done) = (Domain::<C>::new(1), Made::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        let (domain, made, done) = (&domain, &made, &done);
        let maker = scope.spawn(move || {
            let mut task = domain.join().expect("room for one");
            for round in 1..=STAMPS {
                let inside = task.enter();
                *made.published.lock().expect("no one panics") = Some((inside.stamp(), round));
                // Time in which a waiter could return too early.
                (0..round % 64).for_each(|_| std::hint::spin_loop());
                // From here on a waiter may return.
                made.left.store(round, Ordering::Release);
                drop(inside);
            }
        });
        let waiter = scope.spawn(move || {
            let mut early = 0;
            while !done.load(Ordering::Relaxed) {
                let published = *made.published.lock().expect("no one panics");
                let Some((stamp, round)) = published else { continue };
                domain.wait_for(stamp);
                early += u64::from(made.left.load(Ordering::Acquire) < round);
            }
            early
        });
        for _ in 0..2 {
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    domain.wait();
                }
            });
        }
        maker.join().expect("the maker does not panic");
        done.store(true, Ordering::Relaxed);
        assert_eq!(waiter.join().expect("the waiter does not panic"), 0, "wait_for returned too early");
    });
}

/// A domain gives a place, refuses one when it is full, and gives a free place again.
fn places<C: Contract>() {
    let domain = Domain::<C>::new(2);
    let (first, second) = (domain.join(), domain.join());
    assert!(first.is_some() && second.is_some() && domain.join().is_none());
    drop(first);
    let mut again = domain.join().expect("the first one's place");
    assert!(domain.join().is_none());
    for _ in 0..3 {
        drop(again.enter());
    }
    domain.wait();
    let stamp = {
        let inside = again.enter();
        inside.stamp()
    };
    domain.wait_for(stamp);
    domain.wait_for(stamp);
}

/// A task whose guard was forgotten cannot enter again, and keeps its place.
fn forgotten<C: Contract>() {
    let domain = Domain::<C>::new(1);
    let mut task = domain.join().expect("room for one");
    std::mem::forget(task.enter());
    let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(task.enter())));
    assert!(again.is_err());
    drop(task);
    assert!(domain.join().is_none());
}

/// Generations are exact: a task that has entered after the stamp is not waited for.
fn exact<C: Contract>() {
    let domain = Domain::<C>::new(3);
    let mut tasks = [(); 3].map(|()| domain.join().expect("room for three"));
    let [first, second, third] = &mut tasks;
    let oldest = first.enter();
    let middle = second.enter();
    let stamp = middle.stamp();
    let _youngest = third.enter();
    drop(middle);
    drop(oldest);
    // The wait would hang if it waited for the youngest task, which is inside.
    domain.wait_for(stamp);
}

macro_rules! tests {
    ($($module:ident $contract:ty, $($test:ident)*;)*) => {$(
        mod $module {
            use super::*;
            $(
                #[test]
                fn $test() {
                    super::$test::<$contract>();
                }
            )*
        }
    )*};
}

tests! {
    a_locked Locked, unlink_wait_free marks stamps places forgotten exact;
    b_epochs Epochs, unlink_wait_free marks stamps places forgotten;
    c_donated Donated, unlink_wait_free marks stamps places forgotten exact;
}
