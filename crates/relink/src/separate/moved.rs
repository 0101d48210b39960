// SPDX-License-Identifier: Apache-2.0
//! The file while its addresses are rewritten.
//!
//! Everything is read from the original and written at the original's offsets; the padding is inserted at the
//! end. So a word that two tables name is not moved twice.

use super::plan::{Plan, Way};
use super::refusal::Refusal;
use super::{hidden, names, original};
use crate::align::tables::Tables;
use hugelift_core::addr::Addr;

/// An original, and the bytes of its copy as far as they are written.
pub(super) struct Moved<'a> {
    pub bytes: &'a [u8],
    pub tables: &'a Tables,
    pub plan: &'a Plan,
    /// Stated address from which on everything moves.
    code: u64,
    /// Where the header tables lie in memory.
    headers: Vec<(u64, u64)>,
    /// The linker has a symbol for the ELF header.
    names_header: bool,
    out: Vec<u8>,
}

impl<'a> Moved<'a> {
    pub fn new(bytes: &'a [u8], tables: &'a Tables, plan: &'a Plan) -> Moved<'a> {
        // If the distance is 0, a pointer can lead anywhere.
        let moving = plan.distances.parts().iter().find(|part| part.by != 0);
        let code = moving.map_or(0, |part| part.start);
        let headers = hidden::headers(tables);
        let names_header = names::linker_symbols(bytes, tables, 1).contains(&0);
        Moved { bytes, tables, plan, code, headers, names_header, out: bytes.to_vec() }
    }

    /// Returns the offset in the file of `size` bytes at a stated address; `None` if a segment does not have
    /// all of them in the file.
    pub fn offset(&self, address: u64, size: u64) -> Option<u64> {
        let segments = &self.tables.headers.segments;
        let segment = segments.get(segments.partition_point(|s| s.vaddr <= address).checked_sub(1)?)?;
        let inside = address.checked_sub(segment.vaddr)?;
        (inside.checked_add(size)? <= segment.filesz).then_some(segment.offset.checked_add(inside)?)
    }

    /// Returns `size` bytes of the original at an offset.
    pub fn slice(&self, offset: u64, size: u64) -> Option<&'a [u8]> {
        original::slice(self.bytes, offset, size)
    }

    /// Returns `size` bytes of the original at a stated address.
    pub fn at(&self, address: u64, size: u64) -> Option<&'a [u8]> {
        self.slice(self.offset(address, size)?, size)
    }

    /// Returns the word of the original at a stated address.
    pub fn word(&self, address: u64) -> Option<u64> {
        Some(u64::from_le_bytes(self.at(address, 8)?.try_into().ok()?))
    }

    /// Writes bytes to the copy, at an offset of the original.
    pub fn write(&mut self, what: &'static str, offset: u64, bytes: &[u8]) -> Result<(), Refusal> {
        let start = usize::try_from(offset).ok();
        let end = start.and_then(|start| start.checked_add(bytes.len()));
        let place = start.zip(end).and_then(|(start, end)| self.out.get_mut(start..end));
        place.ok_or(Refusal::Damaged { what, at: Addr(offset) })?.copy_from_slice(bytes);
        Ok(())
    }

    /// Writes a word to the copy, at a stated address of the original.
    pub fn write_word(&mut self, what: &'static str, address: u64, word: u64) -> Result<(), Refusal> {
        let offset = self.offset(address, 8).ok_or(Refusal::Damaged { what, at: Addr(address) })?;
        self.write(what, offset, &word.to_le_bytes())
    }

    /// Returns the copy as far as it is written, in which nothing is inserted.
    pub fn into_bytes(self) -> Vec<u8> {
        self.out
    }

    /// Returns where the byte at the stated address `to` lies in the copy. `what` at `at` holds that address.
    pub fn image(&self, what: &'static str, at: u64, to: u64) -> Result<u64, Refusal> {
        match self.plan.way {
            Way::Stay { .. } => return Ok(to),
            Way::All { .. } if to == 0 => return Err(Refusal::OwnHeader { at: Addr(at) }),
            _ => {}
        }
        self.plan.distances.image(to).ok_or(Refusal::Between { what, at: Addr(at), to: Addr(to) })
    }

    /// Returns where the pointer `to` leads in the copy. `what` at `at` makes the loader write it.
    ///
    /// A pointer need not name the object that it belongs to: a program may hold the address of an array less
    /// an offset, which lies anywhere before it. So none may lead to what stays, but to a file header with a name.
    pub fn pointer(&self, what: &'static str, at: u64, to: u64) -> Result<u64, Refusal> {
        let stays = match self.plan.way {
            Way::Code => to < self.code && !(to == 0 && self.names_header),
            Way::All { .. } => hidden::holds(&self.headers, to),
            Way::Stay { .. } => false,
        };
        match (stays, &self.plan.way) {
            (false, _) => self.image(what, at, to),
            (true, Way::All { .. }) => Err(Refusal::OwnHeader { at: Addr(at) }),
            (true, _) => Err(Refusal::Pointer { what, at: Addr(at), to: Addr(to) }),
        }
    }
}
