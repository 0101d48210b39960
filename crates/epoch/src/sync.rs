// SPDX-License-Identifier: Apache-2.0
//! The primitives that the algorithms use. The tests under the model checker (tests/loom.rs) compile the
//! algorithms a second time, with its own version of this module.

pub use std::sync::atomic::{AtomicU64, Ordering, fence};
pub use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use std::time::Duration;

/// Stores with release ordering. All later memory accesses of the caller, also loads, come after the store.
#[inline]
pub fn publish(word: &AtomicU64, value: u64) {
    if cfg!(all(target_arch = "x86_64", not(miri))) {
        // By the manuals of Intel and AMD, XCHG with memory is a full barrier, so no MFENCE is needed. The
        // compiler moves no later access before it.
        word.swap(value, Ordering::SeqCst);
    } else {
        word.store(value, Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

/// Waits for the next step of another task: first it spins, then it yields the CPU, then it sleeps.
#[derive(Debug, Default)]
pub struct Backoff {
    rounds: u32,
}

/// Rounds of spinning, each twice as long as the one before: together about a microsecond.
const SPINS: u32 = 7;

/// The number of rounds after which it sleeps.
const YIELDS: u32 = SPINS + 10;

/// The shortest sleep. The longest is 2^5 times this, a millisecond.
const NAP: Duration = Duration::from_micros(32);

impl Backoff {
    /// Waits one more round.
    pub fn wait(&mut self) {
        match self.rounds {
            spin @ 0..SPINS => (0..1 << spin).for_each(|_| std::hint::spin_loop()),
            SPINS..YIELDS => std::thread::yield_now(),
            nap => std::thread::sleep(NAP * (1 << (nap - YIELDS).min(5))),
        }
        self.rounds = self.rounds.saturating_add(1);
    }
}
