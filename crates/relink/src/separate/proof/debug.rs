// SPDX-License-Identifier: Apache-2.0
//! Checks debug information in two ways. Each byte that differs must be of an address that moved. And a
//! debugger that reads both files must find the same entries, lines, ranges and places of variables, with
//! every address moved.

use super::file::{Elf, Section, u32_at, u64_at};
use super::flaw::Flaw;
use super::pair::Pair;
use gimli::{
    AttributeValue, CieOrFde, DW_AT_ranges, DW_AT_start_scope, DebuggingInformationEntry, Dwarf, EndianSlice,
    Expression, LittleEndian, Operation, Reader as _, Unit, UnwindSection,
};
use object::elf;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Returns whether a section is debug information that is read here.
pub(super) fn is_read(section: &Section) -> bool {
    const READ: &[&[u8]] = &[
        b".debug_abbrev",
        b".debug_addr",
        b".debug_aranges",
        b".debug_info",
        b".debug_line",
        b".debug_line_str",
        b".debug_loc",
        b".debug_loclists",
        b".debug_macinfo",
        b".debug_macro",
        b".debug_names",
        b".debug_pubnames",
        b".debug_pubtypes",
        b".debug_gnu_pubnames",
        b".debug_gnu_pubtypes",
        b".debug_ranges",
        b".debug_rnglists",
        b".debug_str",
        b".debug_str_offsets",
        b".debug_types",
        b".debug_gdb_scripts",
        b".debug_frame",
    ];
    READ.contains(&section.name) && section.flags & elf::SHF_COMPRESSED.0 == 0
}

/// Checks the bytes that differ in a section: each must belong to an address that moved.
pub(super) fn bytes<'a>(pair: &mut Pair<'a>, old: &Section<'a>, new: &Section<'a>) -> Result<(), Flaw> {
    let (from, to) = (pair.from.contents(old), pair.to.contents(new));
    let mut at = 0;
    while let Some(first) = from.iter().zip(to).skip(at).position(|(a, b)| a != b).map(|i| at + i) {
        let place = (first.saturating_sub(7).max(at)..=first).find(|&i| {
            let (was, is) = (u64_at(from, i), u64_at(to, i));
            was.is_some_and(|was| real(pair, was) && pair.image(was) == is)
        });
        let Some(place) = place else {
            let what = format!("section {} differs at {first:#x}, where no address has moved", old.says());
            return Err(Flaw::Header(what));
        };
        pair.proof.debug += 1;
        at = place + 8;
    }
    Ok(())
}

/// Checks the index that gdb reads: its ranges of addresses move.
pub(super) fn index<'a>(pair: &mut Pair<'a>, old: &Section<'a>, new: &Section<'a>) -> Result<(), Flaw> {
    let from = pair.from.contents(old);
    let cut = || Flaw::Undecided("the index of gdb cannot be read".into());
    let number = |at: usize| u32_at(from, at).map(|n| n as usize).ok_or_else(cut);
    let (version, start, end) = (number(0)?, number(12)?, number(16)?);
    if !(4..=9).contains(&version) || end < start || end > from.len() {
        return Err(cut());
    }
    let mut wanted = from.to_vec();
    // First and last address, and the number of the unit.
    for entry in wanted.get_mut(start..end).ok_or_else(cut)?.chunks_exact_mut(20) {
        for half in [0..8, 8..16] {
            let place = entry.get_mut(half).ok_or_else(cut)?;
            let moved = pair.moved(u64_at(place, 0).unwrap_or(0), "an address of the index of gdb")?;
            place.copy_from_slice(&moved.to_le_bytes());
            pair.proof.debug += 1;
        }
    }
    if wanted == pair.to.contents(new) {
        return Ok(());
    }
    Err(Flaw::Header("an address of the index of gdb is not where it should be".into()))
}

/// Returns whether an address is one of code or data. Others mark what the linker has dropped.
fn real(pair: &Pair, address: u64) -> bool {
    let within = |s: &&Section| s.allocated() && s.size > 0 && s.addr <= address && address <= s.end();
    address != 0 && pair.from.sections.iter().any(|s| within(&s))
}

/// Compares what a debugger reads.
pub(super) fn check(pair: &Pair) -> Result<(), Flaw> {
    if pair.from.section(b".debug_info").is_none() {
        return Ok(());
    }
    let reading = Reading { pair, from: load(&pair.from), to: load(&pair.to), code: code(pair) };
    reading.units().map_err(|why| match why {
        Wrong::Unread(e) => Flaw::Undecided(format!("the debug information cannot be read: {e}")),
        Wrong::Differs(what) => Flaw::Header(format!("debug information: {what}")),
    })
}

