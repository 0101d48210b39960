// SPDX-License-Identifier: Apache-2.0
//! The relocations that the loader applies, and the words that they find in place.
//!
//! Sources: the psABI supplements of x86-64 ("Relocation Types") and AArch64 ("Dynamic relocations"); the
//! generic ABI's `SHT_RELR`.

use super::dynamic::Dynamic;
use super::moved::Moved;
use super::refusal::Refusal;
use crate::align::tables::{LE, in_memory};
use hugelift_core::addr::Addr;
use hugelift_core::elf::Machine;
use object::elf::{self, Rela64};
use object::read::elf::SectionHeader as _;
use object::{LittleEndian, pod};

/// What the addend of a relocation is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It does nothing.
    Nothing,
    /// The base is added: the addend is a stated address.
    Relative,
    /// The same, of a function that returns the address.
    Indirect,
    /// A symbol's address, with an addend that does not move; the word in place may be the address of the stub
    /// that binds it.
    Slot,
    /// A symbol's address or size, or an offset in thread-local data: the addend does not move.
    Symbol,
    /// As before; a symbol may be missing.
    Thread,
}

fn kind(machine: Machine, kind: u32) -> Option<Kind> {
    let known = match machine {
        Machine::X86_64 => match elf::RelocationType(kind) {
            elf::R_X86_64_NONE => Kind::Nothing,
            elf::R_X86_64_RELATIVE | elf::R_X86_64_RELATIVE64 => Kind::Relative,
            elf::R_X86_64_IRELATIVE => Kind::Indirect,
            elf::R_X86_64_JUMP_SLOT => Kind::Slot,
            elf::R_X86_64_64 | elf::R_X86_64_GLOB_DAT | elf::R_X86_64_COPY | elf::R_X86_64_SIZE64 => {
                Kind::Symbol
            }
            elf::R_X86_64_DTPMOD64
            | elf::R_X86_64_DTPOFF64
            | elf::R_X86_64_TPOFF64
            | elf::R_X86_64_TLSDESC => Kind::Thread,
            _ => return None,
        },
        Machine::AArch64 => match elf::RelocationType(kind) {
            elf::R_AARCH64_NONE => Kind::Nothing,
            elf::R_AARCH64_RELATIVE => Kind::Relative,
            elf::R_AARCH64_IRELATIVE => Kind::Indirect,
            elf::R_AARCH64_JUMP_SLOT => Kind::Slot,
            elf::R_AARCH64_ABS64 | elf::R_AARCH64_GLOB_DAT | elf::R_AARCH64_COPY => Kind::Symbol,
            elf::R_AARCH64_TLS_DTPMOD
            | elf::R_AARCH64_TLS_DTPREL
            | elf::R_AARCH64_TLS_TPREL
            | elf::R_AARCH64_TLSDESC => Kind::Thread,
            _ => return None,
        },
        Machine::Other(_) => return None,
    };
    Some(known)
}

type Entry = Rela64<LittleEndian>;

/// Writes the relocations and the words that they find in place.
pub(super) fn write(moved: &mut Moved, dynamic: &Dynamic) -> Result<(), Refusal> {
    let pair = |at, size| dynamic.get(at).zip(dynamic.get(size)).filter(|&(at, size)| at != 0 && size != 0);
    if let Some((at, _)) = pair(elf::DT_REL, elf::DT_RELSZ) {
        return Err(Refusal::Damaged { what: "relocations without addends", at: Addr(at) });
    }
    let (mut tables, mut places) = (Vec::new(), Vec::new());
    for (at, size) in
        [pair(elf::DT_RELA, elf::DT_RELASZ), pair(elf::DT_JMPREL, elf::DT_PLTRELSZ)].into_iter().flatten()
    {
        write_rela(moved, at, size, &mut places)?;
        tables.push((at, size));
    }
    if let Some((at, size)) = pair(elf::DT_RELR, elf::DT_RELRSZ) {
        write_relr(moved, at, size)?;
        tables.push((at, size));
    }
    places.sort_unstable();
    write_got(moved, dynamic, &places)?;
    for section in &moved.tables.sections {
        let (at, size) = (section.sh_addr(LE), section.sh_size(LE));
        let kind = section.sh_type(LE);
        if !matches!(kind, elf::SHT_RELA | elf::SHT_REL | elf::SHT_RELR) || size == 0 {
            continue;
        }
        if !in_memory(section) {
            write_kept(moved, section)?;
            continue;
        }
        let inside =
            |&(start, len): &(u64, u64)| at >= start && at.saturating_add(size) <= start.saturating_add(len);
        if !tables.iter().any(inside) {
            return Err(Refusal::Damaged {
                what: "relocations that the dynamic section does not name",
                at: Addr(at),
            });
        }
    }
    Ok(())
}

