// SPDX-License-Identifier: Apache-2.0
//! Demands every byte of memory: the same at the moved place, but for the places that hold addresses, and
//! padding in between.

use super::file::{Elf, Program, u32_at};
use super::flaw::Flaw;
use super::pair::{Pair, Place};
use object::LittleEndian as LE;
use object::elf;

/// Bytes of the file header of a 64-bit file.
const FILE_HEADER: u64 = size_of::<elf::FileHeader64<LE>>() as u64;

pub(super) fn check(pair: &mut Pair) -> Result<(), Flaw> {
    let mut places = std::mem::take(&mut pair.places);
    places.sort_by_key(|place| (place.at, place.len, place.value));
    // One place may be found twice, if both say the same.
    places.dedup_by(|a, b| (a.at, a.len, a.value) == (b.at, b.len, b.value));
    for two in places.windows(2) {
        if two[0].at.saturating_add(two[0].len) > two[1].at {
            let [a, b] = [two[0], two[1]];
            return Err(Flaw::Undecided(format!(
                "{} at {:#x} and {} at {:#x} overlap",
                a.what, a.at, b.what, b.at
            )));
        }
    }
    for place in &places {
        holds(pair, place)?;
        pair.proof.addresses += 1;
    }
    let mut skipped: Vec<(u64, u64)> = places.iter().map(|p| (p.at, p.at.saturating_add(p.len))).collect();
    let tables = header_tables(&pair.from);
    for &(start, end) in &tables {
        old_headers(pair, start, end)?;
        skipped.retain(|&(from, to)| to <= start || from >= end);
        skipped.push((start, end));
    }
    skipped.sort_unstable();
    let mut covered: Vec<(u64, u64)> = Vec::new();
    for load in pair.from.loads.clone() {
        same(pair, &load, &skipped, &mut covered)?;
    }
    padding(pair, covered)
}

/// Checks what a place holds in the copy.
fn holds(pair: &Pair, place: &Place) -> Result<(), Flaw> {
    let near = || pair.near(place.at);
    let at = pair.distances.part(place.at).map(|part| place.at.wrapping_add(part.by));
    let bytes = at.and_then(|at| pair.to.memory(at, place.len));
    let Some(bytes) = bytes else {
        return Err(Flaw::Header(format!(
            "{} at {:#x} ({}) is not in the copy",
            place.what,
            place.at,
            near()
        )));
    };
    let mut word = [0; 8];
    word[..bytes.len().min(8)].copy_from_slice(bytes.get(..8).unwrap_or(bytes));
    let found = u64::from_le_bytes(word);
    if found == place.value || place.or == Some(found) {
        return Ok(());
    }
    Err(Flaw::Address { what: place.what, at: place.at, near: near(), expected: place.value, found })
}

/// Returns where the file header and the program headers are loaded, as ranges of addresses.
fn header_tables(elf: &Elf) -> Vec<(u64, u64)> {
    let (offset, size) = elf.program_table();
    let tables = [(0, FILE_HEADER), (offset, size)];
    tables.iter().filter_map(|&(offset, size)| elf.address(offset).map(|at| (at, at + size))).collect()
}

/// Checks the image of a header table: it is the copy's own, which was checked before, or is left as it was
/// behind new tables.
fn old_headers(pair: &Pair, start: u64, end: u64) -> Result<(), Flaw> {
    let size = end - start;
    let Some(to) = pair.distances.part(start).map(|part| start + part.by) else {
        return Err(Flaw::Header("the header tables are in no part".into()));
    };
    if header_tables(&pair.to).contains(&(to, to + size)) {
        return Ok(());
    }
    let (old, new) = (pair.from.memory(start, size), pair.to.memory(to, size));
    if old.is_none() || old != new {
        return Err(Flaw::Header(format!("the old header table at {to:#x} of the copy is not as it was")));
    }
    Ok(())
}

/// Compares one segment, but for `skipped`.
fn same(
    pair: &mut Pair,
    load: &Program,
    skipped: &[(u64, u64)],
    covered: &mut Vec<(u64, u64)>,
) -> Result<(), Flaw> {
    let mut at = load.vaddr;
    while at < load.end() {
        let Some(part) = pair.distances.part(at) else {
            return Err(Flaw::Header(format!("the memory at {at:#x} is in no part")));
        };
        let (start, mut end) = (at, part.end.min(load.end()));
        if at < load.file_end() {
            end = end.min(load.file_end());
        }
        let Some(target) = pair.to.load(start + part.by) else {
            return Err(Flaw::Header(format!("the memory at {at:#x} is not in the copy")));
        };
        end = end.min(target.end() - part.by);
        if target.flags != load.flags && !lies_with_code(pair, load, target, start + part.by, end + part.by) {
            return Err(Flaw::Header(format!("the memory at {at:#x} has other protections in the copy")));
        }
        if start < load.file_end() {
            end = end.min(target.file_end().saturating_sub(part.by));
            if end <= start {
                return Err(Flaw::Header(format!("the memory at {at:#x} has no bytes in the copy")));
            }
            compare(pair, start, end, part.by, skipped)?;
        } else {
            zeros(pair, start + part.by, end + part.by)?;
        }
        pair.proof.bytes += end - start;
        covered.push((start + part.by, end + part.by));
        at = end;
    }
    Ok(())
}

