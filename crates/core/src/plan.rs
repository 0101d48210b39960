// SPDX-License-Identifier: Apache-2.0
//! The plan: which spans to lift, in which ways, in which steps; and for everything else
//! the reason. A pure function of a [`Snapshot`] and a [`Policy`].
//!
//! ```text
//!   text of an object, huge pages of 2 MB:
//!        |··|================|================|=====···|
//!        edge          inner span                    edge
//!        (skip)                                      (skip)
//! ```

use crate::addr::{Addr, PageSize, Range};
use crate::maps::{Mapping, Prot};
use crate::policy::{Backing, Policy};
use crate::skip::{Reason, Skip};
use crate::snapshot::{Extent, Machine, Part, Pool, Snapshot, overlapping};

/// What to do, and what not.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// Ranges to lift.
    pub spans: Vec<Span>,
    /// Ranges to leave, with reasons.
    pub skips: Vec<Skip>,
}

/// A huge-page-aligned range chosen for lifting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Span {
    /// Index into [`Snapshot::objects`].
    pub object: usize,
    /// Which part of it.
    pub part: Part,
    /// Where.
    pub range: Range,
    /// Protection, kept.
    pub prot: Prot,
    /// Ways to back it, best first.
    pub attempts: Vec<Attempt>,
}

/// One way to back a span.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attempt {
    /// Where the huge pages come from.
    pub backing: Backing,
    /// Their size.
    pub page: PageSize,
    /// How to get there.
    pub steps: Vec<Step>,
}

/// One step of an attempt. All before the last work on a scratch range, away from the
/// program; the last puts the result in place in one system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Map fresh memory, readable and writable; from the pool if `hugetlb` names a page size.
    Map {
        /// Scratch.
        range: Range,
        /// `None` for memory that THP may back.
        hugetlb: Option<PageSize>,
    },
    /// Ask for transparent huge pages.
    Advise {
        /// Scratch.
        range: Range,
    },
    /// Fault everything in, so that a lack shows as an error.
    Populate {
        /// Scratch.
        range: Range,
        /// Size of its pages.
        page: PageSize,
    },
    /// Check that huge pages came.
    Verify {
        /// Scratch.
        range: Range,
    },
    /// Make a file on hugetlb pages.
    CreateFile {
        /// Length.
        bytes: u64,
        /// Size of its pages.
        page: PageSize,
    },
    /// Map that file shared, readable and writable.
    MapFile {
        /// Scratch.
        range: Range,
    },
    /// Copy the program's bytes.
    Copy {
        /// The span.
        from: Range,
        /// Scratch.
        to: Addr,
    },
    /// Give the copy the span's protection.
    Protect {
        /// Scratch.
        range: Range,
        /// The span's protection.
        prot: Prot,
    },
    /// Move the copy over the span.
    Move {
        /// Scratch.
        from: Range,
        /// The span's start.
        to: Addr,
    },
    /// Map the file over the span (kernels that cannot move hugetlb mappings).
    Replace {
        /// The span.
        range: Range,
        /// Its protection.
        prot: Prot,
        /// Where the file is mapped writable.
        scratch: Addr,
    },
}

/// Plans the lift of `snapshot` as `policy` asks.
pub fn plan(snapshot: &Snapshot, policy: &Policy) -> Plan {
    let mut planner = Planner {
        snapshot,
        policy,
        pools: snapshot.machine.pools.clone(),
        memory_left: snapshot.machine.memory_left,
        plan: Plan::default(),
    };
    for extent in joined(snapshot.extents()) {
        planner.consider(extent);
    }
    planner.plan
}

/// Extents of one object and part that follow on each other become one.
fn joined(extents: Vec<Extent>) -> Vec<Extent> {
    let mut out: Vec<Extent> = Vec::new();
    for extent in extents {
        match out.last_mut() {
            Some(last)
                if (last.object, last.part, last.prot) == (extent.object, extent.part, extent.prot)
                    && last.range.end == extent.range.start =>
            {
                last.range.end = extent.range.end;
                last.file_backed &= extent.file_backed;
            }
            _ => out.push(extent),
        }
    }
    out
}

/// The bytes of `range` that whole pages of `page` cover.
pub fn liftable_bytes(range: Range, page: PageSize) -> u64 {
    range.inner(page).map_or(0, Range::len)
}

/// The page size that a backing uses when the user names none.
pub fn usual_page(machine: &Machine, backing: Backing) -> Option<PageSize> {
    match backing {
        Backing::Hugetlb => {
            let offered = || machine.pools.iter().map(|p| p.page);
            // The size that one PMD entry maps costs least; else the smallest offered.
            machine.thp_page.filter(|t| offered().any(|p| p == *t)).or_else(|| offered().min())
        }
        Backing::Thp | Backing::Pagecache | Backing::Shared => machine.thp_page,
    }
}

