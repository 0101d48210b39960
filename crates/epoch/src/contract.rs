// SPDX-License-Identifier: Apache-2.0
//! The contract of all implementations, and the handles that enforce correct use of it.

use crate::sync::{Mutex, PoisonError};

/// The most tasks that a domain can have. [`crate::Donated`] keeps a link and a generation in one word, with
/// 12 bits for the link.
pub const MAX_TASKS: usize = 4095;

/// A moment at which a task was inside. Pages are marked with it. It is only valid in the domain that made
/// it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stamp(pub(crate) u64);

impl Stamp {
    /// Returns the stamp as a plain number, which the caller can store in an atomic.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Makes a stamp of the number that [`Stamp::to_bits`] returned.
    pub fn from_bits(bits: u64) -> Stamp {
        Stamp(bits)
    }
}

/// What each implementation does. Tasks are numbered from 0. Use it through [`Domain`], which makes sure that
/// one task at a time has a number, and that no task enters twice or exits without having entered.
///
/// *The promises*, each with its models under a model checker (tests/loom.rs):
///
/// | promise | models |
/// |---|---|
/// | When `wait` returns, each task that had entered before has exited. | `one_reader_freed_after_wait`, `two_readers_freed_after_wait`, `the_list_stays_intact` |
/// | When `wait_for` returns, the maker of the stamp has exited, and each task that had entered before it. | `maker_of_a_stamp_has_left_while_another_waits`, `…_enters_and_waits`, `freed_after_wait_for_a_mark` |
/// | Several threads may wait at the same time, and each wait ends. | `two_wait_at_once` |
/// | Tasks that are not waited for see what the thread did before its wait. After the wait the thread sees what the others did inside. | all: memory that is freed after a wait is a cell that admits no unordered access |
///
/// So a task either has exited before `wait` returns, or cannot find anything that was unlinked before
/// `wait`.
pub trait Contract: Send + Sync {
    /// Name that tables show.
    const NAME: &'static str;

    /// Makes room for `tasks` tasks, at most [`MAX_TASKS`].
    fn new(tasks: usize) -> Self;

    /// Makes the task enter.
    fn enter(&self, task: usize);

    /// Makes the task exit.
    fn exit(&self, task: usize);

    /// Returns a stamp for this moment. The task must be inside.
    fn stamp(&self, task: usize) -> Stamp;

    /// Waits until all tasks that had entered before the call have exited.
    fn wait(&self);

    /// Waits until the task that made the stamp, and all tasks that had entered before it, have exited. The
    /// caller must have received the stamp with release and acquire ordering.
    fn wait_for(&self, stamp: Stamp);
}

/// An implementation of the contract, with its tasks.
#[derive(Debug)]
pub struct Domain<C> {
    contract: C,
    free: Mutex<Vec<usize>>,
}

impl<C: Contract> Domain<C> {
    /// Makes a domain with room for `tasks` tasks at a time.
    ///
    /// # Panics
    /// `tasks` is greater than [`MAX_TASKS`].
    pub fn new(tasks: usize) -> Domain<C> {
        assert!(tasks <= MAX_TASKS, "a domain of {tasks} tasks; the most is {MAX_TASKS}");
        Domain { contract: C::new(tasks), free: Mutex::new((0..tasks).rev().collect()) }
    }

    /// Adds a task to the domain. Returns `None` if there is no room.
    pub fn join(&self) -> Option<Task<'_, C>> {
        let number = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some(Task { domain: self, number, inside: false })
    }

    /// Waits until all tasks that had entered before the call have exited. Never returns if a task of the
    /// calling thread is inside.
    pub fn wait(&self) {
        self.contract.wait();
    }

    /// Waits until the task that made the stamp, and all tasks that had entered before it, have exited. Never
    /// returns if one of them belongs to the calling thread.
    pub fn wait_for(&self, stamp: Stamp) {
        self.contract.wait_for(stamp);
    }
}

/// A task of a domain, which may enter.
#[derive(Debug)]
pub struct Task<'d, C: Contract> {
    domain: &'d Domain<C>,
    number: usize,
    inside: bool,
}

impl<C: Contract> Task<'_, C> {
    /// Enters. The task is inside until the returned guard is dropped.
    ///
    /// # Panics
    /// An earlier guard was forgotten ([`std::mem::forget`]), so the task is inside for ever.
    #[inline]
    pub fn enter(&mut self) -> Inside<'_, C> {
        assert!(!self.inside, "task {} enters while it is inside", self.number);
        self.domain.contract.enter(self.number);
        // Stored after `enter`, whose atomic operation would otherwise have to wait for this store.
        self.inside = true;
        Inside { contract: &self.domain.contract, number: self.number, inside: &mut self.inside }
    }
}

impl<C: Contract> Drop for Task<'_, C> {
    fn drop(&mut self) {
        // A task that is inside for ever keeps its number.
        if !self.inside {
            self.domain.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
        }
    }
}

/// The guard of a task that is inside. The task exits when it is dropped.
#[derive(Debug)]
#[must_use = "the task is inside only as long as this lives"]
pub struct Inside<'t, C: Contract> {
    contract: &'t C,
    number: usize,
    inside: &'t mut bool,
}

impl<C: Contract> Inside<'_, C> {
    /// Returns the stamp to mark a page with, after the task has dropped its references to the page.
    #[inline]
    pub fn stamp(&self) -> Stamp {
        self.contract.stamp(self.number)
    }
}

impl<C: Contract> Drop for Inside<'_, C> {
    #[inline]
    fn drop(&mut self) {
        self.contract.exit(self.number);
        *self.inside = false;
    }
}

/// Data on cache lines of its own, so that tasks do not write to the same line. It has two lines, as CPUs
/// fetch lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub struct Padded<T>(pub T);
