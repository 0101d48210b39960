// SPDX-License-Identifier: Apache-2.0
//! The debug sections of a file, and the addresses that are read from them.

use crate::align::tables::{LE, Section, has_bytes};
use crate::separate::moved::Moved;
use crate::separate::refusal::Refusal;
use gimli::{EndianSlice, LittleEndian, Relocate, RelocateReader, SectionId};
use hugelift_core::addr::Addr;
use object::elf;
use object::read::elf::SectionHeader as _;
use std::cell::RefCell;

/// An address that was read: where, and which.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Found {
    /// Offset in the file.
    pub at: u64,
    pub address: u64,
}

/// Notes the addresses that are read from one section.
#[derive(Clone, Copy, Debug)]
pub(super) struct Notes<'a> {
    /// Offset of the section in the file.
    start: u64,
    pub found: &'a RefCell<Vec<Found>>,
}

impl Relocate<usize> for Notes<'_> {
    fn relocate_address(&self, offset: usize, address: u64) -> gimli::Result<u64> {
        let at = self.start.saturating_add(offset as u64);
        self.found.borrow_mut().push(Found { at, address });
        Ok(address)
    }

    fn relocate_offset(&self, _: usize, value: usize) -> gimli::Result<usize> {
        Ok(value)
    }
}

pub(super) type Reader<'a> = RelocateReader<EndianSlice<'a, LittleEndian>, Notes<'a>>;

/// The debug sections of a file.
pub(super) struct Sections<'a> {
    named: Vec<(String, &'a [u8], u64)>,
    pub found: &'a RefCell<Vec<Found>>,
}

impl<'a> Sections<'a> {
    pub fn new(moved: &Moved<'a>, found: &'a RefCell<Vec<Found>>) -> Result<Sections<'a>, Refusal> {
        let mut named: Vec<(String, &[u8], u64)> = Vec::new();
        for section in moved.tables.sections.iter().filter(|s| has_bytes(s)) {
            let name = moved.tables.section_name(moved.bytes, section);
            if !name.starts_with(".debug_") && name != ".gdb_index" {
                continue;
            }
            let compressed = section.sh_flags(LE).0 & elf::SHF_COMPRESSED.0 != 0;
            if compressed || named.iter().any(|(known, ..)| *known == name) {
                let hint = "; first: objcopy --decompress-debug-sections";
                return Err(Refusal::Section { name, hint: if compressed { hint } else { " twice" } });
            }
            named.push((name, contents(moved, section)?, section.sh_offset(LE)));
        }
        Ok(Sections { named, found })
    }

    /// Returns the bytes of a section and its offset in the file.
    pub fn get(&self, name: &str) -> Option<(&'a [u8], u64)> {
        self.named.iter().find(|(known, ..)| known == name).map(|&(_, bytes, start)| (bytes, start))
    }

    pub fn reader(&self, id: SectionId) -> Reader<'a> {
        let (bytes, start) = self.get(id.name()).unwrap_or_default();
        RelocateReader::new(EndianSlice::new(bytes, LittleEndian), Notes { start, found: self.found })
    }

    pub fn is_empty(&self) -> bool {
        self.named.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.named.iter().map(|(_, bytes, _)| bytes.len()).sum()
    }
}

fn contents<'a>(moved: &Moved<'a>, section: &Section) -> Result<&'a [u8], Refusal> {
    let at = section.sh_offset(LE);
    let bytes = moved.slice(at, section.sh_size(LE));
    bytes.ok_or(Refusal::Damaged { what: "debug information", at: Addr(at) })
}

/// What is wrong with which section.
pub(super) struct Wrong {
    pub section: &'static str,
    pub what: String,
}

impl Wrong {
    pub fn of(section: &'static str) -> impl FnOnce(gimli::Error) -> Wrong {
        move |error| Wrong { section, what: error.to_string() }
    }
}
