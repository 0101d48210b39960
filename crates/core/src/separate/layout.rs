// SPDX-License-Identifier: Apache-2.0
//! Chooses the distances.

use super::references;
use super::{Distances, Options, Part, Refusal};
use crate::addr::{Addr, PageSize};
use crate::align::tables::{LE, Section, Tables, has_bytes, names_bytes};
use crate::align::{self, BASE_PAGE, base_of};
use crate::elf::{Machine, Segment};
use object::elf;
use object::read::elf::{ProgramHeader as _, SectionHeader as _};

/// How the code was separated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Way {
    /// The code and all behind it moved; what lies before it stayed.
    Code,
    /// Everything moved, behind a new ELF header, because the code could not move alone.
    All {
        /// Why it could not.
        why: Box<Refusal>,
    },
}

/// The distances, and what is inserted into the file for them.
pub(super) struct Plan {
    pub way: Way,
    pub distances: Distances,
    /// The offset in the file at which bytes are inserted.
    pub at: u64,
    /// How many. The segment that starts at this offset is extended downwards by them.
    pub inserted: u64,
    /// The byte that they are filled with.
    pub fill: u8,
    /// References of code that must be written anew.
    pub mend: Vec<references::Reference>,
}

impl Plan {
    /// Returns where the byte at `offset` of the input lies before offsets are aligned.
    pub fn shifted(&self, offset: u64) -> Option<u64> {
        if offset < self.at { Some(offset) } else { offset.checked_add(self.inserted) }
    }

    /// Returns the stated address of the segment that is extended downwards, and by how many bytes.
    pub fn extended(&self, tables: &Tables) -> Option<(u64, u64)> {
        let starts = |s: &&Segment| s.offset == self.at && s.filesz > 0;
        tables.headers.segments.iter().find(starts).map(|s| (s.vaddr, self.inserted))
    }
}

/// The traps of x86-64 are one byte: `int3`. On AArch64 four zeros are `udf`.
fn trap(machine: Machine) -> u8 {
    if machine == Machine::X86_64 { 0xcc } else { 0 }
}

/// Chooses the way and the distances.
pub(super) fn plan(bytes: &[u8], tables: &Tables, page: PageSize, options: Options) -> Result<Plan, Refusal> {
    if let Machine::Other(number) = tables.headers.machine {
        return Err(Refusal::Machine(number));
    }
    if !tables.headers.relocatable {
        return Err(Refusal::Fixed);
    }
    if tables.headers.dynamic.is_none_or(|dynamic| dynamic.size == 0) {
        return Err(Refusal::NoDynamic);
    }
    let code: u64 = code(tables).map(|(_, s)| s.filesz).fold(0, u64::saturating_add);
    if code == 0 {
        return Err(Refusal::NoCode);
    }
    if code < options.least {
        return Err(Refusal::LittleCode { code, least: options.least, page });
    }
    let first = tables.headers.segments.first().map_or(0, |s| s.vaddr);
    if first != 0 {
        return Err(Refusal::Base(Addr(first)));
    }
    match move_code(bytes, tables, page) {
        Ok(plan) => Ok(plan),
        Err(why) => move_all(bytes, tables, page, why),
    }
}

/// Returns the executable segments that have bytes, with their numbers.
fn code(tables: &Tables) -> impl Iterator<Item = (usize, &Segment)> {
    tables.headers.segments.iter().enumerate().filter(|(_, s)| s.prot.exec && s.filesz > 0)
}

/// Returns the page size that the file is linked for: no smaller page can be the base page of a machine that
/// runs it.
pub(super) fn base_page(tables: &Tables) -> u64 {
    let least = tables.headers.segments.iter().map(|s| s.align).min().unwrap_or(BASE_PAGE);
    match tables.headers.machine {
        Machine::AArch64 if least >= 0x10000 => 0x10000,
        Machine::AArch64 if least >= 0x4000 => 0x4000,
        _ => BASE_PAGE,
    }
}

/// Returns whether no page of size `base` would hold parts of two segments, if all moved by `by`.
fn apart(tables: &Tables, by: u64, base: u64) -> bool {
    tables.headers.segments.windows(2).all(|pair| {
        let [last, first] =
            [end(&pair[0]).saturating_sub(1), pair[1].vaddr].map(|at| at.saturating_add(by) / base);
        let before = [end(&pair[0]).saturating_sub(1), pair[1].vaddr].map(|at| at / base);
        last < first || before[0] == before[1]
    })
}