/// A way that is open to a span, before its steps are known.
#[derive(Clone, Copy)]
struct Way {
    backing: Backing,
    page: PageSize,
}

struct Planner<'a> {
    snapshot: &'a Snapshot,
    policy: &'a Policy,
    /// What is left of each pool after the spans planned so far.
    pools: Vec<Pool>,
    memory_left: u64,
    plan: Plan,
}

impl Planner<'_> {
    fn skip(&mut self, extent: &Extent, range: Range, reason: Reason) {
        if !range.is_empty() {
            self.plan.skips.push(Skip { object: extent.object, part: extent.part, range, reason });
        }
    }

    fn consider(&mut self, extent: Extent) {
        if let Some(reason) = self.refusal(&extent) {
            return self.skip(&extent, extent.range, reason);
        }
        // Each backing has its own page size, hence its own inner span: the first that
        // leaves a span decides what is lifted, the others are what it falls back to.
        let (mut ways, refusals) = self.ways();
        let Some(page) = ways.first().map(|w| w.page) else {
            let reason = refusals.into_iter().next().unwrap_or(Reason::NotLifted);
            return self.refuse_inner(&extent, reason);
        };
        ways.retain(|w| w.page == page);
        let Some(inner) = extent.range.inner(page) else {
            let reason = if extent.range.len() < page.bytes() {
                Reason::TooSmall(page)
            } else {
                self.edge(extent.range, extent.prot, page)
            };
            return self.skip(&extent, extent.range, reason);
        };
        for edge in extent.range.minus(inner) {
            let reason = self.edge(edge, extent.prot, page);
            self.skip(&extent, edge, reason);
        }
        self.provide(&extent, inner, &ways, refusals);
    }

    /// No backing works: the reason holds for what could have been lifted, the edges keep
    /// their own.
    fn refuse_inner(&mut self, extent: &Extent, reason: Reason) {
        let page = self.snapshot.machine.thp_page.unwrap_or(PageSize::MB2);
        match extent.range.inner(page) {
            Some(inner) => {
                self.skip(extent, inner, reason);
                for edge in extent.range.minus(inner) {
                    let reason = self.edge(edge, extent.prot, page);
                    self.skip(extent, edge, reason);
                }
            }
            None => self.skip(extent, extent.range, Reason::TooSmall(page)),
        }
    }

    /// Why this extent is not to be touched at all.
    fn refusal(&self, extent: &Extent) -> Option<Reason> {
        let object = &self.snapshot.objects[extent.object];
        if !self.policy.objects.takes(object) {
            return Some(Reason::Excluded);
        }
        if !self.policy.parts.contains(&extent.part) {
            return Some(Reason::PartNotAsked(extent.part));
        }
        if extent.prot.is_wx() {
            return Some(Reason::WritableCode);
        }
        match extent.part {
            Part::Text if object.textrel => Some(Reason::TextRelocations),
            Part::Text if extent.prot.exec && extent.prot.read => None,
            Part::Rodata if extent.prot == Prot::R => None,
            _ => Some(Reason::Protection),
        }
    }

    /// The ways that are open on this machine, best first, and why the others are not.
    fn ways(&self) -> (Vec<Way>, Vec<Reason>) {
        let machine = &self.snapshot.machine;
        let (mut ways, mut refusals) = (Vec::new(), Vec::new());
        for &backing in &self.policy.backings {
            let usual = usual_page(machine, backing);
            let page = self.policy.page.or(usual);
            match (backing, page) {
                (Backing::Hugetlb, None) => refusals.push(Reason::NoPool(PageSize::MB2)),
                (Backing::Hugetlb, Some(page)) if !machine.pools.iter().any(|p| p.page == page) => {
                    refusals.push(Reason::NoPool(page));
                }
                (Backing::Thp, None) => refusals.push(Reason::NoThp),
                (Backing::Thp, Some(page)) if usual.is_none() => {
                    refusals.push(Reason::NoSuchPage(backing, page))
                }
                (Backing::Thp, Some(page)) if usual != Some(page) => {
                    refusals.push(Reason::NoSuchPage(backing, page));
                }
                (Backing::Thp, Some(page)) => match machine.thp_off {
                    Some(off) => refusals.push(Reason::ThpOff(off)),
                    None => ways.push(Way { backing, page }),
                },
                (Backing::Hugetlb, Some(page)) => ways.push(Way { backing, page }),
                // Found on running processes and reported; not made by a plan.
                (Backing::Pagecache | Backing::Shared, _) => {}
            }
        }
        (ways, refusals)
    }

    /// Why the partial huge pages at the ends stay: who else lives in them?
    fn edge(&self, edge: Range, prot: Prot, page: PageSize) -> Reason {
        let outer =
            Range { start: edge.start.align_down(page), end: edge.end.align_up(page).unwrap_or(edge.end) };
        let alien = |m: &Mapping| m.prot != prot;
        if overlapping(&self.snapshot.mappings, outer).iter().any(alien) {
            Reason::Neighbour(page)
        } else {
            Reason::NotAligned(page)
        }
    }

    /// Spends pool pages and memory on `span`; splits it where the pool ends in the middle.
    fn provide(&mut self, extent: &Extent, span: Range, ways: &[Way], refusals: Vec<Reason>) {
        let mut ways = ways.to_vec();
        let mut refusals = refusals;
        if ways.first().is_some_and(|w| w.backing == Backing::Hugetlb) {
            let page = ways[0].page;
            let need = span.len() / page.bytes();
            if let Some(pool) = self.pools.iter_mut().find(|p| p.page == page) {
                let free = pool.available();
                let taken = free.min(need);
                take(pool, taken);
                let short = Reason::PoolShort { page, free, need, total: pool.total };
                if taken < need {
                    let cut = Addr(span.start.0 + taken * page.bytes());
                    let rest = Range { start: cut, end: span.end };
                    let later: Vec<Way> =
                        ways.iter().copied().filter(|w| w.backing != Backing::Hugetlb).collect();
                    if taken > 0 {
                        self.emit(extent, Range { start: span.start, end: cut }, &ways);
                    }
                    refusals.insert(0, short);
                    return self.provide(extent, rest, &later, refusals);
                }
            }
        } else if ways.is_empty() {
            let reason = refusals.into_iter().next().unwrap_or(Reason::NotLifted);
            return self.skip(extent, span, reason);
        } else {
            let need = span.len();
            if need > self.memory_left {
                let left = self.memory_left;
                return self.skip(extent, span, Reason::MemoryLimit { left, need });
            }
            self.memory_left -= need;
        }
        ways.truncate(4);
        self.emit(extent, span, &ways);
    }

    fn emit(&mut self, extent: &Extent, range: Range, ways: &[Way]) {
        let mut attempts = Vec::new();
        for way in ways {
            let Some(scratch) = scratch_for(self.snapshot, range.len(), way.page) else { continue };
            attempts.push(Attempt {
                backing: way.backing,
                page: way.page,
                steps: steps(&self.snapshot.machine, *way, range, extent.prot, scratch),
            });
        }
        let span = Span { object: extent.object, part: extent.part, range, prot: extent.prot, attempts };
        self.plan.spans.push(span);
    }
}

