// SPDX-License-Identifier: Apache-2.0
//! Moves a position-independent executable, before any of it has run, to a base where more of it can
//! be huge. Huge page table entries can map huge folios of its file only where address and file offset
//! agree within a huge page. For copies, the parts must hold as many whole huge pages as possible
//! ([`base`]).
//!
//! ```text
//!   as the kernel put it                 B (multiple of 4 kB) [text][rodata][data][bss] ... [heap]
//!   moved       B' [text][rodata][data][bss] ... [heap]
//!               |<------------- distance ------------->|
//! ```
//!
//! `B'` is the highest free address below the image that has the chosen residue: the bias modulo the
//! huge page. The residue depends on the program and the options alone. `B'` is derived from the
//! kernel's random base, so no random number is needed. Rounding removes the random bits within a huge
//! page, as the kernel itself does for an executable whose `p_align` is a huge page. The heap, which
//! the kernel has placed relative to the image, keeps its distance.
//!
//! The copy of the image is complete before the switch, and the old image stays until after it. So a
//! program whose helper is killed at any moment has one whole image.

use crate::addr::{Addr, PageSize, Range};
use crate::elf::{Headers, Segment};
use crate::maps::{FileId, Mapping};
use crate::snapshot::overlapping;
use crate::target::{Fault, Target};

pub mod base;

use base::{Base, alignment};

/// The executable as execve(2) has mapped it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Image {
    /// Its program headers.
    pub headers: Headers,
    /// What loading added to the stated addresses.
    pub bias: u64,
    /// From its first page to its last.
    pub range: Range,
    /// Its mappings, by address: those of the file, and zeros behind them.
    pub pieces: Vec<Mapping>,
}

/// Why an executable stays where it is.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotMoved {
    /// It has the wanted base already.
    #[error("it has the wanted base already")]
    There,
    /// It is linked for one address.
    #[error("it is linked for a fixed address")]
    Fixed,
    /// Moving it would make memory that is writable and executable at once.
    #[error("a segment of it is writable and executable at once")]
    WritableCode,
    /// Its segments are not where the kernel puts them.
    #[error("its mappings are not those that its program headers state")]
    Odd,
    /// There is no free address range for it below.
    #[error("there is no free address range for it below its own")]
    NoRoom,
}

/// The move of an executable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Move {
    /// Where it is before the move.
    pub image: Range,
    /// Its mappings.
    pub pieces: Vec<Mapping>,
    /// Pages in which the kernel has cleared the bytes behind those of the file.
    pub cleared: Vec<Range>,
    /// How far it moves down, in bytes.
    pub distance: u64,
    /// Nothing is mapped between the new place and the old one.
    pub heap_may_follow: bool,
}

/// The addresses that the kernel keeps of a process (`struct prctl_mm_map`, prctl(2)), and the
/// auxiliary vector that it shows in `/proc/PID/auxv`.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the fields have the kernel's names
pub struct Layout {
    pub start_code: u64,
    pub end_code: u64,
    pub start_data: u64,
    pub end_data: u64,
    pub start_brk: u64,
    pub brk: u64,
    pub start_stack: u64,
    pub arg_start: u64,
    pub arg_end: u64,
    pub env_start: u64,
    pub env_end: u64,
    /// Keys and values alternately, including `AT_NULL`.
    pub auxv: Vec<u64>,
}

/// The addresses by which the loader and the program find the image.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct EntryPointers {
    /// `AT_PHDR`
    pub phdr: u64,
    /// `AT_ENTRY`
    pub entry: u64,
}

/// A process at its exec stop, whose executable can still be moved.
///
/// # Errors
/// As for [`Target`]: after [`Fault::Call`] nothing has changed.
pub trait ExecStopped: Target {
    /// Maps each of `pieces`, which are of the executable's own file or zeros, a second time: privately
    /// and `distance` bytes lower, where nothing may be mapped. One may fail without the others; after
    /// [`Fault::Lost`] no other is tried.
    fn map_image(&mut self, pieces: &[Mapping], distance: u64) -> Vec<Result<(), Fault>>;
    /// munmap(2). Nothing of the program runs, so what is at these addresses is known.
    fn munmap(&mut self, range: Range) -> Result<(), Fault>;
    /// Copies the bytes of `from` to `to`; writes nothing if they are the same already.
    fn equalize(&mut self, from: Range, to: Addr) -> Result<(), Fault>;
    /// Returns whether the mappings `distance` bytes below `pieces` are the same as these.
    fn is_copied(&mut self, pieces: &[Mapping], distance: u64) -> Result<bool, Fault>;
    /// Makes the program start with the image that `new` describes instead of `old`: sets the entry
    /// pointers on the stack, the program counter if it is in the executable (of a static program), and the
    /// layout in the kernel. It does all of this or nothing, even if hugelift is killed.
    fn switch(&mut self, old: &Layout, new: &Layout) -> Result<(), Fault>;
    /// Unmaps each of `ranges`, then sets the layout in the kernel, whatever came of them: in one round trip.
    /// If hugelift is killed meanwhile, all of it is done.
    fn retire(&mut self, ranges: &[Range], layout: Option<&Layout>) -> Retired;
    /// Sets the layout in the kernel (`PR_SET_MM_MAP`).
    fn set_layout(&mut self, layout: &Layout) -> Result<(), Fault>;
}

