// SPDX-License-Identifier: Apache-2.0
//! Where each segment of the copy begins and ends: segments of code are extended to whole huge pages.
//!
//! What lies beside the code in its first or last huge page is one of three:
//!
//! - Nothing. The segment of code is extended by traps.
//! - Read-only constants: lld and mold put them before the code, GNU ld behind it. The edge between the two segments
//!   moves to the edge of the huge page, so that those constants become executable, as all constants of a program
//!   were before linkers knew `-z separate-code`. No address changes by this.
//! - Data that can be written to. No page may be writable and executable, so such a huge page stays small.

use super::distances::Distances;
use super::original::{base_page, is_apart_in_file, trap};
use crate::align::tables::{LE, Tables, has_bytes};
use crate::align::{BASE_PAGE, base_of};
use hugelift_core::addr::PageSize;
use hugelift_core::elf::Segment;
use object::read::elf::SectionHeader as _;

/// Bytes that are inserted into the file. Those in one place are whole pages, as addresses and offsets agree within a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Padding {
    /// The offset in the original before which they are inserted.
    pub at: u64,
    /// How many.
    pub bytes: u64,
    /// What they are.
    pub fill: u8,
}

/// A segment of the copy, by its addresses there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    /// Where the bytes lie that the segment has in the original.
    image: (u64, u64),
    /// Its first byte.
    pub start: u64,
    /// Behind its bytes in the file.
    pub file_end: u64,
    /// Behind its memory.
    pub mem_end: u64,
}

impl Extent {
    /// Returns how many of its bytes in the file are those of a segment of the original.
    fn holds(&self, other: &Extent) -> u64 {
        other.image.1.min(self.file_end).saturating_sub(other.image.0.max(self.start))
    }
}

/// The original, and what the copy is made for.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub bytes: &'a [u8],
    pub tables: &'a Tables,
    pub page: PageSize,
}

impl<'a> Source<'a> {
    fn segments(&self) -> &'a [Segment] {
        &self.tables.headers.segments
    }

    /// Returns the address of the huge page that holds `at`.
    fn floor(&self, at: u64) -> u64 {
        at / self.page.bytes() * self.page.bytes()
    }

    /// Returns whether some bytes of the file are a linker's filler, which nothing names.
    fn is_filler(&self, offset: u64, size: u64) -> bool {
        let end = offset.saturating_add(size);
        let bytes = usize::try_from(offset).ok().zip(usize::try_from(end).ok());
        let bytes = bytes.and_then(|(from, to)| self.bytes.get(from..to));
        // lld fills the last page of the code with traps.
        let trap = trap(self.tables.headers.machine);
        let fills = bytes.is_some_and(|b| b.iter().all(|&b| b == 0) || b.iter().all(|&b| b == trap));
        let named = self.tables.sections.iter().filter(|s| has_bytes(s));
        let mut named = named
            .map(|s| (s.sh_offset(LE), s.sh_size(LE)))
            .chain([self.tables.program_table(), self.tables.section_table()]);
        fills && !named.any(|(at, size)| at < end && offset < at.saturating_add(size))
    }
}

/// All segments of the copy, and what makes them so.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Extents {
    /// One for each segment of the original.
    pub segments: Vec<Extent>,
    /// By offset.
    pub paddings: Vec<Padding>,
    /// Offset and length of what lies between two segments in the file, and becomes traps.
    pub gaps: Vec<(u64, u64)>,
    /// Bytes of the new header tables at the start, if there are any.
    header: Option<u64>,
}

impl Extents {
    /// Returns the segments as they are, moved by `distances`; `None` if one would leave the address space.
    pub fn new(tables: &Tables, distances: &Distances) -> Option<Extents> {
        let extent = |s: &Segment| {
            let start = distances.image(s.vaddr)?;
            let [file_end, mem_end] = [s.filesz, s.memsz].map(|size| start.checked_add(size));
            Some(Extent { image: (start, file_end?), start, file_end: file_end?, mem_end: mem_end? })
        };
        let segments = tables.headers.segments.iter().map(extent).collect::<Option<_>>()?;
        Some(Extents { segments, paddings: Vec::new(), gaps: Vec::new(), header: None })
    }