/// Takes `pages` pages out of what [`Pool::available`] counts: free ones first.
fn take(pool: &mut Pool, pages: u64) {
    let from_free = pages.min(pool.free.saturating_sub(pool.reserved));
    pool.reserved += from_free;
    pool.surplus += pages - from_free;
}

fn steps(machine: &Machine, way: Way, span: Range, prot: Prot, scratch: Range) -> Vec<Step> {
    let page = way.page;
    let copy = Step::Copy { from: span, to: scratch.start };
    let protect = Step::Protect { range: scratch, prot };
    let place = Step::Move { from: scratch, to: span.start };
    match way.backing {
        Backing::Hugetlb if machine.moves_hugetlb => vec![
            Step::Map { range: scratch, hugetlb: Some(page) },
            Step::Populate { range: scratch, page },
            copy,
            protect,
            place,
        ],
        Backing::Hugetlb => vec![
            Step::CreateFile { bytes: span.len(), page },
            Step::MapFile { range: scratch },
            Step::Populate { range: scratch, page },
            copy,
            Step::Replace { range: span, prot, scratch: scratch.start },
        ],
        Backing::Thp | Backing::Pagecache | Backing::Shared => vec![
            Step::Map { range: scratch, hugetlb: None },
            Step::Advise { range: scratch },
            Step::Populate { range: scratch, page },
            Step::Verify { range: scratch },
            copy,
            protect,
            place,
        ],
    }
}

/// Free address space for `bytes`, aligned to `page`: the middle of the widest gap, far
/// from where the heap, the stack and the kernel's own choice of address grow to.
fn scratch_for(snapshot: &Snapshot, bytes: u64, page: PageSize) -> Option<Range> {
    // Nothing below the first mapping: vm.mmap_min_addr is there.
    let gaps = snapshot.mappings.windows(2).filter_map(|w| Range::new(w[0].range.end, w[1].range.start));
    let widest = gaps.filter(|g| g.end.0 < 1 << 63).max_by_key(|g| g.len())?;
    let middle = Addr(widest.start.0 + (widest.len() / 2).saturating_sub(bytes / 2)).align_down(page);
    let scratch = Range::sized(middle, bytes)?;
    widest.covers(scratch).then_some(scratch)
}
