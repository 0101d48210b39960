// SPDX-License-Identifier: Apache-2.0
//! Chooses where within a huge page an executable begins, so that most of it can be huge.
//!
//! ```text
//!   huge pages            |         |         |         |
//!   as the kernel put it       [====text=====]               no whole huge page
//!   the best base         [====text=====]                    one whole huge page
//! ```
//!
//! The kernel puts a position-independent executable at a random multiple of the base page. What
//! matters for coverage is only the bias modulo the huge page, the *residue*. The number of whole huge
//! pages in a part changes only where an end of the part meets the edge of a huge page. So it is
//! enough to try the residues that bring an end of a part to such an edge.
//!
//! The planner itself computes what each residue is worth, for a machine that lacks nothing: the best
//! base must not depend on what is free at the moment of a start.

use crate::addr::{Addr, PageSize, Range};
use crate::elf::Headers;
use crate::loading::{anonymous, mappings};
use crate::maps::{FileId, Prot};
use crate::plan::plan;
use crate::policy::{Backing, PageChoice, Policy, SpanChoice};
use crate::snapshot::{Machine, Object, Part, Pool, Snapshot};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Where an executable begins within a page of a certain size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Base {
    /// The bias modulo `page`.
    pub residue: u64,
    /// The size of the page.
    pub page: PageSize,
}

impl Base {
    /// Returns whether an executable that is loaded with `bias` has this base.
    pub fn is_of(&self, bias: u64) -> bool {
        bias & (self.page.bytes() - 1) == self.residue
    }
}

/// The page sizes of a machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// The base page.
    pub base: PageSize,
    /// The transparent huge page; `None` if the kernel has none.
    pub huge: Option<PageSize>,
    /// Sizes of transparent pages in between, largest first. Only [`PageChoice::Mixed`] uses them.
    pub folios: Vec<PageSize>,
}

/// What a base is worth: the bytes on huge pages. Compared field by field.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Worth {
    /// Bytes by page size, the largest first.
    by_page: Vec<u64>,
    /// Bytes by part, in the order of [`Part`]. Two bases that tie here cover as much of each part.
    by_part: [u64; 5],
    /// The huge pages that it takes: fewer are better.
    pages: Reverse<u64>,
}

impl Worth {
    /// Returns the bytes on huge pages.
    pub fn bytes(&self) -> u64 {
        self.by_page.iter().sum()
    }
}

/// Compares the bases of one executable under one policy.
#[derive(Debug)]
pub struct Bases<'a> {
    headers: &'a Headers,
    policy: &'a Policy,
    sizes: &'a Sizes,
    /// Bases repeat after this many bytes.
    page: PageSize,
    snapshot: Snapshot,
}

/// A multiple of 1 GB in the range where kernels put executables. Only the residue added to it matters.
const EXAMPLE_BASE: u64 = 0x5555_4000_0000;
/// The end of the address space, far from there.
const STACK: Range = Range { start: Addr(0x7fff_ff00_0000), end: Addr(0x7fff_ff10_0000) };
/// How many parts are tried by their ends. The largest parts are taken, since a file may state a thousand.
const TRIED: usize = 8;
const PARTS: [Part; 5] = [Part::Text, Part::Rodata, Part::Relro, Part::Data, Part::Bss];

