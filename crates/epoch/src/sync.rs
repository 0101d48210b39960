// SPDX-License-Identifier: Apache-2.0
//! What the algorithms are built on. The model checker's tests compile them a second time, over its own
//! kind of these (tests/loom.rs).

pub use std::sync::atomic::{AtomicU64, Ordering, fence};
pub use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use std::time::Duration;

/// Stores with release; everything that the caller does afterwards comes after, loads as well.
#[inline]
pub fn publish(word: &AtomicU64, value: u64) {
    if cfg!(all(target_arch = "x86_64", not(miri))) {
        // XCHG with memory is a full barrier, by the manuals of Intel and AMD; so no MFENCE is needed. The
        // compiler moves nothing up across it.
        word.swap(value, Ordering::SeqCst);
    } else {
        word.store(value, Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

/// Waiting for another task's next step: in place at first, then leaving it the CPU, then asleep.
#[derive(Debug, Default)]
pub struct Backoff {
    rounds: u32,
}

/// So many rounds are spent in place, each twice as long as the one before: about a microsecond.
const SPINS: u32 = 7;

/// After so many rounds it sleeps.
const YIELDS: u32 = SPINS + 10;

/// The longest sleep is a millisecond: 2^5 times this.
const NAP: Duration = Duration::from_micros(32);

impl Backoff {
    /// Once more.
    pub fn wait(&mut self) {
        match self.rounds {
            spin @ 0..SPINS => (0..1 << spin).for_each(|_| std::hint::spin_loop()),
            SPINS..YIELDS => std::thread::yield_now(),
            nap => std::thread::sleep(NAP * (1 << (nap - YIELDS).min(5))),
        }
        self.rounds = self.rounds.saturating_add(1);
    }
}