/// Returns whether `start..end` of the copy's segment `target` may be executable, though it was only readable in `load`:
/// it lies in the first or last huge page of code, by the alignment that the segment states.
fn lies_with_code(pair: &Pair, load: &Program, target: &Program, start: u64, end: u64) -> bool {
    let [readable, executable] = [elf::PF_R.0, elf::PF_R.0 | elf::PF_X.0];
    let image = |code: &Program| pair.distances.part(code.vaddr).map(|part| code.vaddr.wrapping_add(part.by));
    let shares = |code: &Program| {
        let Some(at) = image(code).filter(|at| target.vaddr <= *at && *at < target.end()) else {
            return false;
        };
        let (first, last) = (at / target.align, at.saturating_add(code.filesz).div_ceil(target.align));
        first <= start / target.align && end.div_ceil(target.align) <= last
    };
    let mut code = pair.from.loads.iter().filter(|code| code.executable() && code.filesz > 0);
    load.flags == readable && target.flags == executable && target.align > 0 && code.any(shares)
}

/// Compares the bytes at `start..end` with those moved by `by`, but for `skipped`.
fn compare(pair: &Pair, start: u64, end: u64, by: u64, skipped: &[(u64, u64)]) -> Result<(), Flaw> {
    let first = skipped.partition_point(|&(_, to)| to <= start);
    let holes = skipped.get(first..).unwrap_or_default();
    let holes = holes.iter().take_while(|&&(from, _)| from < end).copied();
    let mut at = start;
    for (from, to) in holes.chain([(end, end)]) {
        if at < from {
            let (old, new) = (pair.from.memory(at, from - at), pair.to.memory(at + by, from - at));
            let (Some(old), Some(new)) = (old, new) else {
                return Err(Flaw::Header(format!("the memory at {at:#x} is not in both files")));
            };
            if old != new {
                let i = old.iter().zip(new).position(|(a, b)| a != b).unwrap_or(0);
                let address = at + i as u64;
                let byte = |bytes: &[u8]| bytes.get(i).copied().unwrap_or(0);
                let near = pair.near(address);
                return Err(Flaw::Byte { at: address, near, expected: byte(old), found: byte(new) });
            }
        }
        at = at.max(to);
    }
    Ok(())
}

/// Checks that memory of the copy begins as zeros.
fn zeros(pair: &Pair, start: u64, end: u64) -> Result<(), Flaw> {
    let in_file = pair.to.load(start).map_or(start, |load| load.file_end().clamp(start, end));
    let bytes = if start < in_file { pair.to.memory(start, in_file - start) } else { Some(&[][..]) };
    match bytes.map(|bytes| bytes.iter().position(|b| *b != 0)) {
        Some(None) => Ok(()),
        Some(Some(i)) => Err(Flaw::Padding { at: start + i as u64, what: "it should be zeros".into() }),
        None => Err(Flaw::Padding { at: start, what: "it is not in the file".into() }),
    }
}

/// Checks all memory of the copy that is not `covered`.
fn padding(pair: &mut Pair, mut covered: Vec<(u64, u64)>) -> Result<(), Flaw> {
    covered.extend(header_tables(&pair.to));
    covered.sort_unstable();
    for load in pair.to.loads.clone() {
        let mut at = load.vaddr;
        for &(from, to) in covered.iter().chain([&(load.end(), load.end())]) {
            let from = from.clamp(load.vaddr, load.end());
            if at < from {
                pad(pair, &load, at, from)?;
                pair.proof.padding += from - at;
            }
            at = at.max(to.min(load.end()));
        }
    }
    Ok(())
}

/// Checks padding within one segment.
fn pad(pair: &Pair, load: &Program, start: u64, end: u64) -> Result<(), Flaw> {
    let Some(bytes) = pair.to.memory(start, end - start) else {
        return Err(Flaw::Padding { at: start, what: "it is not in the file".into() });
    };
    if !load.executable() {
        return zeros(pair, start, end);
    }
    let wrong = if pair.to.machine() == elf::EM_AARCH64 {
        // Zeros are traps wherever they begin.
        if bytes.iter().all(|b| *b == 0) {
            return Ok(());
        }
        // BRK has its number in bits 5 to 20; UDF is all zeros above its number.
        let trap = |word: u32| word & 0xffe0_001f == 0xd420_0000 || word & 0xffff_0000 == 0;
        let aligned = start.is_multiple_of(4) && bytes.len().is_multiple_of(4);
        let words = (0..bytes.len() / 4).position(|i| !u32_at(bytes, 4 * i).is_some_and(trap));
        if aligned { words.map(|i| 4 * i) } else { Some(0) }
    } else {
        // INT3
        bytes.iter().position(|b| *b != 0xcc)
    };
    match wrong {
        None => Ok(()),
        Some(i) => Err(Flaw::Padding { at: start + i as u64, what: "it should be traps".into() }),
    }
}
