// SPDX-License-Identifier: Apache-2.0
//! Epoch-based reclamation.
//!
//! *Algorithm.* There is one global epoch. A task that enters copies the epoch to a word of its own; a task
//! that exits clears the word. A waiter advances the epoch, then reads the word of each task until it is clear
//! or holds a later epoch. Only waiters read the words of other tasks. So entering and exiting touch one cache
//! line that no other task uses, and a global line that only waits change. A wait that is done with an epoch
//! publishes that, so that other waits for this epoch or an earlier one can return at once.
//!
//! *Memory ordering.* The waiter must see the word of every task that might still find what was unlinked.
//! This is Dekker's problem, a store and then a load in both threads: the task writes its word and reads the
//! data structure; the waiter writes the data structure and reads the word. Both have a sequentially
//! consistent fence in between. All such fences have one order:
//!
//! - if the fence of the task comes first, the waiter sees the task inside, and waits;
//! - if the fence of the waiter comes first, the task sees all that the waiter did before.
//!
//! On x86-64 the store and the fence of the task are one exchange ([`crate::sync::publish`]). A task whose
//! word holds a later epoch has read it (acquire) from the change of the waiter (release) or of a later one,
//! and so sees all that the waiter did before. Both stores to the word are releases and the waiter reads them
//! with acquire, so it sees all that the task did inside.
//!
//! *Stamps.* A stamp is the global epoch as the task reads it while it is inside, not the epoch in the word
//! of the task. That epoch may be stale: between the read of the global epoch E and the write of the word, a
//! waiter can complete E, since it finds the word clear. A wait for the stamp E would then return at once,
//! while the task is inside. The epoch S that the task reads after its fence cannot be completed without the
//! task. A waiter that completes S has advanced the epoch beyond S, then passed its fence, then read the
//! words. If its fence came before that of the task, the task would have read an epoch beyond S. So the fence
//! of the task came first, and the waiter sees the word, whose epoch is at most S, and waits. The same holds
//! for each task that had entered before the stamp was made, since its fence came before the read of S. A
//! waiter that finds S completed relies on the waiter that completed it.
//!
//! A task that enters after the stamp was made and before the wait may also have S in its word. It is then
//! waited for too, which the contract permits.
//!
//! *Cost.* Exiting is a plain store, which cannot wake a waiter. So waiters poll.
//!
//! *Sources.* K. Fraser, "Practical lock-freedom", 2004, 5.2.3. M. Desnoyers and others, "User-level
//! implementations of read-copy update", 2012, for the waiter that reads the words itself instead of waiting
//! for two epochs to pass.

use crate::contract::{Contract, Padded, Stamp};
use crate::sync::{AtomicU64, Backoff, Ordering, fence, publish};

/// The word of a task that is not inside. Epochs begin at 1.
const OUTSIDE: u64 = 0;

/// Epoch-based reclamation.
#[derive(Debug)]
pub struct Epochs {
    pub(crate) epoch: Padded<AtomicU64>,
    /// All tasks that entered in this epoch or an earlier one have exited.
    completed: Padded<AtomicU64>,
    /// The epoch in which each task entered.
    tasks: Vec<Padded<AtomicU64>>,
}

impl Epochs {
    fn word(&self, task: usize) -> &AtomicU64 {
        &self.tasks[task].0
    }

    pub(crate) fn is_completed(&self, epoch: u64) -> bool {
        self.completed.0.load(Ordering::Acquire) >= epoch
    }

    /// Makes the task enter with `epoch` in its word, which may be stale.
    #[inline]
    pub(crate) fn enter_in(&self, task: usize, epoch: u64) {
        publish(self.word(task), epoch);
    }

    /// Waits for all tasks that entered in this epoch or an earlier one. The global epoch must be later.
    fn complete(&self, epoch: u64) {
        fence(Ordering::SeqCst);
        for Padded(word) in &self.tasks {
            let mut backoff = Backoff::default();
            while (OUTSIDE + 1..=epoch).contains(&word.load(Ordering::Acquire)) {
                if self.is_completed(epoch) {
                    return;
                }
                backoff.wait();
            }
        }
        self.completed.0.fetch_max(epoch, Ordering::AcqRel);
    }
}

impl Contract for Epochs {
    const NAME: &'static str = "epochs";

    fn new(tasks: usize) -> Epochs {
        Epochs {
            epoch: Padded(AtomicU64::new(1)),
            completed: Padded(AtomicU64::new(0)),
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
        // The task's word would be wrong: see "Stamps" above.
        Stamp(self.epoch.0.load(Ordering::Acquire))
    }

    fn wait(&self) {
        self.complete(self.epoch.0.fetch_add(1, Ordering::AcqRel));
    }

    fn wait_for(&self, Stamp(epoch): Stamp) {
        if self.is_completed(epoch) {
            return;
        }
        // Tasks that enter from now on are not waited for.
        self.epoch.0.fetch_max(epoch + 1, Ordering::AcqRel);
        self.complete(epoch);
    }
}