/// Writes relocations with addends, and adds the places that they name to `places`.
fn write_rela(moved: &mut Moved, at: u64, size: u64, places: &mut Vec<u64>) -> Result<(), Refusal> {
    let what = "the relocations";
    let damaged = |at| Refusal::Damaged { what, at: Addr(at) };
    let offset = moved.offset(at, size).ok_or_else(|| damaged(at))?;
    let bytes = moved.slice(offset, size).ok_or_else(|| damaged(at))?;
    let (entries, rest) =
        pod::slice_from_bytes::<Entry>(bytes, bytes.len() / size_of::<Entry>()).map_err(|()| damaged(at))?;
    if !rest.is_empty() {
        return Err(damaged(at));
    }
    let mut new = entries.to_vec();
    for (entry, here) in new.iter_mut().zip((at..).step_by(size_of::<Entry>())) {
        let info = entry.r_info.get(LE);
        let (symbol, number) = ((info >> 32) as u32, info as u32);
        let place = entry.r_offset.get(LE);
        let unknown = || Refusal::Relocation { kind: number, at: Addr(place) };
        let kind = kind(moved.tables.headers.machine, number).ok_or_else(unknown)?;
        if kind == Kind::Nothing {
            continue;
        }
        entry.r_offset.set(LE, moved.image(what, here, place)?);
        places.push(place);
        let addend = entry.r_addend.get(LE);
        match kind {
            Kind::Relative | Kind::Indirect => {
                if symbol != 0 {
                    return Err(unknown());
                }
                let to = moved.pointer(what, here, addend as u64)?;
                entry.r_addend.set(LE, to as i64);
                write_place(moved, kind, place, addend as u64, to)?;
            }
            Kind::Slot => write_place(moved, kind, place, 0, 0)?,
            // Without a symbol the addend would be an absolute address.
            Kind::Symbol if symbol == 0 => return Err(unknown()),
            Kind::Symbol | Kind::Thread | Kind::Nothing => {}
        }
    }
    moved.write(what, offset, pod::bytes_of_slice(&new))
}

/// Writes the word that a relocation finds in place, if it holds an address: the addend, or the stub that
/// binds the symbol at its first call. Other words are overwritten by the loader without being read.
fn write_place(moved: &mut Moved, kind: Kind, place: u64, addend: u64, to: u64) -> Result<(), Refusal> {
    let what = "a word that is relocated";
    // A place without bytes in the file is zero.
    let Some(word) = moved.word(place).filter(|&word| word != 0) else { return Ok(()) };
    if kind != Kind::Slot && word == addend {
        return moved.write_word(what, place, to);
    }
    if kind == Kind::Relative {
        return Ok(());
    }
    let segments = &moved.tables.headers.segments;
    let in_code =
        |s: &hugelift_core::elf::Segment| s.prot.exec && word >= s.vaddr && word - s.vaddr < s.memsz;
    if !segments.iter().any(in_code) {
        return Err(Refusal::Between { what, at: Addr(place), to: Addr(word) });
    }
    let to = moved.image(what, place, word)?;
    moved.write_word(what, place, to)
}

