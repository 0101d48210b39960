// SPDX-License-Identifier: Apache-2.0
//! The units of debug information: their entries, line tables, lists of ranges and of locations.

use super::sections::{Found, Reader, Sections, Wrong};
use gimli::read::{RawLocListEntry, RawRngListEntry};
use gimli::{AttributeValue, Dwarf, Encoding, Expression, Operation, Reader as _, Unit};
use std::cell::RefCell;
use std::collections::HashSet;

/// `DW_OP_GNU_uninit` of GCC, which gimli does not know: the value is not initialised. It has no operand.
const GNU_UNINIT: u8 = 0xf0;
/// How deep expressions hold expressions.
const DEEPEST: u32 = 4;

/// Entries of `.debug_addr` that are offsets in thread-local data: the base of a unit's entries, and the index.
pub(super) type ThreadLocal = HashSet<(usize, usize)>;

struct Walk<'a> {
    dwarf: &'a Dwarf<Reader<'a>>,
    found: &'a RefCell<Vec<Found>>,
    /// Offsets of lists that were read, and the bases of the units that they were read for.
    ranges: HashSet<(usize, u64)>,
    locations: HashSet<(usize, u64)>,
    thread_local: ThreadLocal,
    /// How many more entries of lists are read. Lists of a hostile file overlap.
    budget: usize,
}

/// Reads all units, so that each address in them is noted.
pub(super) fn read(sections: &Sections) -> Result<ThreadLocal, Wrong> {
    let info = || Wrong::of(".debug_info");
    let mut dwarf = Dwarf::load(|id| Ok::<_, gimli::Error>(sections.reader(id))).map_err(info())?;
    dwarf.load_sup(|id| Ok::<_, gimli::Error>(empty(sections, id))).map_err(info())?;
    let mut walk = Walk {
        dwarf: &dwarf,
        found: sections.found,
        ranges: HashSet::new(),
        locations: HashSet::new(),
        thread_local: HashSet::new(),
        budget: sections.bytes(),
    };
    let mut units = dwarf.units();
    while let Some(header) = units.next().map_err(info())? {
        let unit = dwarf.unit(header).map_err(info())?;
        walk.unit(&unit)?;
    }
    let mut units = dwarf.type_units();
    while let Some(header) = units.next().map_err(Wrong::of(".debug_types"))? {
        let unit = dwarf.unit(header).map_err(Wrong::of(".debug_types"))?;
        walk.unit(&unit)?;
    }
    Ok(walk.thread_local)
}

fn empty<'a>(sections: &Sections<'a>, id: gimli::SectionId) -> Reader<'a> {
    let mut reader = sections.reader(id);
    reader.empty();
    reader
}

