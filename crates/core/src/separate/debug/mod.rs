// SPDX-License-Identifier: Apache-2.0
//! Debug information (DWARF 2 to 5): finds each address in it, and writes its image.
//!
//! gimli reads; a reader that notes where each address was read says which bytes to change. Nothing changes its
//! length.

mod tables;
mod units;

use super::Refusal;
use super::moved::Moved;
use crate::addr::Addr;
use crate::align::tables::{LE, Section, has_bytes};
use gimli::{EndianSlice, LittleEndian, Relocate, RelocateReader, SectionId};
use object::elf;
use object::read::elf::SectionHeader as _;
use std::cell::RefCell;

/// An address that was read: where, and which.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Found {
    /// Offset in the file.
    at: u64,
    address: u64,
}

/// Notes the addresses that are read from one section.
#[derive(Clone, Copy, Debug)]
struct Notes<'a> {
    /// Offset of the section in the file.
    start: u64,
    found: &'a RefCell<Vec<Found>>,
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

type Reader<'a> = RelocateReader<EndianSlice<'a, LittleEndian>, Notes<'a>>;

/// The debug sections of a file.
struct Sections<'a> {
    named: Vec<(String, &'a [u8], u64)>,
    found: &'a RefCell<Vec<Found>>,
}

impl<'a> Sections<'a> {
    fn new(moved: &Moved<'a>, found: &'a RefCell<Vec<Found>>) -> Result<Sections<'a>, Refusal> {
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
    fn get(&self, name: &str) -> Option<(&'a [u8], u64)> {
        self.named.iter().find(|(known, ..)| known == name).map(|&(_, bytes, start)| (bytes, start))
    }

    fn reader(&self, id: SectionId) -> Reader<'a> {
        let (bytes, start) = self.get(id.name()).unwrap_or_default();
        RelocateReader::new(EndianSlice::new(bytes, LittleEndian), Notes { start, found: self.found })
    }

    fn bytes(&self) -> usize {
        self.named.iter().map(|(_, bytes, _)| bytes.len()).sum()
    }
}

fn contents<'a>(moved: &Moved<'a>, section: &Section) -> Result<&'a [u8], Refusal> {
    let at = section.sh_offset(LE);
    let bytes = moved.slice(at, section.sh_size(LE));
    bytes.ok_or(Refusal::Damaged { what: "debug information", at: Addr(at) })
}

/// The smallest address of code in an object at address 0. Linkers put smaller numbers (0, 1) in the place of
/// addresses of functions that they left out.
pub(super) const LEFT_OUT: u64 = 64;

/// Writes all addresses in debug information.
pub(super) fn write(moved: &mut Moved) -> Result<(), Refusal> {
    let found = RefCell::new(Vec::new());
    let sections = Sections::new(moved, &found)?;
    if sections.named.is_empty() {
        return Ok(());
    }
    let thread_local = units::read(&sections).map_err(|what| damaged(&sections, what))?;
    tables::read(&sections, &thread_local).map_err(|what| damaged(&sections, what))?;
    let mut found = found.into_inner();
    found.sort_unstable();
    found.dedup();
    for Found { at, address } in found {
        let left_out = !(LEFT_OUT..u64::MAX - 1).contains(&address);
        if left_out {
            continue;
        }
        let what = "debug information";
        let to = moved.plan.distances.image(address).ok_or(Refusal::Between {
            what,
            at: Addr(at),
            to: Addr(address),
        })?;
        moved.write(what, at, &to.to_le_bytes())?;
    }
    Ok(())
}

/// What is wrong with which section.
struct Wrong {
    section: &'static str,
    what: String,
}

impl Wrong {
    fn of(section: &'static str) -> impl FnOnce(gimli::Error) -> Wrong {
        move |error| Wrong { section, what: error.to_string() }
    }
}

fn damaged(sections: &Sections, wrong: Wrong) -> Refusal {
    let at = sections.get(wrong.section).map_or(0, |(_, start)| start);
    Refusal::Debug { section: wrong.section, at: Addr(at), what: wrong.what }
}