/// Writes packed relative relocations: addresses, and bits for the words behind them.
fn write_relr(moved: &mut Moved, at: u64, size: u64) -> Result<(), Refusal> {
    let what = "the packed relocations";
    let damaged = |at| Refusal::Damaged { what, at: Addr(at) };
    let bytes = moved.at(at, size).ok_or_else(|| damaged(at))?;
    let (entries, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(damaged(at));
    }
    let mut next = None::<u64>;
    for (entry, here) in entries.iter().zip((at..).step_by(8)) {
        let entry = u64::from_le_bytes(*entry);
        if entry & 1 == 0 {
            let to = moved.image(what, here, entry)?;
            moved.write_word(what, here, to)?;
            write_packed(moved, entry)?;
            next = entry.checked_add(8);
            continue;
        }
        let first = next.ok_or_else(|| damaged(here))?;
        for bit in (0..63).filter(|bit| entry >> (bit + 1) & 1 == 1) {
            let place = first.checked_add(8 * bit).ok_or_else(|| damaged(here))?;
            // All words of one entry move by one distance.
            if !moved.plan.distances.keeps(first, place) {
                return Err(damaged(here));
            }
            write_packed(moved, place)?;
        }
        next = first.checked_add(8 * 63);
    }
    Ok(())
}

fn write_packed(moved: &mut Moved, place: u64) -> Result<(), Refusal> {
    let what = "a word that is relocated";
    let word = moved.word(place).ok_or(Refusal::Damaged { what, at: Addr(place) })?;
    let to = moved.pointer(what, place, word)?;
    moved.write_word(what, place, to)
}

/// Writes the address of the dynamic section in the global offset table: its first word, or, where a linker has joined two
/// tables (GNU ld for AArch64 with `-z now`), another one that no relocation names.
fn write_got(moved: &mut Moved, dynamic: &Dynamic, relocated: &[u64]) -> Result<(), Refusal> {
    let what = "the global offset table";
    let own = moved.tables.sections.iter().filter(|s| s.sh_type(LE) == elf::SHT_PROGBITS && in_memory(s));
    let named = own.filter(|s| moved.tables.section_name(moved.bytes, s).starts_with(".got"));
    let words = named
        .flat_map(|s| (s.sh_addr(LE)..).step_by(8).take(usize::try_from(s.sh_size(LE) / 8).unwrap_or(0)));
    let words: Vec<u64> = words.chain(dynamic.get(elf::DT_PLTGOT)).collect();
    for at in words.into_iter().filter(|at| relocated.binary_search(at).is_err()) {
        if moved.word(at) == Some(dynamic.address) {
            let to = moved.image(what, at, dynamic.address)?;
            moved.write_word(what, at, to)?;
        }
    }
    Ok(())
}

/// Writes the places of relocations that the linker kept (`--emit-relocs`). Their addends are relative to
/// symbols.
fn write_kept(moved: &mut Moved, section: &crate::align::tables::Section) -> Result<(), Refusal> {
    let what = "the kept relocations";
    let offset = section.sh_offset(LE);
    let damaged = || Refusal::Damaged { what, at: Addr(offset) };
    let target = usize::try_from(section.sh_info(LE)).ok().and_then(|i| moved.tables.sections.get(i));
    // Those of debug information have places in it, which has no address.
    if !target.is_some_and(in_memory) {
        return Ok(());
    }
    if section.sh_type(LE) != elf::SHT_RELA {
        return Err(damaged());
    }
    let bytes = moved.slice(offset, section.sh_size(LE)).ok_or_else(damaged)?;
    let count = bytes.len() / size_of::<Entry>();
    let (entries, _) = pod::slice_from_bytes::<Entry>(bytes, count).map_err(|()| damaged())?;
    let mut new = entries.to_vec();
    for entry in &mut new {
        let place = entry.r_offset.get(LE);
        entry.r_offset.set(LE, moved.image(what, offset, place)?);
    }
    moved.write(what, offset, pod::bytes_of_slice(&new))
}
