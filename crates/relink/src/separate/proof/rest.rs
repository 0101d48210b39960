// SPDX-License-Identifier: Apache-2.0
//! Checks the sections that are not loaded: symbols, notes, debug information.

use super::debug;
use super::file::{Section, u32_at, u64_at};
use super::flaw::Flaw;
use super::pair::Pair;
use super::symbols::{SYMBOL, is_table, string, symbol, wanted};
use object::elf;

pub(super) fn check(pair: &mut Pair) -> Result<(), Flaw> {
    let pairs: Vec<(Section, Section)> =
        pair.from.sections.iter().copied().zip(pair.to.sections.iter().copied()).collect();
    for (old, new) in pairs.iter().filter(|(old, _)| !old.allocated() && old.has_bytes() && old.name != MINI)
    {
        if is_table(old) {
            symbols(pair, old, new)?;
        } else if old.kind == elf::SHT_NOTE.0 && old.name == b".note.stapsdt" {
            probes(pair, old, new)?;
        } else if old.kind == elf::SHT_NOTE.0 && old.name.starts_with(b".gnu.build.attributes") {
            attributes(pair, old, new)?;
        } else if old.kind == elf::SHT_RELA.0 {
            kept(pair, old, new)?;
        } else if old.name == b".gdb_index" {
            debug::index(pair, old, new)?;
        } else if debug::is_read(old) {
            debug::bytes(pair, old, new)?;
        } else if old.name == b".stack_sizes" {
            stacks(pair, old, new)?;
        } else if moves(old) && pair.distances.parts().iter().any(|part| part.by != 0) {
            return Err(Flaw::Undecided(format!("section {} may hold addresses", old.says())));
        } else if pair.from.contents(old) != pair.to.contents(new) {
            return Err(Flaw::Header(format!("the bytes of section {} changed", old.says())));
        } else if let Some(address) = address_of_code(pair, old) {
            let what = format!("section {} may hold {address:#x}, an address of code that moves", old.says());
            return Err(Flaw::Undecided(what));
        }
    }
    debug::check(pair)?;
    appended(pair)
}

/// Demands that no section has changed that is not loaded.
pub(super) fn unchanged(pair: &Pair) -> Result<(), Flaw> {
    let pairs = pair.from.sections.iter().zip(&pair.to.sections);
    for (old, new) in pairs.filter(|(old, _)| !old.allocated()) {
        if pair.from.contents(old) != pair.to.contents(new) {
            return Err(Flaw::Header(format!("the bytes of section {} changed", old.says())));
        }
    }
    appended(pair)
}

/// Returns whether a section may hold addresses that nothing here reads.
fn moves(section: &Section) -> bool {
    let begins = [&b".debug"[..], b".zdebug", b".stab", b".gnu.build", b".sframe"];
    let table = [elf::SHT_REL.0, elf::SHT_SYMTAB_SHNDX.0].contains(&section.kind);
    table || begins.iter().any(|name| section.name.starts_with(name))
}

/// Returns a number of eight bytes, wherever it lies in the section, that would be an address of code which moves.
fn address_of_code(pair: &Pair, section: &Section) -> Option<u64> {
    // Names; the metadata of rustc; properties of the program; what a linker prints when a function is used (a message
    // whose last bytes and the next message's first are a small number).
    let begins = [&b".note.gnu."[..], b".gnu.warning."];
    let named = section.name == b".rustc" || begins.iter().any(|name| section.name.starts_with(name));
    if section.kind == elf::SHT_STRTAB.0 || named {
        return None;
    }
    let bytes = pair.from.contents(section);
    let mut numbers = (0..bytes.len()).filter_map(|i| u64_at(bytes, i));
    numbers.find(|&number| {
        let moves = || pair.distances.part(number).is_some_and(|part| part.by != 0);
        let mut code = pair.from.loads.iter().filter(|load| load.executable());
        // Smaller numbers are of functions that the linker has dropped.
        number >= 64 && code.any(|load| load.vaddr <= number && number < load.file_end()) && moves()
    })
}

/// Checks the sizes of stacks: an address, and a number in groups of seven bits.
fn stacks<'a>(pair: &mut Pair<'a>, old: &Section<'a>, new: &Section<'a>) -> Result<(), Flaw> {
    let from = pair.from.contents(old);
    let cut = || Flaw::Undecided("the sizes of stacks cannot be read".into());
    let mut wanted = from.to_vec();
    let mut at = 0;
    while at < from.len() {
        let address = u64_at(from, at).ok_or_else(cut)?;
        if address >= 64 {
            let moved = pair.moved(address, "the function of a size of a stack")?;
            wanted.get_mut(at..at + 8).ok_or_else(cut)?.copy_from_slice(&moved.to_le_bytes());
            pair.proof.addresses += 1;
        }
        at += 8;
        while *from.get(at).ok_or_else(cut)? >= 0x80 {
            at += 1;
        }
        at += 1;
    }
    if wanted != pair.to.contents(new) {
        return Err(Flaw::Header("the address of a size of a stack is not where it should be".into()));
    }
    Ok(())
}