/// What came of [`ExecStopped::retire`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Retired {
    /// Whether each range was unmapped.
    pub unmapped: Vec<Result<(), Fault>>,
    /// Whether the layout was set; `Ok` if there was none to set.
    pub layout: Result<(), Fault>,
}

impl Image {
    /// Describes the executable whose file's first page is mapped at `first`.
    ///
    /// # Errors
    /// Returns [`NotMoved::Odd`] if the mappings do not match the headers.
    pub fn new(
        mappings: &[Mapping],
        headers: Headers,
        first: Addr,
        base: PageSize,
    ) -> Result<Image, NotMoved> {
        let page = headers.first_page(base.bytes());
        let bias = first.0.wrapping_sub(page);
        let last = headers.segments.last().ok_or(NotMoved::Odd)?;
        let end = Addr(last.vaddr.wrapping_add(last.memsz).wrapping_add(bias)).align_up(base);
        let range = end.and_then(|end| Range::new(first, end)).ok_or(NotMoved::Odd)?;
        let pieces = overlapping(mappings, range).to_vec();
        let file = pieces.first().map(|m| m.file).filter(|f| *f != FileId::default()).ok_or(NotMoved::Odd)?;
        let is_own = |m: &Mapping| {
            let zeros = !m.is_file() && m.path.as_os_str().is_empty();
            range.covers(m.range) && !m.shared && (m.file == file || zeros)
        };
        if !pieces.iter().all(is_own) {
            return Err(NotMoved::Odd);
        }
        Ok(Image { headers, bias, range, pieces })
    }

    /// Plans the move of the image to the highest free place below it that has the base `to`.
    ///
    /// # Errors
    /// Returns why it stays.
    pub fn plan(&self, mappings: &[Mapping], to: Base, page: PageSize) -> Result<Move, NotMoved> {
        if to.is_of(self.bias) {
            return Err(NotMoved::There);
        }
        let (residue, huge) = (to.residue, to.page);
        let within = huge.bytes() - 1;
        if !self.headers.relocatable {
            return Err(NotMoved::Fixed);
        }
        if self.pieces.iter().any(|m| m.prot.is_wx()) {
            return Err(NotMoved::WritableCode);
        }
        let mut room = self.range.start;
        let distance = loop {
            // The highest place with this base that ends at `room`.
            let shift = self.range.end.0.checked_sub(room.0).ok_or(NotMoved::NoRoom)?;
            let off = self.bias.wrapping_sub(shift).wrapping_sub(residue) & within;
            let distance = shift.checked_add(off).ok_or(NotMoved::NoRoom)?;
            let start = self.range.start.0.checked_sub(distance).filter(|s| *s >= huge.bytes());
            let place = Range::sized(Addr(start.ok_or(NotMoved::NoRoom)?), self.range.len())
                .ok_or(NotMoved::NoRoom)?;
            match overlapping(mappings, place).first() {
                None => break distance,
                Some(other) => room = other.range.start,
            }
        };
        // Kernels before 5.10 do not align the base as the segments demand.
        let is_aligned = |bytes: u64| bytes & (alignment(&self.headers) - 1) == 0;
        if !is_aligned(distance) && !is_aligned(self.bias.wrapping_sub(distance)) {
            return Err(NotMoved::Odd);
        }
        let between = Range { start: Addr(self.range.end.0 - distance), end: self.range.start };
        Ok(Move {
            image: self.range,
            pieces: self.pieces.clone(),
            cleared: self.cleared(page),
            distance,
            heap_may_follow: overlapping(mappings, between).is_empty(),
        })
    }

    /// Returns the pages that hold the last bytes of the file and the first zeros behind them.
    fn cleared(&self, base: PageSize) -> Vec<Range> {
        let partial = |s: &&Segment| s.filesz > 0 && s.memsz > s.filesz;
        let ends = self.headers.segments.iter().filter(partial);
        let ends = ends.map(|s| Addr(s.vaddr.wrapping_add(s.filesz).wrapping_add(self.bias)));
        ends.filter(|end| !end.is_aligned(base))
            .filter_map(|end| Range::sized(end.align_down(base), base.bytes()))
            .collect()
    }
}

impl Layout {
    /// Returns the value of the auxiliary vector at `key`.
    pub fn aux(&self, key: u64) -> Option<u64> {
        self.auxv.chunks_exact(2).take_while(|p| p[0] != 0).find(|p| p[0] == key).map(|p| p[1])
    }

    /// Returns the entry pointers in the auxiliary vector.
    pub fn entry_pointers(&self) -> Option<EntryPointers> {
        Some(EntryPointers { phdr: self.aux(AT_PHDR)?, entry: self.aux(AT_ENTRY)? })
    }

