// SPDX-License-Identifier: Apache-2.0
//! (b) Epoch-based reclamation.
//!
//! *Algorithm.* There is one global epoch. Who enters notes the epoch in a word of its own; who exits
//! clears the word. Who waits moves the epoch on and then looks at every task's word until it is clear
//! or has a later epoch. Nobody but the waiter looks at the words of others, so that entering and
//! exiting touch one cache line that nobody else wants, and a global one that only waits change. A wait
//! that has seen an epoch through says so; others that need no more go home.
//!
//! *Memory ordering.* That the waiter sees the word of everybody who might still find what was unlinked
//! is the old problem of a store and then a load in both threads (Dekker's): the task writes its word and
//! reads the data structure, the waiter writes the data structure and reads the word. Both have a
//! sequentially consistent fence in between. Fences have one order, so:
//!
//! - the task's comes first: the waiter sees the task inside, and waits;
//! - the waiter's comes first: the task sees all that the waiter did before.
//!
//! On x86-64 the task's store and fence are one exchange ([`crate::sync::publish`]). A task whose word
//! has a later epoch has read that (acquire) from the waiter's change (release) or one after it, and sees
//! the same. Both stores to the word have release and the waiter reads them with acquire: whatever the
//! task did inside is done.
//!
//! *Stamps.* A stamp is the global epoch as the task reads it once it is inside. It is not the epoch in
//! the task's word. That one may be stale: between the read of the global epoch E and the write of the
//! word, a waiter can see E through, for it finds the word clear. A wait for the stamp E would then return
//! at once, while the task is inside. The epoch S that the task reads after its fence cannot have been
//! seen through without it. A waiter that sees S through has changed the epoch to more than S, then passed
//! its fence, then read the words. If its fence came before the task's, the task would have read more than
//! S. So the task's fence came first, the waiter sees the word, whose epoch is at most S, and waits. The
//! same holds for each task that had entered before the stamp was made, since its fence came before the
//! read of S. A waiter that finds S seen through relies on one that did this.
//!
//! A task that enters after the stamp was made, and before the wait, may have S in its word as well, and
//! is then waited for, too. The contract permits that.
//!
//! *What it costs.* Exiting is a plain store, so it cannot know of a waiter, and waiters poll.
//!
//! *Sources.* K. Fraser, "Practical lock-freedom", 2004, 5.2.3. M. Desnoyers and others, "User-level
//! implementations of read-copy update", 2012, for the waiter that looks by itself instead of letting
//! two epochs pass.

use crate::contract::{Contract, Padded, Stamp};
use crate::sync::{AtomicU64, Backoff, Ordering, fence, publish};

/// In a task's word: not inside. Epochs begin at 1.
const OUTSIDE: u64 = 0;

/// Epoch-based reclamation.
#[derive(Debug)]
pub struct Epochs {
    pub(crate) epoch: Padded<AtomicU64>,
    /// Nobody is inside any more who entered in this epoch or before.
    seen_through: Padded<AtomicU64>,
    /// Of each task the epoch in which it entered.
    tasks: Vec<Padded<AtomicU64>>,
}

impl Epochs {
    fn word(&self, task: usize) -> &AtomicU64 {
        &self.tasks[task].0
    }

    pub(crate) fn is_seen_through(&self, epoch: u64) -> bool {
        self.seen_through.0.load(Ordering::Acquire) >= epoch
    }

    /// Makes the task inside with `epoch` in its word, which may be stale by now.
    #[inline]
    pub(crate) fn enter_in(&self, task: usize, epoch: u64) {
        publish(self.word(task), epoch);
    }

    /// Waits for all that entered in this epoch or before; the global one is later.
    fn see_through(&self, epoch: u64) {
        fence(Ordering::SeqCst);
        for Padded(word) in &self.tasks {
            let mut backoff = Backoff::default();
            while (OUTSIDE + 1..=epoch).contains(&word.load(Ordering::Acquire)) {
                if self.is_seen_through(epoch) {
                    return;
                }
                backoff.wait();
            }
        }
        self.seen_through.0.fetch_max(epoch, Ordering::AcqRel);
    }
}

impl Contract for Epochs {
    const NAME: &'static str = "epochs";

    fn new(tasks: usize) -> Epochs {
        Epochs {
            epoch: Padded(AtomicU64::new(1)),
            seen_through: Padded(AtomicU64::new(0)),
            tasks: (0..tasks).map(|_| Padded(AtomicU64::new(OUTSIDE))).collect(),
        }
    }

    #[inline]
    fn enter(&self, task: usize) {
        self.enter_in(task, self.epoch.0.load(Ordering::Acquire));
    }

    #[inline]
    fn exit(&self, task: usize) {
        self.word(task).store(OUTSIDE, Ordering::Release);
    }

    #[inline]
    fn stamp(&self, _task: usize) -> Stamp {
        // Not the task's word: see "Stamps" above.
        Stamp(self.epoch.0.load(Ordering::Acquire))
    }

    fn wait(&self) {
        self.see_through(self.epoch.0.fetch_add(1, Ordering::AcqRel));
    }

    fn wait_for(&self, Stamp(epoch): Stamp) {
        if self.is_seen_through(epoch) {
            return;
        }
        // Who enters from now on is not waited for.
        self.epoch.0.fetch_max(epoch + 1, Ordering::AcqRel);
        self.see_through(epoch);
    }
}
