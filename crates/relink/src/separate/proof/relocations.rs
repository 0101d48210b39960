// SPDX-License-Identifier: Apache-2.0
//! Finds the addresses in the tables of relocations, and those that lie where they say.

use super::dynamic::value;
use super::file::{u32_at, u64_at};
use super::flaw::Flaw;
use super::hidden;
use super::pair::{Pair, Place};
use object::elf;

/// Bytes of an entry of a table.
const RELA: usize = 24;

/// What a kind of relocation does with its addend and with the word at its place.
enum Kind {
    /// The addend is an address. The word may be the same address, or anything.
    Relative,
    /// The addend is the address of a function that returns an address. Nobody reads the word.
    Indirect,
    /// The word is the address that a lazy loader calls by.
    Slot,
    /// A symbol decides; addend and word stay.
    Symbol,
    /// Nothing is done.
    None,
}

fn kind(machine: elf::Machine, r_type: u32) -> Option<Kind> {
    let x86 = |r_type: u32| {
        Some(match elf::RelocationType(r_type) {
            elf::R_X86_64_NONE => Kind::None,
            elf::R_X86_64_RELATIVE => Kind::Relative,
            elf::R_X86_64_IRELATIVE => Kind::Indirect,
            elf::R_X86_64_JUMP_SLOT => Kind::Slot,
            elf::R_X86_64_64
            | elf::R_X86_64_COPY
            | elf::R_X86_64_GLOB_DAT
            | elf::R_X86_64_DTPMOD64
            | elf::R_X86_64_DTPOFF64
            | elf::R_X86_64_TPOFF64
            | elf::R_X86_64_TLSDESC => Kind::Symbol,
            _ => return None,
        })
    };
    let aarch64 = |r_type: u32| {
        Some(match elf::RelocationType(r_type) {
            elf::R_AARCH64_NONE => Kind::None,
            elf::R_AARCH64_RELATIVE => Kind::Relative,
            elf::R_AARCH64_IRELATIVE => Kind::Indirect,
            elf::R_AARCH64_JUMP_SLOT => Kind::Slot,
            elf::R_AARCH64_ABS64
            | elf::R_AARCH64_COPY
            | elf::R_AARCH64_GLOB_DAT
            | elf::R_AARCH64_TLS_DTPMOD
            | elf::R_AARCH64_TLS_DTPREL
            | elf::R_AARCH64_TLS_TPREL
            | elf::R_AARCH64_TLSDESC => Kind::Symbol,
            _ => return None,
        })
    };
    if machine == elf::EM_AARCH64 { aarch64(r_type) } else { x86(r_type) }
}

/// Adds the addresses of all relocations, and returns the places that they name, sorted.
pub(super) fn check(pair: &mut Pair) -> Result<Vec<u64>, Flaw> {
    let tag = |tag| value(&pair.from, tag).unwrap_or(0);
    for other in
        [elf::DT_REL, elf::DT_TEXTREL, elf::DT_ANDROID_RELA, elf::DT_ANDROID_REL, elf::DT_ANDROID_RELR]
    {
        if value(&pair.from, other).is_some() {
            return Err(Flaw::Undecided(format!("the dynamic section has the tag {:#x}", other.0)));
        }
    }
    if tag(elf::DT_FLAGS) & elf::DF_TEXTREL.0 != 0 {
        return Err(Flaw::Undecided("the loader relocates code (DF_TEXTREL)".into()));
    }
    if tag(elf::DT_PLTRELSZ) > 0 && tag(elf::DT_PLTREL) != elf::DT_RELA.0.unsigned_abs() {
        return Err(Flaw::Undecided("the relocations of the procedure linkage table are not RELA".into()));
    }
    let entry = tag(elf::DT_RELAENT);
    if entry != 0 && entry != RELA as u64 {
        return Err(Flaw::Undecided(format!("relocations of {entry} bytes")));
    }
    let tables = [(tag(elf::DT_RELA), tag(elf::DT_RELASZ)), (tag(elf::DT_JMPREL), tag(elf::DT_PLTRELSZ))];
    let relr = (tag(elf::DT_RELR), tag(elf::DT_RELRSZ));
    let mut places = Vec::new();
    let mut done: Option<(u64, u64)> = None;
    for (at, size) in tables.into_iter().filter(|table| table.1 > 0) {
        // Some linkers let the first table contain the second.
        if done
            .is_some_and(|(start, len)| at >= start && at.saturating_add(size) <= start.saturating_add(len))
        {
            continue;
        }
        done = Some((at, size));
        table(pair, at, size, &mut places)?;
    }
    if relr.1 > 0 {
        packed(pair, relr.0, relr.1, &mut places)?;
    }
    places.sort_unstable();
    if let Some(twice) = places.windows(2).find(|w| w[0] == w[1]) {
        return Err(Flaw::Undecided(format!("two relocations of the place {:#x}", twice[0])));
    }
    Ok(places)
}