fn load<'a>(elf: &Elf<'a>) -> Dwarf<Slice<'a>> {
    let section = |id: gimli::SectionId| {
        let bytes = elf.section(id.name().as_bytes()).map_or(&[][..], |s| elf.contents(s));
        Ok::<_, ()>(EndianSlice::new(bytes, LittleEndian))
    };
    Dwarf::load(section).unwrap_or_default()
}

/// Returns the ranges of executable and writable sections.
fn code(pair: &Pair) -> Vec<(u64, u64)> {
    let flags = elf::SHF_EXECINSTR.0 | elf::SHF_WRITE.0;
    let sections = pair.from.sections.iter().filter(|s| s.allocated() && s.size > 0 && s.flags & flags != 0);
    sections.map(|s| (s.addr, s.end())).collect()
}

enum Wrong {
    Unread(gimli::Error),
    Differs(String),
}

impl From<gimli::Error> for Wrong {
    fn from(error: gimli::Error) -> Wrong {
        Wrong::Unread(error)
    }
}

struct Reading<'p, 'a> {
    pair: &'p Pair<'a>,
    from: Dwarf<Slice<'a>>,
    to: Dwarf<Slice<'a>>,
    code: Vec<(u64, u64)>,
}

impl<'a> Reading<'_, 'a> {
    /// Checks that `new` is where `old` moved to.
    fn moved(&self, what: &str, old: u64, new: u64) -> Result<(), Wrong> {
        let certain = self.code.iter().any(|&(start, end)| start <= old && old < end);
        let to = self.pair.image(old);
        if to == Some(new) || (!certain && old == new) {
            return Ok(());
        }
        let wanted = to.unwrap_or(old);
        Err(Wrong::Differs(format!("{what} {old:#x} is {new:#x} in the copy, and should be {wanted:#x}")))
    }

    fn units(&self) -> Result<(), Wrong> {
        let (mut left, mut right) = (self.from.units(), self.to.units());
        while let Some(old) = left.next()? {
            let Some(new) = right.next()? else { return Err(Wrong::Differs("a unit is missing".into())) };
            let (old, new) = (self.from.unit(old)?, self.to.unit(new)?);
            self.entries(&old, &new)?;
            self.lines(&old, &new)?;
        }
        self.frames()?;
        let (mut left, mut right) = (self.from.debug_aranges.headers(), self.to.debug_aranges.headers());
        while let Some(old) = left.next()? {
            let Some(new) = right.next()? else { return Err(Wrong::Differs("a table is missing".into())) };
            let (mut old, mut new) = (old.entries(), new.entries());
            while let Some(a) = old.next()? {
                let Some(b) = new.next()? else { return Err(Wrong::Differs("a range is missing".into())) };
                self.moved("the start of a range", a.address(), b.address())?;
                if a.length() != b.length() {
                    return Err(Wrong::Differs("a range has another length".into()));
                }
            }
        }
        Ok(())
    }

    /// Compares the functions of `.debug_frame`.
    fn frames(&self) -> Result<(), Wrong> {
        let frames = |elf: &Elf<'a>| {
            let bytes = elf.section(b".debug_frame").map_or(&[][..], |s| elf.contents(s));
            gimli::DebugFrame::new(bytes, LittleEndian)
        };
        let (from, to) = (frames(&self.pair.from), frames(&self.pair.to));
        let bases = gimli::BaseAddresses::default();
        let (mut left, mut right) = (from.entries(&bases), to.entries(&bases));
        while let Some(old) = left.next()? {
            match (old, right.next()?) {
                (CieOrFde::Fde(a), Some(CieOrFde::Fde(b))) => {
                    let a = a.parse(gimli::DebugFrame::cie_from_offset)?;
                    let b = b.parse(gimli::DebugFrame::cie_from_offset)?;
                    self.moved("the function of a frame", a.initial_address(), b.initial_address())?;
                }
                (CieOrFde::Cie(_), Some(CieOrFde::Cie(_))) => {}
                _ => return Err(Wrong::Differs("a frame is missing".into())),
            }
        }
        Ok(())
    }

    fn entries(&self, old: &Unit<Slice<'a>>, new: &Unit<Slice<'a>>) -> Result<(), Wrong> {
        let (mut left, mut right) = (old.entries(), new.entries());
        while let Some((_, a)) = left.next_dfs()? {
            match right.next_dfs()? {
                Some((_, b)) if b.tag() == a.tag() => self.entry(old, a, new, b)?,
                _ => return Err(Wrong::Differs("an entry is missing".into())),
            }
        }
        Ok(())
    }

    fn entry(
        &self,
        old: &Unit<Slice<'a>>,
        a: &DebuggingInformationEntry<Slice<'a>>,
        new: &Unit<Slice<'a>>,
        b: &DebuggingInformationEntry<Slice<'a>>,
    ) -> Result<(), Wrong> {
        let (mut left, mut right) = (a.attrs(), b.attrs());
        while let Some(x) = left.next()? {
            let Some(y) = right.next()? else { return Err(Wrong::Differs("an attribute is missing".into())) };
            match (x.value(), y.value()) {
                (AttributeValue::Addr(x), AttributeValue::Addr(y)) => self.moved("an address", x, y)?,
                (AttributeValue::DebugAddrIndex(i), AttributeValue::DebugAddrIndex(j)) => {
                    self.moved("an address", self.from.address(old, i)?, self.to.address(new, j)?)?;
                }
                (AttributeValue::Exprloc(x), AttributeValue::Exprloc(y)) => {
                    self.expression(old, x, new, y)?
                }
                (x, y) if x == y => {}
                _ => return Err(Wrong::Differs(format!("the attribute {} changed", x.name()))),
            }
            if [DW_AT_ranges, DW_AT_start_scope].contains(&x.name()) {
                let ranges = (self.from.attr_ranges(old, x.value())?, self.to.attr_ranges(new, y.value())?);
                if let (Some(mut left), Some(mut right)) = ranges {
                    while let Some(x) = left.next()? {
                        let Some(y) = right.next()? else {
                            return Err(Wrong::Differs("a range is missing".into()));
                        };
                        self.moved("the start of a range", x.begin, y.begin)?;
                        self.moved("the end of a range", x.end, y.end)?;
                    }
                }
                let lists = (
                    self.from.attr_ranges_offset(old, x.value())?,
                    self.to.attr_ranges_offset(new, y.value())?,
                );
                if let (Some(left), Some(right)) = lists {
                    self.raw_ranges((old, left), (new, right))?;
                }
            }
            let lists = (
                self.from.attr_locations_offset(old, x.value())?,
                self.to.attr_locations_offset(new, y.value())?,
            );
            if let (Some(left), Some(right)) = lists {
                self.raw_locations((old, left), (new, right))?;
            }
            let places = (self.from.attr_locations(old, x.value())?, self.to.attr_locations(new, y.value())?);
            if let (Some(mut left), Some(mut right)) = places {
                while let Some(x) = left.next()? {
                    let Some(y) = right.next()? else {
                        return Err(Wrong::Differs("a place is missing".into()));
                    };
                    self.moved("the start of a range", x.range.begin, y.range.begin)?;
                    self.moved("the end of a range", x.range.end, y.range.end)?;
                    self.expression(old, x.data, new, y.data)?;
                }
            }
        }
        Ok(())
    }

    /// Compares a list of ranges as it is stored: what is empty is skipped where it is read.
    fn raw_ranges(
        &self,
        (old, left): (&Unit<Slice<'a>>, gimli::RangeListsOffset),
        (new, right): (&Unit<Slice<'a>>, gimli::RangeListsOffset),
    ) -> Result<(), Wrong> {
        use gimli::RawRngListEntry::{AddressOrOffsetPair, BaseAddress, OffsetPair, StartEnd, StartLength};
        let (mut left, mut right) = (self.from.raw_ranges(old, left)?, self.to.raw_ranges(new, right)?);
        let mut base = old.low_pc;
        while let Some(x) = left.next()? {
            match (x, right.next()?) {
                (BaseAddress { addr: x }, Some(BaseAddress { addr: y })) => {
                    base = x;
                    self.moved("the base of ranges", x, y)?;
                }
                (StartEnd { begin: x, end: to }, Some(StartEnd { begin: y, end })) => {
                    self.moved("the start of a range", x, y)?;
                    self.moved("the end of a range", to, end)?;
                }
                (StartLength { begin: x, length: a }, Some(StartLength { begin: y, length: b }))
                    if a == b =>
                {
                    self.moved("the start of a range", x, y)?;
                }
                (AddressOrOffsetPair { begin: x, end: to }, Some(AddressOrOffsetPair { begin: y, end }))
                    if base == 0 =>
                {
                    self.moved("the start of a range", x, y)?;
                    self.moved("the end of a range", to, end)?;
                }
                (OffsetPair { begin: x, end: to }, Some(OffsetPair { begin: y, end }))
                    if (x, to) == (y, end) => {}
                // Indices of addresses.
                (x, Some(y)) if format!("{x:?}") == format!("{y:?}") => {}
                _ => return Err(Wrong::Differs("a range changed".into())),
            }
        }
        Ok(())
    }

    /// Compares a list of places of a variable as it is stored: what is empty is skipped where it is read.
    fn raw_locations(
        &self,
        (old, left): (&Unit<Slice<'a>>, gimli::LocationListsOffset),
        (new, right): (&Unit<Slice<'a>>, gimli::LocationListsOffset),
    ) -> Result<(), Wrong> {
        use gimli::RawLocListEntry::{
            AddressOrOffsetPair, BaseAddress, DefaultLocation, OffsetPair, StartEnd, StartLength,
        };
        let (mut left, mut right) = (self.from.raw_locations(old, left)?, self.to.raw_locations(new, right)?);
        let mut base = old.low_pc;
        while let Some(x) = left.next()? {
            let (a, b) = match (x, right.next()?) {
                (BaseAddress { addr: x }, Some(BaseAddress { addr: y })) => {
                    base = x;
                    self.moved("the base of places", x, y)?;
                    continue;
                }
                (StartEnd { begin: x, end: to, data: a }, Some(StartEnd { begin: y, end, data: b })) => {
                    self.moved("the start of a place", x, y)?;
                    self.moved("the end of a place", to, end)?;
                    (a, b)
                }
                (
                    StartLength { begin: x, length: m, data: a },
                    Some(StartLength { begin: y, length: n, data: b }),
                ) if m == n => {
                    self.moved("the start of a place", x, y)?;
                    (a, b)
                }
                (
                    AddressOrOffsetPair { begin: x, end: to, data: a },
                    Some(AddressOrOffsetPair { begin: y, end, data: b }),
                ) if base == 0 => {
                    self.moved("the start of a place", x, y)?;
                    self.moved("the end of a place", to, end)?;
                    (a, b)
                }
                (
                    AddressOrOffsetPair { begin: x, end: to, data: a },
                    Some(AddressOrOffsetPair { begin: y, end, data: b }),
                ) if (x, to) == (y, end) => (a, b),
                (OffsetPair { begin: x, end: to, data: a }, Some(OffsetPair { begin: y, end, data: b }))
                    if (x, to) == (y, end) =>
                {
                    (a, b)
                }
                (DefaultLocation { data: a }, Some(DefaultLocation { data: b })) => (a, b),
                // Indices of addresses.
                (x, Some(y)) if format!("{x:?}") == format!("{y:?}") => continue,
                _ => return Err(Wrong::Differs("the place of a variable changed".into())),
            };
            self.expression(old, a, new, b)?;
        }
        Ok(())
    }

    fn expression(
        &self,
        old: &Unit<Slice<'a>>,
        a: Expression<Slice<'a>>,
        new: &Unit<Slice<'a>>,
        b: Expression<Slice<'a>>,
    ) -> Result<(), Wrong> {
        if a == b && self.pair.distances.parts().iter().all(|part| part.by == 0) {
            return Ok(());
        }
        let (mut left, mut right) = (a.0, b.0);
        while let Some(x) = operation(&mut left, old)? {
            match (x, operation(&mut right, new)?) {
                (Operation::Address { address: x }, Some(Operation::Address { address: y })) => {
                    self.moved("the address of a variable", x, y)?;
                }
                (Operation::AddressIndex { index: x }, Some(Operation::AddressIndex { index: y })) => {
                    let (x, y) = (self.from.address(old, x)?, self.to.address(new, y)?);
                    self.moved("the address of a variable", x, y)?;
                }
                (x, Some(y)) if x == y => {}
                _ => return Err(Wrong::Differs("an expression changed".into())),
            }
        }
        Ok(())
    }

    fn lines(&self, old: &Unit<Slice<'a>>, new: &Unit<Slice<'a>>) -> Result<(), Wrong> {
        let (Some(left), Some(right)) = (old.line_program.clone(), new.line_program.clone()) else {
            return Ok(());
        };
        let (mut left, mut right) = (left.rows(), right.rows());
        while let Some((_, a)) = left.next_row()? {
            let Some((_, b)) = right.next_row()? else {
                return Err(Wrong::Differs("a line is missing".into()));
            };
            self.moved("the address of a line", a.address(), b.address())?;
            let same = (a.line(), a.file_index(), a.column(), a.end_sequence())
                == (b.line(), b.file_index(), b.column(), b.end_sequence());
            if !same {
                return Err(Wrong::Differs("a line changed".into()));
            }
        }
        Ok(())
    }
}

/// Returns the next operation of an expression. gimli does not know `DW_OP_GNU_uninit` (0xf0), which says of a value
/// that nothing has set it; it is taken for one that does nothing.
fn operation<'a>(
    left: &mut Slice<'a>,
    unit: &Unit<Slice<'a>>,
) -> gimli::Result<Option<Operation<Slice<'a>>>> {
    match left.slice().first() {
        None => Ok(None),
        Some(0xf0) => left.read_u8().map(|_| Some(Operation::Nop)),
        Some(_) => Operation::parse(left, unit.encoding()).map(Some),
    }
}
