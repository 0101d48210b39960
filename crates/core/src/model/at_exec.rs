// SPDX-License-Identifier: Apache-2.0
//! The model of a process at its exec stop.

use super::runs::Shift;
use super::{Behind, Content, EEXIST, EINVAL, Memory, Model, Start, fail};
use crate::addr::{Addr, Range};
use crate::maps::{Mapping, Prot};
use crate::relocate::{ExecStopped, Layout, Retired};
use crate::target::{Fault, Place, Source, Target};

impl Model {
    /// Makes the model one of a process at its exec stop, with `start` as its state. The executable's
    /// memory without a file becomes zeros.
    pub fn begin(&mut self, start: Start) {
        for zeros in start.image.iter().filter(|m| !m.is_file()) {
            self.write(super::ORIGINAL, zeros.range, Content::Zero);
        }
        self.start = start;
    }

    /// Maps the executable's file.
    fn map_file(&mut self, range: Range, prot: Prot, offset: u64) -> Result<(), Fault> {
        const CALL: &str = "mmap of the executable";
        self.enter(CALL, range)?;
        if !self.is_aligned(range) {
            return fail(CALL, range, EINVAL);
        }
        if !self.space.within(range).is_empty() {
            return fail(CALL, range, EEXIST);
        }
        let store = self.new_store();
        for piece in self.start.image.clone().iter().filter(|m| m.is_file()) {
            let offsets = Range::sized(Addr(piece.offset), piece.range.len()).unwrap_or_default();
            let wanted = Range::sized(Addr(offset), range.len()).unwrap_or_default();
            let Some(shown) = offsets.intersect(wanted) else { continue };
            let at = piece.range.start.0 + (shown.start.0 - offsets.start.0);
            let into = Range::sized(Addr(shown.start.0 - offset), shown.len()).unwrap_or_default();
            self.write(store, into, Content::Original(at));
            for page in self.start.cleared.clone() {
                let original = Range::sized(Addr(at), shown.len()).unwrap_or_default();
                if let Some(other) = page.intersect(original) {
                    let start = Addr(into.start.0 + (other.start.0 - at));
                    self.write(store, Range { start, end: Addr(start.0 + other.len()) }, Content::Zero);
                }
            }
        }
        let behind = Behind::Anonymous { advised: false };
        let memory =
            Memory { prot, behind, store, offset: 0, resident: false, copy_on_write: false, bound: false };
        self.space.insert(range, memory);
        self.saw_wx |= prot.is_wx();
        Ok(())
    }
}

impl ExecStopped for Model {
    fn map_image(&mut self, pieces: &[Mapping], distance: u64) -> Vec<Result<(), Fault>> {
        let opened = self.enter("openat", Range::default());
        let map = |piece: &Mapping| {
            let range = piece.range.down(distance);
            if piece.is_file() {
                opened.clone()?;
                self.map_file(range, piece.prot, piece.offset)
            } else {
                self.mmap(range, piece.prot, Source::Anonymous, Place::Back)
            }
        };
        pieces.iter().map(map).collect()
    }

    fn munmap(&mut self, range: Range) -> Result<(), Fault> {
        self.unmap(range)
    }

    fn equalize(&mut self, from: Range, to: Addr) -> Result<(), Fault> {
        self.enter("process_vm_writev", from)?;
        let bytes = self.bytes_of(from);
        self.paste(bytes, from.start, to);
        Ok(())
    }

    fn is_copied(&mut self, pieces: &[Mapping], distance: u64) -> Result<bool, Fault> {
        self.enter("maps", Range::default())?;
        let all = self.visible();
        let shown = |range: Range| -> Vec<(u64, u64, Prot, Content)> {
            let within =
                all.iter().filter_map(|(r, prot, content)| Some((r, r.intersect(range)?, prot, content)));
            within
                .map(|(r, cut, prot, content)| {
                    let content = content.shift(cut.start.0 - r.start.0);
                    (cut.start.0 - range.start.0, cut.len(), *prot, content)
                })
                .collect()
        };
        Ok(pieces.iter().all(|m| shown(m.range) == shown(m.range.down(distance))))
    }

    fn switch(&mut self, _: &Layout, new: &Layout) -> Result<(), Fault> {
        const CALL: &str = "process_vm_writev to itself";
        self.enter(CALL, Range::default())?;
        let Some(entry_pointers) = new.entry_pointers() else {
            return fail(CALL, Range::default(), EINVAL);
        };
        self.start.entry_pointers = entry_pointers;
        self.start.layout = new.clone();
        Ok(())
    }

    fn retire(&mut self, ranges: &[Range], layout: Option<&Layout>) -> Retired {
        let unmapped: Vec<_> = ranges.iter().map(|range| self.munmap(*range)).collect();
        let lost = unmapped.iter().find(|result| matches!(result, Err(Fault::Lost(_))));
        let layout = match lost {
            Some(lost) => lost.clone(),
            None => layout.map_or(Ok(()), |layout| self.set_layout(layout)),
        };
        Retired { unmapped, layout }
    }

    fn set_layout(&mut self, layout: &Layout) -> Result<(), Fault> {
        self.enter("prctl(PR_SET_MM_MAP)", Range::default())?;
        self.start.layout = layout.clone();
        Ok(())
    }
}
