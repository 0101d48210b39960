// SPDX-License-Identifier: Apache-2.0
//! The contract, and the handles that keep its users to it.

use crate::sync::{Mutex, PoisonError};

/// The most tasks that a domain can have: a list in one word needs room for the rest.
pub const MOST_TASKS: usize = 4095;

/// A moment at which a task was inside; what a page is marked with. It has no meaning in any other
/// domain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stamp(pub(crate) u64);

impl Stamp {
    /// As a plain number, to be kept in an atomic of the caller's.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// What [`Stamp::to_bits`] gave.
    pub fn from_bits(bits: u64) -> Stamp {
        Stamp(bits)
    }
}

/// What each implementation does. Tasks are numbered from 0; [`Domain`] sees to it that a number is
/// used by one task at a time, and that nobody enters twice or exits without having entered. It is the
/// way to use this.
///
/// *The promises*, each with its models under a model checker (tests/loom.rs):
///
/// | promise | models |
/// |---|---|
/// | When `wait` returns, each task that had entered before has left. | `one_reader_freed_after_wait`, `two_readers_freed_after_wait`, `the_list_stays_whole` |
/// | When `wait_for` returns, the maker of the stamp has left, and each task that had entered before. | `maker_of_a_stamp_has_left_while_another_waits`, `…_enters_and_waits`, `freed_after_wait_for_a_mark` |
/// | Several threads may wait at the same time, and each wait ends. | `two_wait_at_once` |
/// | What a thread did before its wait is seen by all tasks that it does not wait for. What the others did inside is seen by the thread afterwards. | all: what is freed after a wait is a cell that admits no unordered access |
///
/// So a task either has left before `wait` returns, or finds nothing any more that was unlinked before
/// `wait`.
pub trait Contract: Send + Sync {
    /// In tables.
    const NAME: &'static str;

    /// Room for that many tasks, [`MOST_TASKS`] at most.
    fn new(tasks: usize) -> Self;

    /// The task is inside from now on.
    fn enter(&self, task: usize);

    /// The task is not inside any more.
    fn exit(&self, task: usize);

    /// What stands for this moment; the task is inside.
    fn stamp(&self, task: usize) -> Stamp;

    /// Returns when nobody is inside any more who had entered before.
    fn wait(&self);

    /// Returns when the task that made the stamp is not inside any more, nor anybody who had entered
    /// before it. The stamp comes from its maker by release and acquire.
    fn wait_for(&self, stamp: Stamp);
}

/// An implementation of the contract with its tasks.
#[derive(Debug)]
pub struct Domain<C> {
    contract: C,
    free: Mutex<Vec<usize>>,
}

impl<C: Contract> Domain<C> {
    /// Room for that many tasks at a time.
    ///
    /// # Panics
    /// More than [`MOST_TASKS`].
    pub fn new(tasks: usize) -> Domain<C> {
        assert!(tasks <= MOST_TASKS, "a domain of {tasks} tasks; the most is {MOST_TASKS}");
        Domain { contract: C::new(tasks), free: Mutex::new((0..tasks).rev().collect()) }
    }

    /// A task of this domain; `None` if all are taken.
    pub fn join(&self) -> Option<Task<'_, C>> {
        let number = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some(Task { domain: self, number, inside: false })
    }

    /// Returns when nobody is inside any more who had entered before. Never returns if the calling
    /// thread is itself inside, by whatever task.
    pub fn wait(&self) {
        self.contract.wait();
    }

    /// Returns when the task that made the stamp has left, and everyone who had entered before it.
    /// Never returns if the calling thread is itself one of those.
    pub fn wait_for(&self, stamp: Stamp) {
        self.contract.wait_for(stamp);
    }
}

/// One who may enter.
#[derive(Debug)]
pub struct Task<'d, C: Contract> {
    domain: &'d Domain<C>,
    number: usize,
    inside: bool,
}

impl<C: Contract> Task<'_, C> {
    /// Inside until the value is dropped.
    ///
    /// # Panics
    /// An earlier one was forgotten ([`std::mem::forget`]), so that the task is inside for ever.
    #[inline]
    pub fn enter(&mut self) -> Inside<'_, C> {
        assert!(!self.inside, "task {} enters, and is inside", self.number);
        self.domain.contract.enter(self.number);
        // Behind it: an atomic operation waits for the stores before it.
        self.inside = true;
        Inside { contract: &self.domain.contract, number: self.number, inside: &mut self.inside }
    }
}

impl<C: Contract> Drop for Task<'_, C> {
    fn drop(&mut self) {
        // Who is inside for ever keeps its number.
        if !self.inside {
            self.domain.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
        }
    }
}

/// A task that is inside.
#[derive(Debug)]
#[must_use = "the task is inside only as long as this lives"]
pub struct Inside<'t, C: Contract> {
    contract: &'t C,
    number: usize,
    inside: &'t mut bool,
}

impl<C: Contract> Inside<'_, C> {
    /// What to mark a page with whose references the task has dropped.
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

/// What several tasks write to lies on cache lines of its own; two, as CPUs fetch them in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub struct Padded<T>(pub T);