impl<'a> Bases<'a> {
    /// Prepares to compare the bases of the executable at `path` with these `headers`.
    pub fn new(headers: &'a Headers, path: &Path, policy: &'a Policy, sizes: &'a Sizes) -> Bases<'a> {
        let page = policy.page.named().or(sizes.huge).unwrap_or(PageSize::MB2);
        let object = Object {
            path: path.to_owned(),
            file: FileId { major: 1, minor: 1, inode: 1 },
            build_id: None,
            bias: EXAMPLE_BASE,
            headers: headers.clone(),
            executable: true,
            textrel: false,
        };
        let snapshot = Snapshot::new(vec![object], Vec::new(), lacks_nothing(page, sizes));
        Bases { headers, policy, sizes, page, snapshot }
    }

    /// Returns the base that is worth most; `None` if no base has anything huge.
    ///
    /// If several are worth the same, it prefers the one where address and file offset agree, so that the
    /// base stays the same when the page cache becomes huge; after that, the lowest.
    pub fn best(&mut self) -> Option<Base> {
        if !self.may_hold_a_huge_page() {
            return None;
        }
        let congruent = congruent_residue(self.headers, &self.policy.parts, self.page, self.sizes.base);
        let mut candidates = self.candidates()?;
        candidates.extend(congruent);
        let mut best: Option<(Worth, bool, Reverse<u64>)> = None;
        for residue in candidates {
            let worth = self.worth(Base { residue, page: self.page })?;
            best = best.max(Some((worth, Some(residue) == congruent, Reverse(residue))));
        }
        let (worth, _, Reverse(residue)) = best?;
        (worth.bytes() > 0).then_some(Base { residue, page: self.page })
    }

    /// Returns the base of an executable that is loaded with `bias`.
    pub fn of(&self, bias: u64) -> Base {
        Base { residue: bias & (self.page.bytes() - 1), page: self.page }
    }

    /// Returns what `base` is worth; `None` if the object does not fit into the address space.
    pub fn worth(&mut self, base: Base) -> Option<Worth> {
        self.load(base.residue)?;
        let spans = plan(&self.snapshot, self.policy).spans;
        let mut by_page = BTreeMap::new();
        let mut worth = Worth { by_page: Vec::new(), by_part: [0; 5], pages: Reverse(0) };
        for span in &spans {
            let Some(attempt) = span.attempts.first() else { continue };
            let bytes: u64 = span.held.iter().map(|held| held.len()).sum();
            *by_page.entry(attempt.page.bytes()).or_insert(0) += bytes;
            worth.pages.0 += span.range.len() / attempt.page.bytes();
            if let Some(part) = PARTS.iter().position(|part| *part == span.part) {
                worth.by_part[part] += bytes;
            }
        }
        let sizes: BTreeSet<u64> =
            self.sizes.folios.iter().chain([&self.page]).map(|page| page.bytes()).collect();
        worth.by_page = sizes.iter().rev().map(|size| by_page.get(size).copied().unwrap_or(0)).collect();
        Some(worth)
    }

    /// Lays the executable out as loading it with this residue would.
    fn load(&mut self, residue: u64) -> Option<()> {
        let bias = EXAMPLE_BASE.checked_add(residue)?;
        let object = self.snapshot.objects.first_mut()?;
        object.bias = bias;
        let mut all = mappings(self.headers, bias, self.sizes.base, object.file, &object.path)?;
        // The kernel puts the heap at a random distance behind the executable.
        self.snapshot.brk = all.last().and_then(|m| m.range.end.align_up(self.page));
        all.push(anonymous(STACK, Prot::RW, ""));
        self.snapshot.mappings = all;
        Some(())
    }

    /// Returns whether the executable is large enough. Most programs are not, and cost no more than
    /// this.
    fn may_hold_a_huge_page(&self) -> bool {
        let smallest = self.sizes.folios.iter().chain([&self.page]).map(|page| page.bytes()).min();
        let smallest = smallest.unwrap_or(u64::MAX);
        // An outer span may be only half full.
        let needed = if self.policy.span == SpanChoice::Inner { smallest } else { smallest / 2 };
        let within = self.sizes.base.bytes() - 1;
        let pages =
            |at: u64, bytes: u64| (at & within).saturating_add(bytes).saturating_add(within) & !within;
        let all = self.headers.segments.iter().map(|s| pages(s.vaddr, s.memsz));
        all.fold(0, u64::saturating_add) >= needed
    }

    /// Returns the residues that bring an end of a part to an edge of a huge page and keep the
    /// alignment that the executable asks for. With outer spans it also matters which neighbour is in
    /// the same huge page, and how much of the page is filled. So residues that bring an end beside an
    /// edge, or half a huge page from one, are tried as well.
    fn candidates(&mut self) -> Option<BTreeSet<u64>> {
        self.load(0)?;
        let mut own: Vec<Range> =
            self.snapshot.mappings.iter().map(|m| m.range).filter(|r| *r != STACK).collect();
        own.sort_by_key(|range| Reverse(range.len()));
        own.truncate(TRIED);
        let ends = own.iter().flat_map(|range| [range.start.0, range.end.0]);
        let edges: BTreeSet<u64> = ends.map(|edge| edge.wrapping_sub(EXAMPLE_BASE)).collect();
        let (base, within) = (self.sizes.base.bytes(), self.page.bytes() - 1);
        let beside: &[u64] = match self.policy.span {
            SpanChoice::Inner => &[0],
            SpanChoice::Outer => &[0, base, base.wrapping_neg()],
            SpanChoice::Auto => &[0, base, base.wrapping_neg(), self.page.bytes() / 2],
        };
        let align = alignment(self.headers).max(base);
        let mut all = BTreeSet::from([0]);
        // An end of a part may lie at an edge or before it, a start at an edge or behind it. Where the end or the
        // start can be at the edge itself, one step further is never better for inner spans.
        let is_tried_once = self.policy.span == SpanChoice::Inner && self.sizes.folios.is_empty();
        for residue in edges.iter().flat_map(|edge| beside.iter().map(|b| b.wrapping_sub(*edge))) {
            let down = residue & !(align - 1);
            all.insert(down & within);
            if down != residue || !is_tried_once {
                all.insert(down.wrapping_add(align) & within);
            }
        }
        Some(all)
    }
}

/// Returns the largest alignment that a segment asks for.
pub(super) fn alignment(headers: &Headers) -> u64 {
    let aligns = headers.segments.iter().map(|s| s.align).filter(|align| align.is_power_of_two());
    aligns.max().unwrap_or(1)
}

/// Returns a machine that has everything a policy may ask for.
fn lacks_nothing(page: PageSize, sizes: &Sizes) -> Machine {
    let many = u64::MAX / page.bytes();
    let pool = Pool { page, total: many, free: many, reserved: 0, surplus: 0, overcommit: 0 };
    // A smaller page that the user has named is assumed to exist here; if it does not, it is refused
    // later.
    let named = Some(page).filter(|page| sizes.huge.is_some_and(|huge| *page < huge));
    Machine {
        base_page: sizes.base,
        thp_page: sizes.huge,
        folios: sizes.folios.iter().copied().chain(named).collect(),
        thp_off: None,
        allows_thp: false,
        pools: vec![pool],
        moves_hugetlb: true,
        memory_left: u64::MAX,
        memory_limit: None,
    }
}

/// Returns the base for which the store has its copies. It depends on the program
/// alone, not on the options: all processes share one copy only if they have one base.
pub fn shared_base(headers: &Headers, path: &Path, sizes: &Sizes) -> Option<Base> {
    let both = Policy {
        parts: vec![Part::Text, Part::Rodata],
        backings: vec![Backing::Thp],
        page: PageChoice::Usual,
        ..Policy::default()
    };
    let sizes = Sizes { folios: Vec::new(), ..sizes.clone() };
    Bases::new(headers, path, &both, &sizes).best()
}

/// Returns the residue at which address and file offset agree in most of the wanted bytes; `None` if
/// no segment has a whole huge page. The program's code depends on the distances between segments, so
/// all segments have the same bias.
pub fn congruent_residue(headers: &Headers, wanted: &[Part], huge: PageSize, base: PageSize) -> Option<u64> {
    // By residue: all bytes, and how many of them are text.
    let mut gains: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for segment in headers.segments.iter().filter(|s| !s.prot.write) {
        let part = if segment.prot.exec { Part::Text } else { Part::Rodata };
        let offsets = Range {
            start: Addr(segment.offset).align_down(base),
            end: Addr(segment.offset.saturating_add(segment.filesz)).align_up(base)?,
        };
        let whole = offsets.inner(huge).map_or(0, Range::len);
        if whole > 0 && wanted.contains(&part) {
            let residue = segment.offset.wrapping_sub(segment.vaddr) & (huge.bytes() - 1);
            let gain = gains.entry(residue).or_default();
            gain.0 += whole;
            gain.1 += if part == Part::Text { whole } else { 0 };
        }
    }
    gains.into_iter().max_by_key(|(_, gain)| *gain).map(|(residue, _)| residue)
}