/// Returns whether all code lies in whole huge pages that hold nothing else, wherever it lies in the file.
pub(super) fn is_separate(tables: &Tables, page: PageSize) -> bool {
    let base = base_page(tables);
    let is_whole = |s: &Segment| {
        let end = s.vaddr.checked_add(s.filesz).and_then(|end| end.checked_next_multiple_of(base));
        s.vaddr.is_multiple_of(page.bytes()) && end.is_some_and(|end| end.is_multiple_of(page.bytes()))
    };
    code(tables).next().is_some() && code(tables).all(|(_, s)| is_whole(s))
}

fn up(value: u64, to: u64) -> Result<u64, Refusal> {
    value.checked_next_multiple_of(to).ok_or(Refusal::Layout(align::Refusal::TooLarge))
}

fn end(segment: &Segment) -> u64 {
    segment.vaddr.saturating_add(segment.memsz)
}

/// Tries [`Way::Code`].
fn move_code(bytes: &[u8], tables: &Tables, page: PageSize) -> Result<Plan, Refusal> {
    let base = base_page(tables);
    let segments = &tables.headers.segments;
    let (number, first) = code(tables).next().ok_or(Refusal::NoCode)?;
    // A program may have more than one executable segment (BOLT): the largest is placed.
    let (_, largest) = code(tables).max_by_key(|(_, s)| s.filesz).ok_or(Refusal::NoCode)?;
    let front = segments.get(..number).filter(|front| !front.is_empty());
    let front = front.ok_or_else(|| across("its first segment", first.offset))?;
    if first.vaddr % base != 0 || first.offset % base != 0 {
        return Err(across("the page that its code shares with what lies before it,", first.offset));
    }
    let front_end = front.last().map_or(0, end);
    let page = page.bytes();
    let code_end = up(largest.vaddr.saturating_add(largest.filesz), base)?;
    let mut by = up(code_end, page)? - code_end;
    let start = |by: u64| first.vaddr.checked_add(by).map(|start| start / page * page);
    if start(by).is_none_or(|start| start < front_end) {
        by += page;
    }
    let too_large = || Refusal::Layout(align::Refusal::TooLarge);
    let start = start(by).ok_or_else(too_large)?;
    let last = segments.iter().map(end).max().unwrap_or(0);
    let parts = vec![Part { start: 0, end: front_end, by: 0 }, Part { start: first.vaddr, end: last, by }];
    let distances = Distances::new(parts).ok_or_else(too_large)?;
    let inserted = (first.vaddr + by).checked_sub(start).ok_or_else(too_large)?;
    stays_whole(tables, first)?;
    front_is_known(bytes, tables, first.vaddr)?;
    keeps_alignment(tables, &distances)?;
    let mend = references::to_front(bytes, tables, front_end)?;
    let fill = trap(tables.headers.machine);
    Ok(Plan { way: Way::Code, distances, at: first.offset, inserted, fill, mend })
}

fn across(what: &str, at: u64) -> Refusal {
    Refusal::Across { what: what.into(), at }
}

/// Checks that nothing lies across the offset at which the code begins, and that what lies before or behind
/// it in memory lies so in the file.
fn stays_whole(tables: &Tables, code: &Segment) -> Result<(), Refusal> {
    let at = code.offset;
    let whole = |what: String, offset: u64, size: u64| {
        let fits = offset >= at || offset.saturating_add(size) <= at;
        fits.then_some(()).ok_or(Refusal::Across { what, at })
    };
    let same_side = |what: &dyn Fn() -> String, address: u64, offset: u64| {
        let same = (address < code.vaddr) == (offset < at);
        same.then_some(()).ok_or_else(|| Refusal::Across { what: what(), at })
    };
    for s in tables.headers.segments.iter().filter(|s| s.filesz > 0) {
        let what = || format!("the segment at {:#x}", s.vaddr);
        whole(what(), s.offset, s.filesz)?;
        same_side(&what, s.vaddr, s.offset)?;
    }
    for p in tables.programs.iter().filter(|p| names_bytes(p)) {
        let what = || format!("the piece at {:#x}", p.p_vaddr(LE));
        whole(what(), p.p_offset(LE), p.p_filesz(LE))?;
        same_side(&what, p.p_vaddr(LE), p.p_offset(LE))?;
    }
    for (i, s) in tables.sections.iter().enumerate().filter(|(_, s)| has_bytes(s)) {
        let what = || format!("section {i}");
        whole(what(), s.sh_offset(LE), s.sh_size(LE))?;
        if in_memory(s) {
            same_side(&what, s.sh_addr(LE), s.sh_offset(LE))?;
        }
    }
    for (what, (offset, size)) in
        [("the program header table", tables.program_table()), ("the section table", tables.section_table())]
    {
        whole(what.into(), offset, size)?;
    }
    Ok(())
}

