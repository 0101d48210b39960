// SPDX-License-Identifier: Apache-2.0
//! The generation list of [`crate::Locked`], without the lock.
//!
//! *Algorithm.* The list is linked from the node of the domain through the oldest task to the youngest. A
//! node is one word: its generation, a link to its younger neighbour, and a mark that forbids others to change
//! it. Every change of the list is one compare-and-exchange of the word of the *older* neighbour.
//!
//! - *Enter*: find the youngest node. Exchange its word for one that links to the task's own node; its
//!   own generation is then the next one. The own word is marked until the generation is stored in it, so no
//!   other task can link or donate to it before.
//! - *Exit*: find the older neighbour. Mark the own word, so that it cannot change. Exchange the word of the
//!   neighbour for the own generation and the own link: this one step takes the node out of the list and
//!   donates its generation. If it fails, remove the mark and try again.
//! - *Wait*: find the youngest generation. Sleep until the node of the domain has that or a later one.
//!
//! A node with an unmarked word is in the list. A task that reads a marked word starts again at the domain.
//! Generations only grow, and no task enters twice with the same one, so a compare-and-exchange cannot take
//! a later state for an earlier one.
//!
//! *Memory ordering.* A word is changed only by exchanges with acquire and release, or by its owner, which has
//! read it with acquire. Each exit passes on what the task has done, and what other exits have passed
//! to it, to the next node. The last node is that of the domain. The waiter reads it with acquire. Before a wait
//! takes the youngest generation, it exchanges the word of that node for the same word. A task that enters
//! afterwards reads this exchange, or one ordered after it, and sees all that the waiter did before. There is
//! no fence. A waiter that is about to sleep sets a flag in the word of the domain. That is the word whose
//! exchange has to wake it, so no exit can miss the flag.
//!
//! *Limits.* Other tasks wait for the owner of a node between its exchange and its next store (entering), or
//! between mark and exchange (exiting). FreeBSD forbids preemption there; a program cannot. If the owner loses
//! the CPU just then, the others soon yield theirs ([`crate::sync::Backoff`]). An exit walks from the oldest
//! node, so it takes longer the more tasks are inside.
//!
//! *Source.* FreeBSD's commit r347695 (review D19630, Konstantin Belousov, 2019). It has a generation and a
//! pointer where this list has a word, and exchanges them by CMPXCHG16B.

use crate::contract::{Contract, MAX_TASKS, Padded, Stamp};
use crate::sync::{AtomicU64, Backoff, Condvar, Mutex, Ordering, PoisonError};

/// The number of the node of the domain. Those of the tasks follow. As a link this number means "none",
/// since no node links to the domain.
pub(crate) const DOMAIN: usize = 0;

const LINK: u64 = 0xfff;
const MARK: u64 = 1 << 12;
/// Flag in the word of the domain: there are sleepers.
const SLEEPERS: u64 = 1 << 13;
pub(crate) const GENERATION_SHIFT: u32 = 14;
const _: () = assert!(MAX_TASKS == LINK as usize);

/// The word of a node: link, mark, flag and generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Word(pub(crate) u64);

impl Word {
    pub(crate) fn link(self) -> usize {
        (self.0 & LINK) as usize
    }

    fn is_marked(self) -> bool {
        self.0 & MARK != 0
    }

    fn has_sleepers(self) -> bool {
        self.0 & SLEEPERS != 0
    }

    pub(crate) fn linked_to(self, node: usize) -> Word {
        Word(self.0 & !LINK | node as u64)
    }

    /// Returns the word of a node that is appended behind this one: the next generation, without link, mark
    /// and flag.
    pub(crate) fn next(self) -> Word {
        Word((self.0 >> GENERATION_SHIFT).wrapping_add(1) << GENERATION_SHIFT)
    }

    pub(crate) fn stamp(self) -> Stamp {
        Stamp(self.0 >> GENERATION_SHIFT)
    }

