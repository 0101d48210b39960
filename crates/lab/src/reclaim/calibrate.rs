// SPDX-License-Identifier: Apache-2.0
//! Measures the costs of this machine that the model needs, by two threads on two CPUs.

use super::tasks;
use crate::contention::{Costs, Transfer};
use crate::cpus::{self, pin_to};
use crate::memory::Pages;
use crate::munmap::{Cycle, Touch};
use hugelift_measure::stats::median;
use nix::sched::{sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

/// Round trips between two threads in one timed batch.
const PASSES: u64 = 200;

/// Number of batches. The result is the fastest tenth, since every disturbance adds time.
const BATCHES: usize = 60;

/// How often a sleeper is woken.
const WAKES: usize = 200;

/// Measures the costs for the model, with the work of this experiment's operations. Returns `None` if there is
/// only one CPU. What the schemes cost alone is left 0: the experiment measures that.
pub fn costs() -> Option<Costs> {
    let cpus = cpus::allowed();
    let &[first, second, ..] = cpus.as_slice() else { return None };
    let (wake, awake) = waking(first, second);
    Some(Costs {
        transfer: Transfer::flat(transfer(first, second)),
        atomic: atomic(),
        held: 0.0,
        held_spinning: 0.0,
        pause: pause(),
        wake,
        awake,
        wake_nobody: futex(libc::FUTEX_WAKE),
        refused: futex(libc::FUTEX_WAIT),
        epochs: 0.0,
        work: tasks::work_alone(),
        between_waits: tasks::between_waits() * 1e9,
    })
}

/// Returns the median of each measured cost; `None` if there are no costs.
pub fn medians(all: &[Costs]) -> Option<Costs> {
    let of = |cost: fn(&Costs) -> f64| median(&all.iter().map(cost).collect::<Vec<_>>()).unwrap_or(f64::NAN);
    Some(Costs {
        transfer: Transfer::flat(of(|costs| costs.transfer.within)),
        atomic: of(|costs| costs.atomic),
        pause: of(|costs| costs.pause),
        wake: of(|costs| costs.wake),
        awake: of(|costs| costs.awake),
        wake_nobody: of(|costs| costs.wake_nobody),
        refused: of(|costs| costs.refused),
        work: of(|costs| costs.work),
        ..*all.first()?
    })
}

/// Measures the nanoseconds of mapping and unmapping 128 MB, which is the operation in the literature: the
/// work around each enter and exit. `None` if the memory cannot be mapped.
pub fn unmapping() -> Option<f64> {
    let cycle = Cycle { pages: Pages::Small, touch: Touch::None };
    let times = (0..BATCHES).map(|_| {
        let began = Instant::now();
        (0..10).try_for_each(|_| cycle.run()).ok()?;
        Some(began.elapsed().as_secs_f64() * 1e9 / 10.0)
    });
    Some(fast(times.collect::<Option<Vec<f64>>>()?))
}

/// Returns the value at the fastest tenth.
fn fast(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 10]
}

/// Measures an atomic operation on a line in the core's own cache.
fn atomic() -> f64 {
    let word = AtomicU64::new(0);
    let times = (0..BATCHES).map(|_| {
        let began = Instant::now();
        for _ in 0..PASSES {
            word.fetch_add(1, Ordering::AcqRel);
        }
        began.elapsed().as_secs_f64() * 1e9 / PASSES as f64
    });
    fast(times.collect())
}

/// Measures the transfer of a cache line: two threads write to it in turn, and it moves once per turn.
fn transfer(first: usize, second: usize) -> f64 {
    let word = AtomicU64::new(0);
    let turns = BATCHES as u64 * PASSES;
    let take_turns = |cpu: usize, mine: u64| {
        pin_to(cpu);
        let mut times = Vec::with_capacity(BATCHES);
        let mut began = Instant::now();
        for turn in 0..turns {
            while word.load(Ordering::Acquire) != 2 * turn + mine {
                std::hint::spin_loop();
            }
            word.store(2 * turn + mine + 1, Ordering::Release);
            if (turn + 1) % PASSES == 0 {
                times.push(began.elapsed().as_secs_f64() * 1e9 / (2 * PASSES) as f64);
                began = Instant::now();
            }
        }
        times
    };
    both(|| take_turns(first, 0), || take_turns(second, 1))
}

/// Measures a wake-up: two threads wake each other in turn by a system call (futex(2)). Returns the time that
/// the waker spends, and the time until the sleeper runs.
fn waking(first: usize, second: usize) -> (f64, f64) {
    let (turn, waker) = (AtomicU64::new(0), thread::current());
    let sleep_until = |mine: u64| {
        while turn.load(Ordering::Acquire) != mine {
            thread::park();
        }
    };
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            pin_to(second);
            for passed in 0..WAKES {
                sleep_until(2 * passed as u64 + 1);
                turn.store(2 * passed as u64 + 2, Ordering::Release);
                waker.unpark();
            }
        });
        let before = sched_getaffinity(Pid::from_raw(0));
        pin_to(first);
        let (mut wake, mut awake) = (Vec::with_capacity(WAKES), Vec::with_capacity(WAKES));
        for passed in 0..WAKES {
            let began = Instant::now();
            turn.store(2 * passed as u64 + 1, Ordering::Release);
            sleeper.thread().unpark();
            wake.push(began.elapsed().as_secs_f64() * 1e9);
            sleep_until(2 * passed as u64 + 2);
            // The round trip has two wake-ups.
            awake.push(began.elapsed().as_secs_f64() * 1e9 / 2.0);
        }
        if let Ok(set) = before {
            let _ = sched_setaffinity(Pid::from_raw(0), &set);
        }
        let _ = sleeper.join();
        (fast(wake), fast(awake))
    })
}

/// Measures futex(2) with nobody to wake, or with a word that is not the expected one, so that it does not
/// sleep.
fn futex(operation: libc::c_int) -> f64 {
    let word = AtomicU32::new(0);
    let times = (0..BATCHES).map(|_| {
        let began = Instant::now();
        for _ in 0..PASSES {
            // SAFETY: futex(2) reads the word, which lives through the call. It wakes at most one thread,
            // and sleeps only if the word is 1, which it never is.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    word.as_ptr(),
                    operation | libc::FUTEX_PRIVATE_FLAG,
                    1,
                    std::ptr::null::<libc::timespec>(),
                );
            }
        }
        began.elapsed().as_secs_f64() * 1e9 / PASSES as f64
    });
    fast(times.collect())
}

/// Measures one round of spinning: a load and the spin hint of the CPU.
fn pause() -> f64 {
    let word = AtomicU64::new(0);
    let times = (0..BATCHES).map(|_| {
        let began = Instant::now();
        for _ in 0..PASSES {
            word.load(Ordering::Relaxed);
            std::hint::spin_loop();
        }
        began.elapsed().as_secs_f64() * 1e9 / PASSES as f64
    });
    fast(times.collect())
}

/// Runs `first` on the calling thread and `second` on another one. Returns the fastest tenth of the times of
/// the first. A third thread, which only waits for both, would wait for a CPU and seem disturbed.
fn both(first: impl FnOnce() -> Vec<f64>, second: impl FnOnce() -> Vec<f64> + Send) -> f64 {
    let before = sched_getaffinity(Pid::from_raw(0));
    let times = thread::scope(|scope| {
        let other = scope.spawn(second);
        let times = first();
        let _ = other.join();
        times
    });
    if let Ok(set) = before {
        let _ = sched_setaffinity(Pid::from_raw(0), &set);
    }
    if times.is_empty() { f64::NAN } else { fast(times) }
}
