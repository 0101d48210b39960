// SPDX-License-Identifier: Apache-2.0
//! (c) The generation list of [`crate::Locked`], without the lock.
//!
//! *Algorithm.* The list is linked from the domain's node over the oldest task to the youngest. A node is
//! one word: its generation, its younger neighbour, and a mark that says "hands off". All changes of the
//! list are one compare-and-exchange of the *older* neighbour's word.
//!
//! - *Enter*: find the youngest node; exchange its word for one that links to us, which makes our
//!   generation the next one. Our own word is marked until the generation is in it: nobody else can
//!   link to us, or give us anything, before.
//! - *Exit*: find the older neighbour. Mark our own word, so that it stays what it is. Exchange the
//!   neighbour's for our generation and our link: one step takes us out of the list and donates our
//!   generation. If it fails, unmark and try again.
//! - *Wait*: find the youngest generation; sleep until the domain's node has it or a later one.
//!
//! A word that is not marked is one of a node in the list, and who reads a marked one goes back to the
//! start. Generations only grow, and no task enters twice with the same one: an exchange that expects a
//! word cannot take a later state for an earlier one.
//!
//! *Memory ordering.* Words change by exchanges with acquire and release only, or by their owner, who
//! has read them so. Each exit hands on what it has done, and what it was handed, to the node that it
//! donates to, up to the domain's; the waiter's acquire load reads that. And before a wait takes the
//! youngest generation it exchanges that node's word for itself: whoever enters afterwards reads the
//! waiter's exchange (or one ordered after it), and sees all that the waiter did before. There is no
//! fence. Who falls asleep says so by a flag in the domain's word, the very word by whose exchange he is
//! to be woken, so that no exit can miss it.
//!
//! *What it is not.* Between an exchange and its owner's next store (entering), or between mark and
//! exchange (exiting), others wait for the owner. FreeBSD forbids preemption there. A program cannot:
//! if the owner loses the CPU just then, the others soon leave it theirs ([`crate::sync::Backoff`]).
//! And exits walk from the oldest: the more are inside, the longer.
//!
//! *Source.* FreeBSD's commit r347695 (review D19630, Konstantin Belousov, 2019): what is a word here
//! is there a generation and a pointer, exchanged by CMPXCHG16B.

use crate::contract::{Contract, MOST_TASKS, Padded, Stamp};
use crate::sync::{AtomicU64, Backoff, Condvar, Mutex, Ordering, PoisonError};

/// The number of the domain's node; those of tasks follow. As a link: none, since nobody links to it.
pub(crate) const DOMAIN: usize = 0;

const LINK: u64 = 0xfff;
const MARK: u64 = 1 << 12;
/// In the domain's word: somebody sleeps.
const SLEEPERS: u64 = 1 << 13;
pub(crate) const GENERATION_SHIFT: u32 = 14;
const _: () = assert!(MOST_TASKS == LINK as usize);

/// A node's word.
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

    /// As it is put into a node that was linked to nobody by its neighbour: with the next generation,
    /// without link and marks.
    pub(crate) fn next(self) -> Word {
        Word((self.0 >> GENERATION_SHIFT).wrapping_add(1) << GENERATION_SHIFT)
    }

    pub(crate) fn stamp(self) -> Stamp {
        Stamp(self.0 >> GENERATION_SHIFT)
    }

    /// Whether its generation is this one or a later one. They start again at 0 after 2^50, so that a
    /// later one is one that is less than half of all ahead (two months at a hundred million a second).
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
    /// Told when the domain's generation has grown.
    grown: Condvar,
}

impl Donated {
    pub(crate) fn word(&self, node: usize) -> &AtomicU64 {
        &self.nodes[node].0
    }

    pub(crate) fn load(&self, node: usize) -> Word {
        Word(self.word(node).load(Ordering::Acquire))
    }

    /// Whether the node had the word `from` and has `to` now.
    fn exchange(&self, node: usize, from: Word, to: Word) -> bool {
        self.word(node).compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The node that links to `target`, and its word. `None` if a node on the way is marked, or a node
    /// went elsewhere while we looked at it: to be tried again.
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

    /// The youngest node: the one without link.
    #[inline]
    pub(crate) fn youngest(&self) -> Option<(usize, Word)> {
        self.find(DOMAIN)
    }

    fn wake(&self) {
        // Whoever has set the flag holds this lock until he sleeps.
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
