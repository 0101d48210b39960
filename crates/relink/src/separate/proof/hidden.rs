// SPDX-License-Identifier: Apache-2.0
//! Searches for distances that nothing in the file records, between what moves apart: words of data relative to
//! themselves, and numbers relative to the global offset table (the large code model).
//!
//! They cannot be told from other numbers, so a file with one that may be such a distance is not proven. What
//! they may lead to is what programs have names for: header tables, notes, the name of the loader.

use super::dynamic::value;
use super::file::{Section, u32_at, u64_at};
use super::flaw::Flaw;
use super::pair::Pair;
use super::symbols::linker_defines;
use object::elf;
use std::ops::Range;

/// Notes that refer to nothing, and to which only program headers refer.
const NOTES: [&[u8]; 4] = [b".note.ABI-tag", b".note.package", b".note.dlopen", b".note.stapsdt"];

/// Sections that no program reads by a distance of its own.
const READ: [&[u8]; 3] = [b".interp", b".eh_frame", b".eh_frame_hdr"];

/// Returns the header tables of the original that are not the copy's where they lie in the copy, or that do not
/// move with the code: a distance from code or data to one of them is another in the copy.
pub(super) fn headers(pair: &Pair) -> Vec<Range<u64>> {
    let (offset, size) = pair.from.program_table();
    let (copied, copied_size) = pair.to.program_table();
    let tables = [((0, 64), (0, 64)), ((offset, size), (copied, copied_size))];
    let mut found = Vec::new();
    for ((old, old_size), (new, _)) in tables {
        let Some(at) = pair.from.address(old) else { continue };
        let to = pair.distances.part(at).map(|part| at + part.by);
        if to.is_none() || to != pair.to.address(new) || !pair.uniform() {
            found.push(at..at.saturating_add(old_size));
        }
    }
    found
}

/// Returns whether a pointer that the loader writes may lead to `address`. A pointer may be that of another
/// object, less an offset; so it must lead to what moves with the code, or to the ELF header if that has a symbol.
pub(super) fn pointer(pair: &Pair, at: u64, address: u64) -> Result<(), Flaw> {
    let by = |address: u64| pair.image(address).map(|to| to.wrapping_sub(address));
    let names_header = || address == 0 && linker_defines(pair, 0);
    let apart = !pair.uniform() && by(address) != code(pair) && !names_header();
    let header = pair.uniform() && headers(pair).iter().any(|range| range.contains(&address));
    if apart || header {
        let what = format!("the pointer that {at:#x} stands for leads to {address:#x}, which moves apart");
        return Err(Flaw::Undecided(what));
    }
    Ok(())
}

/// Returns by how much the code moves.
fn code(pair: &Pair) -> Option<u64> {
    let load = pair.from.loads.iter().find(|load| load.executable())?;
    pair.distances.part(load.vaddr).map(|part| part.by)
}

/// Returns whether a section that moves apart from the code is a table of the loader, by what names it, or a
/// note of the tools.
pub(super) fn is_known(pair: &Pair, section: &Section) -> bool {
    let tag = match elf::SectionType(section.kind) {
        elf::SHT_NOTE => return section.name.starts_with(b".note.gnu.") || NOTES.contains(&section.name),
        elf::SHT_DYNSYM => elf::DT_SYMTAB,
        elf::SHT_STRTAB => elf::DT_STRTAB,
        elf::SHT_HASH => elf::DT_HASH,
        elf::SHT_GNU_HASH => elf::DT_GNU_HASH,
        elf::SHT_GNU_VERSYM => elf::DT_VERSYM,
        elf::SHT_GNU_VERDEF => elf::DT_VERDEF,
        elf::SHT_GNU_VERNEED => elf::DT_VERNEED,
        elf::SHT_RELR => elf::DT_RELR,
        elf::SHT_RELA => {
            let tables = [(elf::DT_RELA, elf::DT_RELASZ), (elf::DT_JMPREL, elf::DT_PLTRELSZ)];
            return tables.iter().any(|&(at, size)| {
                let at = value(&pair.from, at).filter(|&at| at <= section.addr);
                at.zip(value(&pair.from, size))
                    .is_some_and(|(at, size)| section.end() <= at.saturating_add(size))
            });
        }
        _ => return READ.contains(&section.name),
    };
    value(&pair.from, tag) == Some(section.addr)
}

/// Returns the bases of numbers relative to the global offset table.
fn offset_tables(pair: &Pair) -> Vec<u64> {
    if pair.from.machine() != elf::EM_X86_64 {
        return Vec::new();
    }
    let sections = pair.from.sections.iter().filter(|s| s.allocated() && s.name.starts_with(b".got"));
    sections.map(|s| s.addr).chain(value(&pair.from, elf::DT_PLTGOT)).filter(|&at| at != 0).collect()
}