    /// Returns the layout with the image moved.
    fn with_image(&self, plan: &Move) -> Layout {
        let mut new = self.clone();
        for at in [&mut new.start_code, &mut new.end_code, &mut new.start_data, &mut new.end_data] {
            *at = plan.moved(*at);
        }
        for pair in new.auxv.chunks_exact_mut(2).take_while(|p| p[0] != 0) {
            if [AT_PHDR, AT_ENTRY].contains(&pair[0]) {
                pair[1] = plan.moved(pair[1]);
            }
        }
        new
    }

    /// Returns the layout with the heap moved along, if it is empty and close enough behind the image
    /// to have been placed relative to it.
    fn with_heap(&self, plan: &Move) -> Option<Layout> {
        /// x86-64 and AArch64 put the heap up to 1 GB behind the image.
        const FARTHEST: u64 = 2 << 30;
        let behind = self.start_brk.checked_sub(plan.image.end.0)?;
        let at = self.start_brk.checked_sub(plan.distance)?;
        let follows = plan.heap_may_follow && behind <= FARTHEST && self.brk == self.start_brk;
        follows.then(|| Layout { start_brk: at, brk: at, ..self.clone() })
    }
}

/// `AT_PHDR`, `AT_ENTRY` (getauxval(3))
const AT_PHDR: u64 = 3;
const AT_ENTRY: u64 = 9;

impl Move {
    /// Returns the address that `at` has after the move.
    fn moved(&self, at: u64) -> u64 {
        let inside = self.image.start.0 <= at && at <= self.image.end.0;
        if inside { at - self.distance } else { at }
    }
}

/// Carries out `plan` on `target`, which has the layout `layout`. Returns the ranges of the old image
/// that could not be unmapped.
///
/// # Errors
/// Returns the fault of the step that failed. The image is then whole and where it was.
pub fn carry_out<T: ExecStopped>(target: &mut T, plan: &Move, layout: &Layout) -> Result<Vec<Range>, Fault> {
    let mut copied = Vec::new();
    let new = layout.with_image(plan);
    let result = copy(target, plan, &mut copied).and_then(|()| target.switch(layout, &new));
    match result {
        Ok(()) => retire(target, plan, &new),
        Err(fault @ Fault::Lost(_)) => Err(fault),
        Err(fault) => unmap(target, &joined(copied.into_iter())).and(Err(fault)),
    }
}

/// Unmaps the old image and moves the heap behind the new one. Returns what could not be unmapped.
fn retire<T: ExecStopped>(target: &mut T, plan: &Move, new: &Layout) -> Result<Vec<Range>, Fault> {
    let ranges = joined(plan.pieces.iter().map(|m| m.range));
    // The heap's new place is free once the old image is gone. If this fails it stays where it was, which is as
    // good.
    let with_heap = new.with_heap(plan);
    let retired = target.retire(&ranges, with_heap.as_ref());
    let mut left = Vec::new();
    for (range, unmapped) in ranges.into_iter().zip(retired.unmapped) {
        match unmapped {
            Ok(()) => {}
            Err(Fault::Lost(why)) => return Err(Fault::Lost(why)),
            Err(_) => left.push(range),
        }
    }
    if let Err(fault @ Fault::Lost(_)) = retired.layout {
        return Err(fault);
    }
    let left = unmap(target, &left)?;
    // The heap would soon meet what is left.
    if !left.is_empty() && with_heap.is_some() && retired.layout.is_ok() {
        match target.set_layout(new) {
            Err(fault @ Fault::Lost(_)) => return Err(fault),
            done => drop(done),
        }
    }
    Ok(left)
}

/// Makes a second image that is the same as the first.
fn copy<T: ExecStopped>(target: &mut T, plan: &Move, copied: &mut Vec<Range>) -> Result<(), Fault> {
    let mapped = target.map_image(&plan.pieces, plan.distance);
    let there = plan.pieces.iter().zip(&mapped).filter(|(_, mapped)| mapped.is_ok());
    copied.extend(there.map(|(piece, _)| piece.range.down(plan.distance)));
    mapped.into_iter().collect::<Result<(), Fault>>()?;
    for page in &plan.cleared {
        target.equalize(*page, page.down(plan.distance).start)?;
    }
    if !target.is_copied(&plan.pieces, plan.distance)? {
        return Err(Fault::Call { call: "copying the executable's mappings", range: plan.image, errno: 22 });
    }
    Ok(())
}

/// Joins neighbouring ranges.
fn joined(ranges: impl Iterator<Item = Range>) -> Vec<Range> {
    let mut joined: Vec<Range> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

/// Unmaps `ranges`. Returns those that could not be unmapped.
fn unmap<T: ExecStopped>(target: &mut T, ranges: &[Range]) -> Result<Vec<Range>, Fault> {
    let mut left = Vec::new();
    for range in ranges {
        match target.munmap(*range).or_else(|_| target.munmap(*range)) {
            Ok(()) => {}
            Err(Fault::Lost(why)) => return Err(Fault::Lost(why)),
            Err(_) => left.push(*range),
        }
    }
    Ok(left)
}