fn symbols<'a>(pair: &mut Pair<'a>, old: &Section<'a>, new: &Section<'a>) -> Result<(), Flaw> {
    let (from, to) = (pair.from.contents(old), pair.to.contents(new));
    let strings = pair.from.sections.get(old.link as usize).map_or(&[][..], |s| pair.from.contents(s));
    for i in 0..from.len() / SYMBOL {
        let Some(entry) = symbol(from, i) else { break };
        let name = string(strings, entry.name);
        let value = wanted(pair, &entry, name)?;
        let at = i * SYMBOL;
        let rest = |bytes: &[u8]| {
            let head = bytes.get(at..at + 8).map(<[u8]>::to_vec);
            (head, bytes.get(at + 16..at + SYMBOL).map(<[u8]>::to_vec))
        };
        let found = u64_at(to, at + 8);
        if found != Some(value) || rest(from) != rest(to) {
            let what = format!("its value in the copy is {:#x} and should be {value:#x}", found.unwrap_or(0));
            return Err(Flaw::Symbol { name: name.escape_ascii().to_string(), what });
        }
        pair.proof.symbols += 1;
    }
    Ok(())
}

/// Checks relocations that the linker has done and kept (`--emit-relocs`): their places move with their section,
/// and their addends are relative to symbols.
fn kept<'a>(pair: &mut Pair<'a>, old: &Section<'a>, new: &Section<'a>) -> Result<(), Flaw> {
    const RELA: usize = 24;
    let mut wanted = pair.from.contents(old).to_vec();
    let target = pair.from.sections.get(old.info as usize);
    if target.is_some_and(Section::allocated) {
        for entry in wanted.chunks_exact_mut(RELA) {
            let place = pair.moved(u64_at(entry, 0).unwrap_or(0), "the place of a relocation")?;
            if let Some(bytes) = entry.first_chunk_mut() {
                *bytes = place.to_le_bytes();
            }
            pair.proof.relocations += 1;
        }
    }
    if wanted == pair.to.contents(new) {
        return Ok(());
    }
    Err(Flaw::Header(format!("a relocation of section {} is not what it should be", old.says())))
}

/// Checks the notes of static probes: the addresses of a probe, of `.stapsdt.base` and of a counter.
fn probes<'a>(pair: &mut Pair<'a>, old: &Section<'a>, new: &Section<'a>) -> Result<(), Flaw> {
    let (from, to) = (pair.from.contents(old), pair.to.contents(new));
    let mut wanted = from.to_vec();
    let cut = || Flaw::Undecided("the notes of static probes cannot be read".into());
    let mut at = 0;
    while at + 12 <= from.len() {
        let [name, size] = [at, at + 4]
            .map(|at| u32_at(from, at).and_then(|n| usize::try_from(u64::from(n).next_multiple_of(4)).ok()));
        let start = name.and_then(|name| (at + 12).checked_add(name)).ok_or_else(cut)?;
        let end = size.and_then(|size| start.checked_add(size)).ok_or_else(cut)?;
        // NT_STAPSDT
        if u32_at(from, at + 8) != Some(3)
            || from.get(at + 12..at + 20) != Some(b"stapsdt\0")
            || end - start < 24
        {
            return Err(cut());
        }
        if end > from.len() {
            return Err(cut());
        }
        for place in [start, start + 8, start + 16] {
            let address = u64_at(from, place).ok_or_else(cut)?;
            if address != 0 {
                let moved = pair.moved(address, "an address of a static probe")?;
                wanted.get_mut(place..place + 8).ok_or_else(cut)?.copy_from_slice(&moved.to_le_bytes());
                pair.proof.addresses += 1;
            }
        }
        at = end;
    }
    if wanted != to {
        return Err(Flaw::Header("an address of a static probe is not where it should be".into()));
    }
    Ok(())
}

/// Checks the notes of annobin: of a function, or of all up to an address, with the first address and the one
/// behind the last. Numbers below 64 are of functions that the linker has dropped.
fn attributes<'a>(pair: &mut Pair<'a>, old: &Section<'a>, new: &Section<'a>) -> Result<(), Flaw> {
    let (from, to) = (pair.from.contents(old), pair.to.contents(new));
    let cut = || Flaw::Undecided("the notes of how code was built cannot be read".into());
    let four = |n: u32| (n as usize).checked_next_multiple_of(4);
    let mut wanted = from.to_vec();
    let mut at = 0;
    while at < from.len() {
        let field = |i: usize| u32_at(from, at + 4 * i).ok_or_else(cut);
        let (name, size, kind) = (field(0)?, field(1)?, field(2)?);
        let start = four(name).and_then(|name| (at + 12).checked_add(name)).ok_or_else(cut)?;
        if !matches!(kind, 0x100 | 0x101) || ![0, 8, 16].contains(&size) {
            return Err(cut());
        }
        for place in (0..size as usize / 8).map(|i| start + 8 * i) {
            let address = u64_at(from, place).ok_or_else(cut)?;
            if address >= 64 {
                let moved = pair.moved(address, "an address of how code was built")?;
                wanted.get_mut(place..place + 8).ok_or_else(cut)?.copy_from_slice(&moved.to_le_bytes());
                pair.proof.addresses += 1;
            }
        }
        at = start + size as usize;
    }
    if wanted != to {
        return Err(Flaw::Header("an address of how code was built is not where it should be".into()));
    }
    Ok(())
}

/// The section with debug information that is an ELF file in itself, compressed by xz; `mini` checks it.
pub(super) const MINI: &[u8] = b".gnu_debugdata";

/// Refuses bytes behind all that the headers name: programs find such bytes by their offset in the file.
fn appended(pair: &Pair) -> Result<(), Flaw> {
    let from = &pair.from;
    let rest = usize::try_from(from.end).ok().and_then(|end| from.bytes.get(end..)).unwrap_or_default();
    if rest.iter().any(|b| *b != 0) {
        return Err(Flaw::Undecided(format!("{} bytes follow behind all that the headers name", rest.len())));
    }
    Ok(())
}