/// Returns whether a section is part of the program in memory.
pub(super) fn in_memory(section: &Section) -> bool {
    section.sh_flags(LE).0 & elf::SHF_ALLOC.0 != 0
}

/// Returns whether notes in a section of this name refer to nothing, and nothing refers to them but program
/// headers. What another note is for, its program alone knows.
fn is_known_note(name: &str) -> bool {
    let names = [".note.ABI-tag", ".note.package", ".note.dlopen", ".note.stapsdt"];
    names.contains(&name) || name.starts_with(".note.gnu.")
}

/// Checks that all that lies before the code is of a kind of which the references are known.
fn front_is_known(bytes: &[u8], tables: &Tables, code: u64) -> Result<(), Refusal> {
    let name = |s: &Section| tables.section_name(bytes, s);
    let mut covered = vec![(0, size_of_val(&tables.file) as u64), tables.program_table()];
    for section in tables.sections.iter().filter(|s| in_memory(s) && s.sh_addr(LE) < code) {
        // Assemblers give a section any kind, so the name must be the linker's too.
        let named = name(section);
        let known = match section.sh_type(LE) {
            elf::SHT_NULL => continue,
            elf::SHT_NOTE => is_known_note(&named),
            elf::SHT_STRTAB => named == ".dynstr",
            elf::SHT_DYNSYM => named == ".dynsym",
            elf::SHT_HASH => named == ".hash",
            elf::SHT_GNU_HASH => named == ".gnu.hash",
            elf::SHT_GNU_VERSYM | elf::SHT_GNU_VERNEED | elf::SHT_GNU_VERDEF => {
                named.starts_with(".gnu.version")
            }
            elf::SHT_RELA | elf::SHT_RELR => true,
            elf::SHT_PROGBITS => named == ".interp",
            _ => false,
        };
        let end = section.sh_addr(LE).saturating_add(section.sh_size(LE));
        if !known || end > code {
            return Err(Refusal::Front { name: name(section), at: Addr(section.sh_addr(LE)) });
        }
        if has_bytes(section) {
            covered.push((section.sh_offset(LE), section.sh_size(LE)));
        }
    }
    covered.sort_unstable();
    for segment in tables.headers.segments.iter().filter(|s| s.vaddr < code) {
        if segment.prot.write || segment.memsz != segment.filesz {
            let name = "that its program header names".to_string();
            return Err(Refusal::Front { name, at: Addr(segment.vaddr) });
        }
        let (mut at, end) = (segment.offset, segment.offset.saturating_add(segment.filesz));
        for &(start, size) in covered.iter().chain([&(end, 0)]) {
            let gap = usize::try_from(at).ok().zip(usize::try_from(start.min(end)).ok());
            let gap = gap.and_then(|(from, to)| bytes.get(from..to)).unwrap_or_default();
            if let Some(place) = gap.iter().position(|&b| b != 0) {
                let offset = at - segment.offset + place as u64;
                return Err(Refusal::Uncovered(Addr(segment.vaddr.saturating_add(offset))));
            }
            at = at.max(start.saturating_add(size));
        }
    }
    Ok(())
}