    /// Whether its generation is this one or a later one. Generations wrap around after 2^50, so one that is
    /// less than half of all generations ahead counts as later. (2^49 generations are two months at a hundred
    /// million per second.)
    pub(crate) fn has_reached(self, Stamp(generation): Stamp) -> bool {
        let ahead = (self.0 >> GENERATION_SHIFT).wrapping_sub(generation) << GENERATION_SHIFT;
        ahead.cast_signed() >= 0
    }
}

/// The lock-free list with generation donation.
#[derive(Debug)]
pub struct Donated {
    nodes: Vec<Padded<AtomicU64>>,
    sleep: Mutex<()>,
    /// Notified when the generation of the domain has grown.
    grown: Condvar,
}

impl Donated {
    pub(crate) fn word(&self, node: usize) -> &AtomicU64 {
        &self.nodes[node].0
    }

    pub(crate) fn load(&self, node: usize) -> Word {
        Word(self.word(node).load(Ordering::Acquire))
    }

    /// Exchanges the word of a node. Returns whether it was `from` and is `to` now.
    fn exchange(&self, node: usize, from: Word, to: Word) -> bool {
        self.word(node).compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Finds the node that links to `target`, and its word. Returns `None` if a word on the way is marked, or
    /// a node has moved meanwhile: the caller must try again.
    #[inline]
    fn find(&self, target: usize) -> Option<(usize, Word)> {
        let mut node = DOMAIN;
        loop {
            let word = self.load(node);
            if word.is_marked() {
                return None;
            }
            match word.link() {
                link if link == target => return Some((node, word)),
                DOMAIN => return None,
                link => node = link,
            }
        }
    }

    /// Finds the youngest node: the one without a link.
    #[inline]
    pub(crate) fn youngest(&self) -> Option<(usize, Word)> {
        self.find(DOMAIN)
    }

    fn wake(&self) {
        // A waiter that has set the flag holds this lock until it sleeps.
        drop(self.sleep.lock().unwrap_or_else(PoisonError::into_inner));
        self.grown.notify_all();
    }
}

impl Contract for Donated {
    const NAME: &'static str = "lock-free list";

    fn new(tasks: usize) -> Donated {
        let node = |number| Padded(AtomicU64::new(if number == DOMAIN { 0 } else { MARK }));
        Donated { nodes: (0..=tasks).map(node).collect(), sleep: Mutex::new(()), grown: Condvar::new() }
    }

    fn enter(&self, task: usize) {
        let own = task + 1;
        let mut backoff = Backoff::default();
        loop {
            if let Some((node, word)) = self.youngest()
                && self.exchange(node, word, word.linked_to(own))
            {
                self.word(own).store(word.next().0, Ordering::Release);
                return;
            }
            backoff.wait();
        }
    }

    fn exit(&self, task: usize) {
        let own = task + 1;
        let mut backoff = Backoff::default();
        loop {
            if let Some((older, word)) = self.find(own) {
                let mine = Word(self.word(own).fetch_or(MARK, Ordering::AcqRel));
                if self.exchange(older, word, mine) {
                    if word.has_sleepers() {
                        self.wake();
                    }
                    return;
                }
                self.word(own).store(mine.0, Ordering::Release);
            }
            backoff.wait();
        }
    }

    fn stamp(&self, task: usize) -> Stamp {
        self.load(task + 1).stamp()
    }

    fn wait(&self) {
        let mut backoff = Backoff::default();
        let stamp = loop {
            if let Some((node, word)) = self.youngest()
                && self.exchange(node, word, word)
            {
                break word.stamp();
            }
            backoff.wait();
        };
        self.wait_for(stamp);
    }

    fn wait_for(&self, stamp: Stamp) {
        if self.load(DOMAIN).has_reached(stamp) {
            return;
        }
        let mut asleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let word = self.load(DOMAIN);
            if word.has_reached(stamp) {
                return;
            }
            if word.has_sleepers() || self.exchange(DOMAIN, word, Word(word.0 | SLEEPERS)) {
                asleep = self.grown.wait(asleep).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}
