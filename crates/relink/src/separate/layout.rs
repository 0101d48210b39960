// SPDX-License-Identifier: Apache-2.0
//! Chooses the distances.

use super::distances::{Distances, Part};
use super::extents::{Extents, Source};
use super::original::{base_page, is_apart_in_file, trap};
use super::plan::{Plan, Way};
use super::references;
use super::refusal::Refusal;
use crate::align::tables::{LE, Section, Tables, has_bytes, in_memory};
use crate::align::{self, base_of};
use hugelift_core::addr::{Addr, PageSize};
use hugelift_core::advice::least_code;
use hugelift_core::elf::{Machine, Segment};
use object::elf;
use object::read::elf::{ProgramHeader as _, SectionHeader as _};

/// What the caller wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Bytes of code that are worth a huge page of their own. A file with less is refused.
    pub least: u64,
}

impl Options {
    /// Returns the usual options for huge pages of size `page`: a quarter of one must be code.
    pub fn usual(page: PageSize) -> Options {
        Options { least: least_code(page.bytes()) }
    }
}

/// Chooses the way and the distances.
pub(super) fn plan(bytes: &[u8], tables: &Tables, page: PageSize, options: Options) -> Result<Plan, Refusal> {
    if let Machine::Other(number) = tables.headers.machine {
        return Err(Refusal::Machine(number));
    }
    let code: u64 = code(tables).map(|(_, s)| s.filesz).fold(0, u64::saturating_add);
    if code == 0 {
        return Err(Refusal::NoCode);
    }
    if code < options.least {
        return Err(Refusal::LittleCode { code, least: options.least, page });
    }
    let source = Source { bytes, tables, page };
    match may_move(tables).and_then(|()| move_code(&source).or_else(|why| move_all(&source, why))) {
        Err(why) => stay(&source, why),
        plan => plan,
    }
}

/// Checks that a loader may place the file anywhere, and knows its addresses.
fn may_move(tables: &Tables) -> Result<(), Refusal> {
    if !tables.headers.relocatable {
        return Err(Refusal::Fixed);
    }
    if tables.headers.dynamic.is_none_or(|dynamic| dynamic.size == 0) {
        return Err(Refusal::NoDynamic);
    }
    match tables.headers.segments.first().map_or(0, |s| s.vaddr) {
        0 => Ok(()),
        first => Err(Refusal::Base(Addr(first))),
    }
}

/// Returns the executable segments that have bytes, with their numbers.
fn code(tables: &Tables) -> impl Iterator<Item = (usize, &Segment)> {
    tables.headers.segments.iter().enumerate().filter(|(_, s)| s.prot.exec && s.filesz > 0)
}