    /// Extends the first segment down to address 0, by new header tables of `header` bytes and `fill` behind them.
    pub fn add_header(&mut self, header: u64, fill: u8) {
        if let Some(first) = self.segments.first_mut() {
            self.paddings.push(Padding { at: 0, bytes: first.start, fill });
            first.start = 0;
            self.header = Some(header);
        }
    }

    /// Extends segment `i` down to `to` by traps.
    pub fn pad_down(&mut self, source: &Source, i: usize, to: u64) -> Option<()> {
        let (segment, own) = (source.segments().get(i)?, self.segments.get_mut(i)?);
        let bytes = own.start.checked_sub(to)?;
        own.start = to;
        let whole = bytes.checked_next_multiple_of(base_page(source.tables))?;
        self.paddings.push(Padding { at: segment.offset, bytes: whole - bytes, fill: 0 });
        self.paddings.push(Padding { at: segment.offset, bytes, fill: source.trap() });
        Some(())
    }

    /// Extends each segment of code to whole huge pages, where that brings a page of it on them.
    pub fn widen(&mut self, source: &Source) {
        let code = source.segments().iter().enumerate().filter(|(_, s)| s.prot.exec && s.filesz > 0);
        for (i, _) in code {
            for (down, up) in [(true, true), (true, false), (false, true)] {
                let mut tried = self.clone();
                let done =
                    (!down || tried.down(source, i).is_some()) && (!up || tried.up(source, i).is_some());
                if done && tried.whole(source) >= self.whole(source).saturating_add(BASE_PAGE) {
                    *self = tried;
                    break;
                }
            }
        }
        self.paddings.sort_by_key(|padding| padding.at);
    }