/// Checks that everything stays aligned as its header states.
fn keeps_alignment(tables: &Tables, distances: &Distances) -> Result<(), Refusal> {
    let check = |what: &dyn Fn() -> String, at: u64, align: u64| {
        let by = distances.image(at).map_or(0, |to| to - at);
        // An alignment that the input violates need not hold in the output.
        let holds = align < 2 || !at.is_multiple_of(align) || by.is_multiple_of(align);
        holds.then_some(()).ok_or_else(|| Refusal::Alignment { what: what(), at: Addr(at), align, by })
    };
    for (i, s) in tables.sections.iter().enumerate().filter(|(_, s)| in_memory(s)) {
        check(&|| format!("section {i}"), s.sh_addr(LE), s.sh_addralign(LE))?;
    }
    for p in tables.programs.iter().filter(|p| p.p_type(LE) == elf::PT_TLS) {
        let (at, align) = (p.p_vaddr(LE), p.p_align(LE));
        let by = distances.image(at).map_or(0, |to| to - at);
        // The offset of the block within its alignment is part of each thread's layout.
        if align > 1 && !by.is_multiple_of(align) {
            return Err(Refusal::Alignment { what: "thread-local data".into(), at: Addr(at), align, by });
        }
    }
    Ok(())
}

/// Tries [`Way::All`], after `why` kept the code from moving alone.
///
/// AArch64 has base pages of 4, 16 and 64 kB, and files are linked for the largest. A distance in smaller steps
/// still lets a machine with larger pages load the file, if no page holds parts of two segments; only RELRO ends
/// earlier there.
fn move_all(bytes: &[u8], tables: &Tables, page: PageSize, why: Refusal) -> Result<Plan, Refusal> {
    let (linked, small) = (base_page(tables), base_of(page));
    match move_by(bytes, tables, page, small.min(linked), why.clone()) {
        Ok(plan) if small < linked && !apart(tables, plan.inserted, linked) => {
            move_by(bytes, tables, page, linked, why)
        }
        plan => plan,
    }
}

/// Moves everything by a multiple of `base`.
fn move_by(bytes: &[u8], tables: &Tables, page: PageSize, base: u64, why: Refusal) -> Result<Plan, Refusal> {
    let segments = &tables.headers.segments;
    let first = segments.first().filter(|s| s.offset == 0 && s.filesz > 0);
    let first = first.ok_or_else(|| across("its first segment", 0))?;
    let last = segments.iter().map(end).max().unwrap_or(0);
    let (large, too_large) = (page.bytes(), || Refusal::Layout(align::Refusal::TooLarge));
    let mut best: Option<(u64, u64)> = None;
    for (number, s) in code(tables) {
        let (start, end) = (s.vaddr / base * base, up(s.vaddr.saturating_add(s.filesz), base)?);
        // The first segment is filled up at its start. Another one begins where the one before it ends.
        let at = if number == 0 { end } else { start };
        let by = up(at, large)? - at;
        let whole = whole_code(tables, by, large, base)?;
        if best.is_none_or(|(most, least)| (whole, u64::MAX - by) > (most, u64::MAX - least)) {
            best = Some((whole, by));
        }
    }
    let (whole, by) = best.ok_or(Refusal::NoCode)?;
    if by == 0 || whole <= whole_code(tables, 0, large, base)? {
        return Err(Refusal::NoBetter { why: Box::new(why) });
    }
    let header = size_of_val(&tables.file) as u64 + size_of_val(&tables.programs[..]) as u64;
    if by < header {
        return Err(across("its program header table", by));
    }
    let distances = Distances::new(vec![Part { start: 0, end: last, by }]).ok_or_else(too_large)?;
    keeps_alignment(tables, &distances)?;
    references::to_header(bytes, tables)?;
    let fill = if first.prot.exec { trap(tables.headers.machine) } else { 0 };
    let way = Way::All { why: Box::new(why) };
    Ok(Plan { way, distances, at: 0, inserted: by, fill, mend: Vec::new() })
}

/// Returns the bytes of code in whole huge pages, if everything moves by `by`.
fn whole_code(tables: &Tables, by: u64, page: u64, base: u64) -> Result<u64, Refusal> {
    let mut sum = 0u64;
    for (number, s) in code(tables) {
        let extended = number == 0 && by > 0;
        let start = if extended { 0 } else { (s.vaddr / base * base).saturating_add(by) };
        let end = up(s.vaddr.saturating_add(s.filesz), base)?.saturating_add(by);
        sum = sum.saturating_add((end / page * page).saturating_sub(up(start, page)?));
    }
    Ok(sum)
}