/// Returns whether all code lies in whole huge pages that hold nothing else, wherever it lies in the file.
pub(super) fn is_separate(tables: &Tables, page: PageSize) -> bool {
    let base = base_of(page);
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
fn move_code(source: &Source) -> Result<Plan, Refusal> {
    let Source { bytes, tables, page } = *source;
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
    let start = start(by).ok_or_else(too_large)?;
    let last = segments.iter().map(end).max().unwrap_or(0);
    let parts = vec![Part { start: 0, end: front_end, by: 0 }, Part { start: first.vaddr, end: last, by }];
    let distances = Distances::new(parts).ok_or_else(too_large)?;
    is_apart_in_file(tables, first.offset, first.vaddr)?;
    front_is_known(bytes, tables, first.vaddr)?;
    keeps_alignment(tables, &distances)?;
    let mend = references::to_front(bytes, tables, front_end)?;
    let mut extents = Extents::new(tables, &distances).ok_or_else(too_large)?;
    extents.pad_down(source, number, start).ok_or_else(too_large)?;
    extents.widen(source);
    Ok(Plan { way: Way::Code, distances, extents, mend })
}

fn too_large() -> Refusal {
    Refusal::Layout(align::Refusal::TooLarge)
}

fn across(what: &str, at: u64) -> Refusal {
    Refusal::Across { what: what.into(), at }
}

/// Returns whether notes in a section of this name refer to nothing, and nothing refers to them but program
/// headers. What another note is for, its program alone knows.
fn is_known_note(name: &str) -> bool {
    let names = [".note.ABI-tag", ".note.package", ".note.dlopen", ".note.stapsdt"];
    names.contains(&name) || name.starts_with(".note.gnu.")
}

/// Checks what lies before the code: hugelift must know the references to each kind of it.
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
fn move_all(source: &Source, why: Refusal) -> Result<Plan, Refusal> {
    let Source { bytes, tables, page } = *source;
    let segments = &tables.headers.segments;
    let first = segments.first().filter(|s| s.offset == 0 && s.filesz > 0);
    let first = first.ok_or_else(|| across("its first segment", 0))?;
    let header = size_of_val(&tables.file) as u64 + size_of_val(&tables.programs[..]) as u64;
    let fill = if first.prot.exec { trap(tables.headers.machine) } else { 0 };
    let moved = |by: u64| {
        let distances = all_by(tables, by)?;
        let mut extents = Extents::new(tables, &distances).ok_or_else(too_large)?;
        if by > 0 {
            extents.add_header(header, fill);
        }
        Ok::<_, Refusal>((extents, distances))
    };
    let mut best: Option<(Extents, Distances)> = None;
    let mut refused = across("its program header table", header);
    for by in steps(tables, page)?.into_iter().filter(|&by| by >= header) {
        let (mut extents, distances) = moved(by)?;
        if let Err(why) = keeps_alignment(tables, &distances) {
            refused = why;
            continue;
        }
        extents.widen(source);
        // The most code, then the fewest constants, then the smallest file.
        let worth = |extents: &Extents| (extents.whole(source), std::cmp::Reverse(extents.constants(source)));
        if best.as_ref().is_none_or(|(best, _)| worth(&extents) > worth(best)) {
            best = Some((extents, distances));
        }
    }
    let (extents, distances) = best.ok_or(refused)?;
    if extents.whole(source) <= moved(0)?.0.whole(source) {
        return Err(Refusal::NoBetter { why: Box::new(why) });
    }
    references::to_header(bytes, tables)?;
    Ok(Plan { way: Way::All { why: Box::new(why) }, distances, extents, mend: Vec::new() })
}

/// Returns the distances that bring an end of some code to the edge of a huge page, and those by a huge page more, which
/// leaves room below; the smallest first.
///
/// Files are linked for the largest page of their machine. A multiple of that keeps all segments, and the end of RELRO,
/// in pages of their own.
fn steps(tables: &Tables, page: PageSize) -> Result<Vec<u64>, Refusal> {
    let (base, page) = (base_page(tables), page.bytes());
    let mut steps = Vec::new();
    for (_, s) in code(tables) {
        for at in [s.vaddr / base * base, up(s.vaddr.saturating_add(s.filesz), base)?] {
            let by = up(at, page)? - at;
            steps.extend([by, by.checked_add(page).ok_or_else(too_large)?]);
        }
    }
    steps.sort_unstable();
    steps.dedup();
    Ok(steps)
}

/// Returns the map by which everything moves by the same.
fn all_by(tables: &Tables, by: u64) -> Result<Distances, Refusal> {
    let segments = &tables.headers.segments;
    let start = segments.first().map_or(0, |s| s.vaddr);
    let last = segments.iter().map(end).max().unwrap_or(0);
    Distances::new(vec![Part { start, end: last, by }]).ok_or_else(too_large)
}

/// Tries [`Way::Stay`], after `why` kept all addresses from moving.
///
/// # Errors
/// Returns `why` if nothing is gained.
fn stay(source: &Source, why: Refusal) -> Result<Plan, Refusal> {
    let distances = all_by(source.tables, 0)?;
    let plain = Extents::new(source.tables, &distances).ok_or_else(too_large)?;
    let mut extents = plain.clone();
    extents.widen(source);
    if extents.whole(source) <= plain.whole(source) {
        return Err(why);
    }
    Ok(Plan { way: Way::Stay { why: Box::new(why) }, distances, extents, mend: Vec::new() })
}