impl Walk<'_> {
    fn unit(&mut self, unit: &Unit<Reader>) -> Result<(), Wrong> {
        let info = || Wrong::of(".debug_info");
        if unit.encoding().address_size != 8 {
            let what = format!("addresses of {} bytes", unit.encoding().address_size);
            return Err(Wrong { section: ".debug_info", what });
        }
        let mut entries = unit.entries_raw(None).map_err(info())?;
        while !entries.is_empty() {
            let Some(abbreviation) = entries.read_abbreviation().map_err(info())? else { continue };
            for specification in abbreviation.attributes() {
                let attribute = entries.read_attribute(*specification).map_err(info())?;
                self.value(unit, attribute.value())?;
            }
        }
        if let Some(program) = &unit.line_program {
            let header = program.header();
            let mut instructions = header.instructions();
            while instructions.next_instruction(header).map_err(Wrong::of(".debug_line"))?.is_some() {}
        }
        Ok(())
    }

    /// Reads what an attribute refers to.
    fn value(&mut self, unit: &Unit<Reader>, value: AttributeValue<Reader>) -> Result<(), Wrong> {
        if let AttributeValue::Exprloc(expression) = value {
            return self.expression(unit, expression, 0).map_err(Wrong::of(".debug_info"));
        }
        let ranges = self.dwarf.attr_ranges_offset(unit, value.clone());
        if let Some(offset) = ranges.map_err(Wrong::of(".debug_rnglists"))? {
            if self.ranges.insert((offset.0, unit.low_pc)) {
                self.range_list(unit, offset).map_err(Wrong::of(".debug_ranges"))?;
            }
            return Ok(());
        }
        let locations = self.dwarf.attr_locations_offset(unit, value);
        if let Some(offset) = locations.map_err(Wrong::of(".debug_loclists"))?
            && self.locations.insert((offset.0, unit.low_pc))
        {
            self.location_list(unit, offset).map_err(Wrong::of(".debug_loc"))?;
        }
        Ok(())
    }

    fn spend(&mut self) -> gimli::Result<()> {
        self.budget = self.budget.checked_sub(1).ok_or(gimli::Error::TooManyRegisterRules)?;
        Ok(())
    }

    fn range_list(&mut self, unit: &Unit<Reader>, offset: gimli::RangeListsOffset) -> gimli::Result<()> {
        let mut entries = self.dwarf.raw_ranges(unit, offset)?;
        let mut base = unit.low_pc;
        loop {
            let noted = self.found.borrow().len();
            match entries.next()? {
                None => return Ok(()),
                Some(RawRngListEntry::BaseAddress { addr }) => base = addr,
                // Before DWARF 5: relative to the base, if there is one.
                Some(RawRngListEntry::AddressOrOffsetPair { .. }) if base != 0 => {
                    self.found.borrow_mut().truncate(noted);
                }
                Some(_) => {}
            }
            self.spend()?;
        }
    }

    fn location_list(
        &mut self,
        unit: &Unit<Reader>,
        offset: gimli::LocationListsOffset,
    ) -> gimli::Result<()> {
        let mut entries = self.dwarf.raw_locations(unit, offset)?;
        let mut base = unit.low_pc;
        loop {
            let noted = self.found.borrow().len();
            let expression = match entries.next()? {
                None => return Ok(()),
                Some(RawLocListEntry::BaseAddress { addr }) => {
                    base = addr;
                    None
                }
                Some(RawLocListEntry::BaseAddressx { .. }) => None,
                Some(RawLocListEntry::AddressOrOffsetPair { data, .. }) => {
                    if base != 0 {
                        self.found.borrow_mut().truncate(noted);
                    }
                    Some(data)
                }
                Some(
                    RawLocListEntry::StartxEndx { data, .. }
                    | RawLocListEntry::StartxLength { data, .. }
                    | RawLocListEntry::OffsetPair { data, .. }
                    | RawLocListEntry::DefaultLocation { data }
                    | RawLocListEntry::StartEnd { data, .. }
                    | RawLocListEntry::StartLength { data, .. },
                ) => Some(data),
            };
            if let Some(expression) = expression {
                self.expression(unit, expression, 0)?;
            }
            self.spend()?;
        }
    }

    /// Reads an expression. Addresses of thread-local data are offsets, which do not move.
    fn expression(
        &mut self,
        unit: &Unit<Reader>,
        expression: Expression<Reader>,
        depth: u32,
    ) -> gimli::Result<()> {
        if depth > DEEPEST {
            return Err(gimli::Error::TooManyRegisterRules);
        }
        let encoding: Encoding = unit.encoding();
        let mut left = expression.0;
        let mut before_address = None;
        while !left.is_empty() {
            let mut behind = left.clone();
            if behind.read_u8()? == GNU_UNINIT {
                left = behind;
                continue;
            }
            let noted = self.found.borrow().len();
            let operation = Operation::parse(&mut left, encoding)?;
            let address = matches!(operation, Operation::Address { .. });
            match operation {
                Operation::TLS => {
                    if let Some(length) = before_address {
                        self.found.borrow_mut().truncate(length);
                    }
                }
                Operation::ConstantIndex { index } => {
                    self.thread_local.insert((unit.addr_base.0, index.0));
                }
                Operation::EntryValue { expression } => {
                    self.expression(unit, Expression(expression), depth + 1)?;
                }
                _ => {}
            }
            before_address = address.then_some(noted);
            self.spend()?;
        }
        Ok(())
    }
}
