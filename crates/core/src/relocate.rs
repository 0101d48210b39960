// SPDX-License-Identifier: Apache-2.0
//! Moving a position-independent executable, before anything of it has run, to a base where more of
//! it can be huge. Huge folios of its file can be mapped by huge entries only where address and file
//! offset agree within a huge page. For copies, the parts must hold as many whole huge pages as they
//! can ([`base`]).
//!
//! ```text
//!   as the kernel put it                 B (multiple of 4 kB) [text][rodata][data][bss] ... [heap]
//!   moved       B' [text][rodata][data][bss] ... [heap]
//!               |<------------- distance ------------->|
//! ```
//!
//! `B'` is the highest place below the image that is free and has the chosen residue: what the bias
//! leaves when it is divided by the huge page. The residue depends on the program and the options
//! alone. `B'` is made of the kernel's own random base, so nothing has to be drawn: rounding takes
//! the bits within a huge page away, as the kernel itself does for an executable whose `p_align` is
//! a huge page. What the kernel placed relative to the image, the heap, keeps its distance.
//!
//! The copy of the image is complete before the switch, and the old one is there until after
//! it: a program whose helper is killed at any moment finds one whole image.

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
    /// Its mappings, by address: of the file, and the zeros behind them.
    pub pieces: Vec<Mapping>,
}

/// Why an executable stays where it is.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotMoved {
    /// It has the base that it should have.
    #[error("it is where it should be already")]
    There,
    /// It is linked for one address.
    #[error("it is linked for a fixed address")]
    Fixed,
    /// Moving would make memory that is writable and executable at once.
    #[error("a segment of it is writable and executable at once")]
    WritableCode,
    /// Its segments are not where the kernel puts them.
    #[error("its mappings are not those of its file")]
    Odd,
    /// No free place below it.
    #[error("there is no free place for it")]
    NoCodeCave,
}

/// Where an executable is to go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Move {
    /// Where it is.
    pub image: Range,
    /// Its mappings.
    pub pieces: Vec<Mapping>,
    /// Pages in which the kernel has cleared what is behind the file's bytes.
    pub cleared: Vec<Range>,
    /// How far down, in bytes.
    pub distance: u64,
    /// Nothing lies between the new place and the old one.
    pub heap_may_follow: bool,
}

/// The addresses that the kernel keeps of a process (`struct prctl_mm_map`, prctl(2)), and the
/// auxiliary vector that it shows in `/proc/PID/auxv`.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the kernel's own names
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
    /// Keys and values in turn, `AT_NULL` with them.
    pub auxv: Vec<u64>,
}

/// What the loader and the program find the image by.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct EntryPointers {
    /// `AT_PHDR`
    pub phdr: u64,
    /// `AT_ENTRY`
    pub entry: u64,
}

/// A process right behind its execve(2), whose executable can still be put elsewhere.
///
/// # Errors
/// As for [`Target`]: after [`Fault::Call`] nothing has changed.
pub trait ExecStopped: Target {
    /// Maps each of `pieces`, which are of the executable's own file or zeros, once more and privately:
    /// `distance` below, where nothing may be. Each stands for itself; after [`Fault::Lost`] none is
    /// tried any more.
    fn map_image(&mut self, pieces: &[Mapping], distance: u64) -> Vec<Result<(), Fault>>;
    /// Makes the bytes at `to` those of `from`; writes nothing if they are.
    fn equalize(&mut self, from: Range, to: Addr) -> Result<(), Fault>;
    /// Whether the mappings `distance` below `pieces` are the same as they.
    fn is_copied(&mut self, pieces: &[Mapping], distance: u64) -> Result<bool, Fault>;
    /// Makes the program begin with the image that `layout` tells of: its entry_pointers on the stack,
    /// the program counter where it is in the executable (a static one), what the kernel knows.
    /// All of it or nothing, whoever dies.
    fn switch(&mut self, layout: &Layout) -> Result<(), Fault>;
    /// Tells the kernel (`PR_SET_MM_MAP`).
    fn set_layout(&mut self, layout: &Layout) -> Result<(), Fault>;
}