fn table(pair: &mut Pair, at: u64, size: u64, places: &mut Vec<u64>) -> Result<(), Flaw> {
    let cut = || Flaw::Header(format!("the relocations at {at:#x} are not in the file"));
    let bytes = pair.from.memory(at, size).ok_or_else(cut)?;
    for (i, entry) in bytes.chunks_exact(RELA).enumerate() {
        let here = at + (i * RELA) as u64;
        let (offset, r_type) = (u64_at(entry, 0).ok_or_else(cut)?, u32_at(entry, 8).ok_or_else(cut)?);
        let (symbol, addend) = (u32_at(entry, 12).ok_or_else(cut)?, u64_at(entry, 16).ok_or_else(cut)?);
        pair.proof.relocations += 1;
        let Some(kind) = kind(pair.from.machine(), r_type) else {
            return Err(Flaw::Undecided(format!("a relocation of type {r_type} of the place {offset:#x}")));
        };
        if matches!(kind, Kind::None) {
            // Nobody reads its place either.
            continue;
        }
        if pair.distances.part(offset).is_none() {
            return Err(Flaw::Undecided(format!(
                "a relocation of the place {offset:#x}, which is in no part"
            )));
        }
        pair.add(here, offset, "the place of a relocation")?;
        places.push(offset);
        let word = pair.from.word(offset).unwrap_or(0);
        match kind {
            Kind::Relative => {
                hidden::pointer(pair, here, addend)?;
                pair.add(here + 16, addend, "the addend of a relocation")?;
                if word != 0 && word == addend {
                    pair.add(offset, addend, "the word of a relative relocation")?;
                }
            }
            Kind::Indirect => {
                hidden::pointer(pair, here, addend)?;
                pair.add(here + 16, addend, "the addend of an indirect relocation")?;
                either(pair, offset, word, "the word of an indirect relocation");
            }
            Kind::Slot if word != 0 => pair.add(offset, word, "the word of a lazy relocation")?,
            Kind::Symbol if symbol == 0 && is_address(pair, r_type) => {
                let what =
                    format!("a relocation of the place {offset:#x} has no symbol and the addend {addend:#x}");
                return Err(Flaw::Undecided(what));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns whether a relocation without a symbol would make its addend an address.
fn is_address(pair: &Pair, r_type: u32) -> bool {
    let r_type = elf::RelocationType(r_type);
    match pair.from.machine() {
        elf::EM_AARCH64 => matches!(r_type, elf::R_AARCH64_ABS64 | elf::R_AARCH64_GLOB_DAT),
        _ => matches!(r_type, elf::R_X86_64_64 | elf::R_X86_64_GLOB_DAT),
    }
}

/// Adds a word that is replaced before anybody reads it: it may move or stay.
fn either(pair: &mut Pair, at: u64, word: u64, what: &'static str) {
    if word != 0
        && let Some(value) = pair.image(word)
    {
        pair.places.push(Place { at, len: 8, value, or: Some(word), what });
    }
}

/// Adds the entries of a packed table (`DT_RELR`) and the words that they name, and demands that the copy's
/// table names the same words.
fn packed(pair: &mut Pair, at: u64, size: u64, places: &mut Vec<u64>) -> Result<(), Flaw> {
    let cut = || Flaw::Header(format!("the packed relocations at {at:#x} are not in the file"));
    let bytes = pair.from.memory(at, size).ok_or_else(cut)?;
    let entries =
        |bytes: &[u8]| (0..bytes.len() / 8).filter_map(|i| u64_at(bytes, 8 * i)).collect::<Vec<_>>();
    let old = entries(bytes);
    for (i, &entry) in old.iter().enumerate() {
        if entry & 1 == 0 {
            pair.add(at + 8 * i as u64, entry, "an address of the packed relocations")?;
        }
    }
    let named = unpack(&old);
    let to = pair.moved(at, "the table of packed relocations")?;
    let copied = unpack(&entries(pair.to.memory(to, size).ok_or_else(cut)?));
    if copied.len() != named.len() {
        return Err(Flaw::Header(format!("{} packed relocations became {}", named.len(), copied.len())));
    }
    for (&place, &copied) in named.iter().zip(&copied) {
        if pair.distances.part(place).map(|part| place + part.by) != Some(copied) {
            let what = format!("the packed relocation of {place:#x} is one of {copied:#x} in the copy");
            return Err(Flaw::Header(what));
        }
        let Some(word) = pair.from.word(place) else {
            return Err(Flaw::Undecided(format!(
                "a packed relocation of {place:#x}, which is not in memory"
            )));
        };
        hidden::pointer(pair, place, word)?;
        pair.add(place, word, "the word of a packed relocation")?;
        places.push(place);
        pair.proof.relocations += 1;
    }
    Ok(())
}

/// Returns the places that packed relocations name: an even entry is one, and an odd one says which of the
/// 63 words behind are.
fn unpack(entries: &[u64]) -> Vec<u64> {
    let (mut all, mut next) = (Vec::new(), 0u64);
    for &entry in entries {
        if entry & 1 == 0 {
            all.push(entry);
            next = entry.wrapping_add(8);
            continue;
        }
        all.extend((0..63).filter(|bit| entry >> (bit + 1) & 1 == 1).map(|bit| next.wrapping_add(8 * bit)));
        next = next.wrapping_add(8 * 63);
    }
    all
}