/// Searches all memory from the file that is neither code nor a table of known form.
pub(super) fn check(pair: &Pair) -> Result<(), Flaw> {
    let mut targets = headers(pair);
    let bases = offset_tables(pair);
    let main = code(pair);
    let apart = |at: u64| pair.distances.part(at).map(|part| part.by) != main;
    if !pair.uniform() {
        let named = |s: &&Section| {
            let note = s.kind == elf::SHT_NOTE.0 || s.name == b".interp";
            s.allocated() && note && apart(s.addr)
        };
        targets.extend(pair.from.sections.iter().filter(named).map(|s| s.addr..s.end()));
    }
    let Some(last) = targets.iter().map(|range| range.end).max() else { return Ok(()) };
    let hit = |to: u64| to < last && targets.iter().any(|range| range.contains(&to));
    for load in pair.from.loads.iter().filter(|load| load.filesz > 0 && !(apart(load.vaddr))) {
        let Some(bytes) = pair.from.memory(load.vaddr, load.filesz) else { continue };
        for range in data(pair, load.vaddr, load.file_end()) {
            for at in range {
                let i = usize::try_from(at - load.vaddr).unwrap_or(usize::MAX);
                let near = u32_at(bytes, i).map(|word| at.wrapping_add_signed(word.cast_signed().into()));
                // Symbols name the file header, so an unaligned word may refer to it. Only aligned words refer to other tables.
                let near = near.filter(|&to| hit(to) && (at % 4 == 0 || to < 64));
                let word = u64_at(bytes, i);
                let far = |base: &u64| word.map(|word| base.wrapping_add(word)).filter(|&to| hit(to));
                if let Some(to) = near.or_else(|| far(&at)).or_else(|| bases.iter().find_map(far)) {
                    let what = format!(
                        "what lies at {at:#x} ({}) may be a distance to {to:#x}, which moves apart",
                        pair.near(at)
                    );
                    return Err(Flaw::Undecided(what));
                }
            }
        }
    }
    Ok(())
}

/// Returns the parts of `start..end` that no section of code and no table of known form covers.
fn data(pair: &Pair, start: u64, end: u64) -> Vec<Range<u64>> {
    let mut covered: Vec<Range<u64>> = headers(pair);
    for s in pair.from.sections.iter().filter(|s| s.allocated() && s.has_bytes()) {
        let loaded = [elf::SHT_PROGBITS, elf::SHT_INIT_ARRAY, elf::SHT_FINI_ARRAY, elf::SHT_PREINIT_ARRAY];
        let table = !loaded.contains(&elf::SectionType(s.kind)) || READ.contains(&s.name);
        if table || s.flags & elf::SHF_EXECINSTR.0 != 0 {
            covered.push(s.addr..s.end());
        }
    }
    covered.sort_unstable_by_key(|range| range.start);
    let (mut found, mut at) = (Vec::new(), start);
    for range in covered {
        if range.start > at && at < end {
            found.push(at..range.start.min(end));
        }
        at = at.max(range.end);
    }
    if at < end {
        found.push(at..end);
    }
    found
}

/// The numbers in code that may be distances.
pub(super) struct Numbers {
    bases: Vec<u64>,
    headers: Vec<Range<u64>>,
    /// What does not move with the code.
    apart: Vec<Range<u64>>,
}

impl Numbers {
    pub fn new(pair: &Pair) -> Numbers {
        let (headers, main) = (headers(pair), code(pair));
        let mut apart = headers.clone();
        let parts = pair.distances.parts().iter().filter(|part| Some(part.by) != main);
        apart.extend(parts.map(|part| part.start..part.end));
        Numbers { bases: offset_tables(pair), headers, apart }
    }

    /// Returns whether `address` lies in a header table that moves apart.
    pub fn is_header(&self, address: u64) -> bool {
        self.headers.iter().any(|range| range.contains(&address))
    }

    /// Checks the operand of eight bytes of the instruction at `at`.
    pub fn operand(&self, at: u64, operand: u64) -> Result<(), Flaw> {
        let tos = self.bases.iter().map(|base| base.wrapping_add(operand));
        match tos.into_iter().find(|to| self.apart.iter().any(|range| range.contains(to))) {
            Some(to) => Err(Flaw::Undecided(format!(
                "the instruction at {at:#x} has a number that leads from the global offset table to {to:#x}"
            ))),
            None => Ok(()),
        }
    }

    /// Checks a function at `start` in which bytes are no instruction: what lies there may be anything.
    pub fn doubtful(&self, start: u64, bytes: &[u8]) -> Result<(), Flaw> {
        let header = |to: u64| self.is_header(to);
        for (at, i) in (start..).zip(0..bytes.len()) {
            let Some(word) = u32_at(bytes, i) else { break };
            let next = at.wrapping_add(4).wrapping_add_signed(word.cast_signed().into());
            // A displacement, with or without an operand behind it; or a word relative to itself.
            let near = [next.wrapping_sub(4), next, next.wrapping_add(1), next.wrapping_add(2)];
            if near.into_iter().chain([next.wrapping_add(4)]).any(header) {
                let what = format!("what lies at {at:#x}, in code with data, may refer to a header table");
                return Err(Flaw::Undecided(what));
            }
            if let Some(word) = u64_at(bytes, i).filter(|_| at % 8 == 0)
                && self.bases.iter().any(|base| header(base.wrapping_add(word)))
            {
                let what = format!("the number at {at:#x}, in code with data, may lead to a header table");
                return Err(Flaw::Undecided(what));
            }
        }
        Ok(())
    }
}
