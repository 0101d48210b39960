// SPDX-License-Identifier: Apache-2.0
//! What is left of the pools, the memory and the address space while spans are planned.

use super::candidate::Candidate;
use super::outer::margin;
use super::span::Attempt;
use super::steps::{scratch_for, widest_gap};
use crate::addr::{PageSize, Range, without};
use crate::budget::{Budget, Cost};
use crate::by_address::ByAddress;
use crate::policy::{Backing, Policy};
use crate::skip::Reason;
use crate::snapshot::{Part, Pool, Snapshot, StoredCopy};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// What spans can still be backed with, after those planned so far.
pub(super) struct Supply<'a> {
    snapshot: &'a Snapshot,
    pools: Vec<Pool>,
    budget: Budget,
    /// The widest gap of the address space for pages of each size, as far as it was asked for.
    widest: RefCell<BTreeMap<PageSize, Option<Range>>>,
    /// See [`margin`].
    margin: u64,
    /// The copies that the store has, and how many bytes of other copies are before each.
    stored: ByAddress<(&'a StoredCopy, u64)>,
    /// The bytes of all these copies.
    stored_bytes: u64,
}

impl<'a> Supply<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, policy: &Policy) -> Supply<'a> {
        let mut stored_bytes = 0;
        let stored = snapshot.stored.copies.iter().map(|copy| {
            let before = stored_bytes;
            stored_bytes += copy.range.len();
            (copy.range, (copy, before))
        });
        let stored = stored.collect();
        Supply {
            snapshot,
            pools: snapshot.machine.pools.clone(),
            budget: Budget::new(&snapshot.machine, policy.spare),
            widest: RefCell::default(),
            margin: margin(snapshot, policy),
            stored,
            stored_bytes,
        }
    }

    /// Returns where a copy of `span` is prepared: of an entry of the store, or of memory.
    pub(super) fn scratch(&self, candidate: Candidate, span: Range) -> Option<Range> {
        match candidate.backing {
            Backing::Shared => self.scratch_for_stored(span, candidate.page),
            _ => self.scratch_for(span.len(), candidate.page),
        }
    }

    /// Cuts a piece where copies of the store begin and end, if the candidate is one of these.
    pub(super) fn cut(&self, candidate: Candidate, piece: Range) -> Vec<Range> {
        if candidate.backing != Backing::Shared {
            return vec![piece];
        }
        let held: Vec<Range> =
            self.stored.over(piece).filter_map(|(range, _)| range.intersect(piece)).collect();
        let mut pieces = without(vec![piece], held.iter().copied());
        pieces.extend(held);
        pieces.sort_unstable();
        pieces
    }

    /// Returns the copy that the store has of all of `span`.
    pub(super) fn copy_of(&self, span: Range) -> Option<StoredCopy> {
        self.stored_at(span)?.0.part(span)
    }

    fn stored_at(&self, span: Range) -> Option<(&'a StoredCopy, u64)> {
        let mut here = self.stored.over(span);
        here.find(|(range, _)| range.covers(span)).map(|(_, stored)| *stored)
    }

    fn scratch_for(&self, bytes: u64, page: PageSize) -> Option<Range> {
        let mut known = self.widest.borrow_mut();
        let widest = known.entry(page).or_insert_with(|| widest_gap(self.snapshot, page, self.margin));
        scratch_for((*widest)?, bytes, page)
    }

    /// Returns free address space for the store's copy of `span` that overlaps no other copy's: all copies
    /// are mapped before the first is moved.
    fn scratch_for_stored(&self, span: Range, page: PageSize) -> Option<Range> {
        let (copy, before) = self.stored_at(span)?;
        let whole = self.scratch_for(self.stored_bytes, page)?;
        // Two spans may share one copy.
        let inside = span.start.0 - copy.range.start.0;
        Range::sized(whole.start.checked_add(before + inside)?, span.len())
    }

    /// Spends pool pages or memory on `span`, which is of `part`. Returns how many of its pages can
    /// be backed, counted from its start, and what the others lack.
    pub(super) fn take(&mut self, candidate: Candidate, part: Part, span: Range) -> (u64, Option<Reason>) {
        let need = span.len() / candidate.page.bytes();
        // Lifting half a span with the last bytes of memory is not worth them: all or nothing.
        let all_or_nothing = |taken: Result<(), Reason>| match taken {
            Ok(()) => (need, None),
            Err(reason) => (0, Some(reason)),
        };
        if candidate.in_place {
            // It costs nothing now. Huge pages are charged when the program touches them.
            return all_or_nothing(self.budget.take(Cost { machine: 0, charged: span.len() }));
        }
        if self.scratch_for(span.len(), candidate.page).is_none() {
            return (0, Some(Reason::NoAddressSpace(span.len())));
        }
        match candidate.backing {
            Backing::Hugetlb => self.take_from_pool(candidate.page, part, need),
            Backing::Shared => match self.copy_of(span) {
                Some(_) if self.scratch(candidate, span).is_none() => {
                    (0, Some(Reason::NoAddressSpace(span.len())))
                }
                // It exists already, for all processes.
                Some(_) => (need, None),
                None => (0, self.snapshot.stored.lack(span).cloned().map(Reason::NotStored)),
            },
            Backing::Thp | Backing::Pagecache => all_or_nothing(self.budget.take(Cost::copy(span.len()))),
        }
    }

    /// Does what [`Supply::take`] does, for `need` pages of the pool of `page`.
    fn take_from_pool(&mut self, page: PageSize, part: Part, need: u64) -> (u64, Option<Reason>) {
        let Some(pool) = self.pools.iter_mut().find(|p| p.page == page) else {
            return (0, Some(Reason::NoPool(page)));
        };
        // What is written is not in the file that stands for it.
        if part.is_writable() && self.snapshot.machine.pool_page_is_lost_at_fork(page) {
            return (0, Some(Reason::LostAtFork(page)));
        }
        // A child of fork(2) gets a copy of what is written, which is charged to its group.
        let charged = part.is_writable() || self.budget.counts_pools();
        let charge = |pages: u64| if charged { pages * page.bytes() } else { 0 };
        if let Some(reason) = self.budget.lack(Cost { machine: 0, charged: charge(need) }) {
            return (0, Some(reason));
        }
        let (free, total) = (obtainable(pool, self.budget.machine()), pool.total);
        let taken = free.min(need);
        let cost = Cost { machine: reserve(pool, taken), charged: charge(taken) };
        match self.budget.take(cost) {
            Ok(()) => (taken, (taken < need).then_some(Reason::PoolShort { page, free, need, total })),
            Err(reason) => (0, Some(reason)),
        }
    }

    /// Spends what `attempt` needs to back all of `span`. Returns `false` if too little is left.
    pub(super) fn grant(&mut self, attempt: &Attempt, part: Part, span: Range) -> bool {
        let Attempt { backing, page, in_place, .. } = *attempt;
        let pool = self.pools.iter().find(|p| p.page == page && backing == Backing::Hugetlb);
        // A part of a span must not be spent.
        let is_short =
            pool.is_some_and(|pool| obtainable(pool, self.budget.machine()) < span.len() / page.bytes());
        !is_short && self.take(Candidate { backing, page, in_place }, part, span).1.is_none()
    }
}

/// Returns how many pages of `pool` a span could get. Surplus pages are made from `memory_left`.
fn obtainable(pool: &Pool, memory_left: u64) -> u64 {
    let surplus = pool.available() - pool.unpromised();
    pool.unpromised() + surplus.min(memory_left / pool.page.bytes())
}

/// Takes `pages` of the [`obtainable`] pages out of `pool`, free ones first. Returns the bytes of
/// memory that the surplus ones cost.
fn reserve(pool: &mut Pool, pages: u64) -> u64 {
    let from_free = pages.min(pool.unpromised());
    let made = pages - from_free;
    pool.reserved += from_free;
    pool.surplus += made;
    made * pool.page.bytes()
}