impl Image {
    /// The executable whose file's first page is mapped at `first`.
    ///
    /// # Errors
    /// [`NotMoved::Odd`]
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
    /// Why it stays.
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
            let shift = self.range.end.0.checked_sub(room.0).ok_or(NotMoved::NoCodeCave)?;
            let off = self.bias.wrapping_sub(shift).wrapping_sub(residue) & within;
            let distance = shift.checked_add(off).ok_or(NotMoved::NoCodeCave)?;
            let start = self.range.start.0.checked_sub(distance).filter(|s| *s >= huge.bytes());
            let place = Range::sized(Addr(start.ok_or(NotMoved::NoCodeCave)?), self.range.len())
                .ok_or(NotMoved::NoCodeCave)?;
            match overlapping(mappings, place).first() {
                None => break distance,
                Some(other) => room = other.range.start,
            }
        };
        // Kernels before 5.10 do not align the base as the segments ask for.
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

    /// The pages that hold the last bytes of the file and the first of the zeros behind them.
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
    /// The value of the auxiliary vector at `key`.
    pub fn aux(&self, key: u64) -> Option<u64> {
        self.auxv.chunks_exact(2).take_while(|p| p[0] != 0).find(|p| p[0] == key).map(|p| p[1])
    }

    /// What finds the image.
    pub fn entry_pointers(&self) -> Option<EntryPointers> {
        Some(EntryPointers { phdr: self.aux(AT_PHDR)?, entry: self.aux(AT_ENTRY)? })
    }

    /// With the image moved.
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

    /// With the heap moved along, if it is of the image: empty still, and less behind it than
    /// kernels put it.
    fn with_heap(&self, plan: &Move) -> Option<Layout> {
        /// x86-64 puts the heap up to 1 GB behind the image, AArch64 as well.
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
    /// Where what was at `at` is afterwards.
    fn moved(&self, at: u64) -> u64 {
        let inside = self.image.start.0 <= at && at <= self.image.end.0;
        if inside { at - self.distance } else { at }
    }
}

/// Carries out `plan` on `target`, whose addresses are those of `layout`. Returns what of the
/// old image could not be unmapped.
///
/// # Errors
/// The step that failed; the image is then where it was, and whole.
pub fn carry_out<T: ExecStopped>(target: &mut T, plan: &Move, layout: &Layout) -> Result<Vec<Range>, Fault> {
    // Whether the kernel lets us: nothing changes by this.
    target.set_layout(layout)?;
    let mut copied = Vec::new();
    let new = layout.with_image(plan);
    let result = copy(target, plan, &mut copied).and_then(|()| target.switch(&new));
    match result {
        Ok(()) => {
            let gone = unmap(target, plan.pieces.iter().map(|m| m.range))?;
            // Now that its place is free. Without, it stays where it was, which is as good.
            match new.with_heap(plan).filter(|_| gone.is_empty()).map(|with| target.set_layout(&with)) {
                Some(Err(fault @ Fault::Lost(_))) => Err(fault),
                _ => Ok(gone),
            }
        }
        Err(fault @ Fault::Lost(_)) => Err(fault),
        Err(fault) => unmap(target, copied.into_iter()).and(Err(fault)),
    }
}

/// A second image, the same as the first.
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

/// Unmaps `ranges`, those that touch in one call; returns those that stay.
fn unmap<T: ExecStopped>(target: &mut T, ranges: impl Iterator<Item = Range>) -> Result<Vec<Range>, Fault> {
    let mut joined: Vec<Range> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    let mut left = Vec::new();
    for range in joined {
        match target.munmap(range).or_else(|_| target.munmap(range)) {
            Ok(()) => {}
            Err(Fault::Lost(why)) => return Err(Fault::Lost(why)),
            Err(_) => left.push(range),
        }
    }
    Ok(left)
}