    /// Returns the segments of the copy with those of the original.
    fn pairs<'a>(&'a self, source: &Source<'a>) -> impl Iterator<Item = (&'a Segment, &'a Extent)> {
        source.segments().iter().zip(&self.segments)
    }

    /// Returns the bytes of the original's code that lie on whole huge pages.
    pub fn whole(&self, source: &Source) -> u64 {
        let base = base_of(source.page);
        let huge = |extent: &Extent| {
            // A mapping consists of whole base pages.
            let (start, end) = (extent.start / base * base, extent.file_end.checked_next_multiple_of(base)?);
            let start = start.checked_next_multiple_of(source.page.bytes())?;
            Some(Extent { start, file_end: source.floor(end), ..*extent })
        };
        let code = || self.pairs(source).filter(|(s, _)| s.prot.exec).map(|(_, extent)| extent);
        let whole = code().filter_map(huge).flat_map(|huge| code().map(move |other| huge.holds(other)));
        whole.fold(0, u64::saturating_add)
    }

    /// Returns the bytes of constants that segment `i` has and are executable there.
    pub fn constants_in(&self, source: &Source, i: usize) -> u64 {
        let Some((_, own)) = self.pairs(source).nth(i).filter(|(s, _)| s.prot.exec) else { return 0 };
        let others = self.pairs(source).filter(|(s, _)| !s.prot.exec).map(|(_, other)| own.holds(other));
        others.fold(0, u64::saturating_add)
    }

    /// Returns the bytes of constants that have become executable.
    pub fn constants(&self, source: &Source) -> u64 {
        (0..self.segments.len()).map(|i| self.constants_in(source, i)).fold(0, u64::saturating_add)
    }

    /// Returns the bytes in the file of segment `i` that no segment of the original has.
    pub fn padding_in(&self, i: usize) -> u64 {
        let Some(own) = self.segments.get(i) else { return 0 };
        let held = self.segments.iter().map(|other| own.holds(other)).fold(0, u64::saturating_add);
        own.file_end.saturating_sub(own.start).saturating_sub(held)
    }

    /// Extends segment `i` down to the edge of a huge page, if what lies there permits it.
    fn down(&mut self, source: &Source, i: usize) -> Option<()> {
        let own = *self.segments.get(i)?;
        let to = source.floor(own.start);
        if to == own.start {
            return Some(());
        }
        let segment = source.segments().get(i)?;
        is_apart_in_file(source.tables, segment.offset, segment.vaddr).ok()?;
        let below = i.checked_sub(1)?;
        let other = *self.segments.get(below)?;
        if other.mem_end.checked_next_multiple_of(base_page(source.tables))? <= to {
            return self.pad_down(source, i, to);
        }
        let header = self.header.filter(|_| below == 0);
        let end = if to > other.image.0.max(other.start) {
            to
        } else {
            // Nothing is left of that segment but the new header tables, and the file has traps behind them.
            let header = header
                .filter(|header| header.checked_next_multiple_of(base_page(source.tables)) <= Some(to))?;
            let bytes = other.image.0.checked_sub(to)?;
            let first = self.paddings.iter_mut().find(|padding| padding.at == 0)?;
            first.bytes = first.bytes.checked_sub(bytes)?;
            self.paddings.push(Padding { at: 0, bytes, fill: source.trap() });
            header
        };
        self.join(source, below)?;
        let other = self.segments.get_mut(below)?;
        (other.file_end, other.mem_end) = (end, end);
        self.segments.get_mut(i)?.start = to;
        Some(())
    }

    /// Extends segment `i` up to the edge of a huge page, if what lies there permits it.
    fn up(&mut self, source: &Source, i: usize) -> Option<()> {
        let (segment, own) = (source.segments().get(i)?, *self.segments.get(i)?);
        let to = own.file_end.checked_next_multiple_of(source.page.bytes())?;
        if own.file_end.checked_next_multiple_of(base_of(source.page))? == to {
            return Some(());
        }
        if own.file_end != own.mem_end {
            return None;
        }
        let above = i.checked_add(1)?;
        match self.segments.get(above).copied() {
            Some(other) if other.start / base_page(source.tables) * base_page(source.tables) < to => {
                let next = source.segments().get(above)?;
                is_apart_in_file(source.tables, next.offset, next.vaddr).ok()?;
                if to >= other.file_end {
                    return None;
                }
                self.join(source, i)?;
                self.segments.get_mut(above)?.start = to;
            }
            _ => {
                let [at, end] =
                    [segment.offset, segment.vaddr].map(|start| start.checked_add(segment.filesz));
                is_apart_in_file(source.tables, at?, end?).ok()?;
                let bytes = to.checked_sub(own.file_end)?;
                let whole = bytes.checked_next_multiple_of(base_page(source.tables))?;
                self.paddings.push(Padding { at: at?, bytes, fill: source.trap() });
                // Nothing loads the rest.
                self.paddings.push(Padding { at: at?, bytes: whole - bytes, fill: 0 });
            }
        }
        let own = self.segments.get_mut(i)?;
        (own.file_end, own.mem_end) = (to, to);
        Some(())
    }

    /// Gives segment `i` and the next one the same distance in the file as in memory, so that the edge between them
    /// can be anywhere. One of them is code, the other must be code or constants.
    fn join(&mut self, source: &Source, i: usize) -> Option<()> {
        let [lower, upper] = source.segments().get(i..)?.first_chunk()?;
        let fits = |s: &Segment| s.prot.read && !s.prot.write && s.filesz > 0 && s.filesz == s.memsz;
        let end = lower.offset.checked_add(lower.filesz)?;
        let in_file = upper.offset.checked_sub(end)?;
        let in_memory = upper.vaddr.checked_sub(lower.vaddr.checked_add(lower.filesz)?)?;
        let bytes = in_memory.checked_sub(in_file)?;
        (fits(lower) && fits(upper) && source.is_filler(end, in_file)).then_some(())?;
        self.gaps.push((end, in_file));
        self.paddings.push(Padding { at: upper.offset, bytes, fill: source.trap() });
        Some(())
    }
}

impl Source<'_> {
    /// Returns the byte that traps consist of.
    fn trap(&self) -> u8 {
        trap(self.tables.headers.machine)
    }
}
