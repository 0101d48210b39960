// SPDX-License-Identifier: Apache-2.0
//! Notes and other sections that are not loaded and hold addresses, and those that are refused because they do or may.

use super::debug;
use super::moved::Moved;
use super::refusal::Refusal;
use crate::align::tables::{LE, Section, has_bytes, in_memory};
use hugelift_core::addr::Addr;
use object::elf;
use object::read::elf::SectionHeader as _;
use std::ops::Range;

/// The type of the notes that describe probes (`NT_STAPSDT`), in sections of this name.
const PROBES: (&str, u32) = (".note.stapsdt", 3);

/// The types of the notes that say how code was built (annobin), in sections whose names begin so: of all functions
/// up to an address, and of one function. Their content is the first and the last address, or the first alone.
const ATTRIBUTES: (&str, [u32; 2]) = (".gnu.build.attributes", [0x100, 0x101]);

/// Writes the notes that hold addresses.
///
/// # Errors
/// Returns a [`Refusal`] if a section holds addresses in a form that is not rewritten.
pub(super) fn write(moved: &mut Moved) -> Result<(), Refusal> {
    for section in &moved.tables.sections {
        let name = moved.tables.section_name(moved.bytes, section);
        let (start, size) = (section.sh_offset(LE), section.sh_size(LE));
        if section.sh_type(LE) == elf::SHT_NOTE && name == PROBES.0 {
            write_probes(moved, start, size)?;
        } else if section.sh_type(LE) == elf::SHT_NOTE && name.starts_with(ATTRIBUTES.0) {
            write_attributes(moved, start, size)?;
        } else if name == STACK_SIZES && !in_memory(section) {
            write_stack_sizes(moved, start, size)?;
        } else if let Some(hint) = refused(&name) {
            return Err(Refusal::Section { name, hint });
        } else if !is_known(&name, section)
            && let Some((at, to)) = code_address(moved, start, size)
        {
            return Err(Refusal::Unknown { name, at: Addr(at), to: Addr(to) });
        }
    }
    Ok(())
}

/// The sizes of the stacks of functions (`clang -fstack-size-section`): the address of a function, and a ULEB128.
const STACK_SIZES: &str = ".stack_sizes";

/// Returns whether the form of a section is known: all its addresses are written here or elsewhere, or it holds none.
fn is_known(name: &str, section: &Section) -> bool {
    let written = matches!(
        section.sh_type(LE),
        elf::SHT_SYMTAB | elf::SHT_STRTAB | elf::SHT_RELA | elf::SHT_REL | elf::SHT_RELR
    );
    let starts = |prefix: &str| name.starts_with(prefix);
    // The metadata of rustc, the compressed symbols of Fedora, properties of the program, what ld(1) prints for a symbol.
    let others = [".gdb_index", ".rustc", ".gnu_debugdata"];
    let known = [".debug_", ".zdebug_", ".note.gnu.", ".gnu.warning."];
    let read = known.iter().any(|prefix| starts(prefix)) || others.contains(&name);
    in_memory(section) || !has_bytes(section) || written || read
}

/// Returns a place in `size` bytes at `start` that may hold the address of moving code, and that address. A number of
/// eight bytes is hardly such an address by chance: its upper half would be zeros.
fn code_address(moved: &Moved, start: u64, size: u64) -> Option<(u64, u64)> {
    let code: Vec<(u64, u64)> = moved
        .tables
        .headers
        .segments
        .iter()
        .filter(|s| s.prot.exec)
        .map(|s| (s.vaddr.max(debug::LEFT_OUT), s.vaddr.saturating_add(s.filesz)))
        .collect();
    let moves = |at: u64| moved.plan.distances.part(at).is_some_and(|part| part.by != 0);
    let words = moved.slice(start, size)?.windows(8).zip(start..);
    words
        .filter_map(|(word, at)| Some((at, u64::from_le_bytes(word.try_into().ok()?))))
        .find(|&(_, to)| code.iter().any(|&(from, end)| (from..end).contains(&to)) && moves(to))
}

/// Writes the addresses of the functions whose stacks are listed.
fn write_stack_sizes(moved: &mut Moved, start: u64, size: u64) -> Result<(), Refusal> {
    let what = "a size of a stack";
    let damaged = |at: usize| Refusal::Damaged { what, at: Addr(start.saturating_add(at as u64)) };
    let bytes = moved.slice(start, size).ok_or_else(|| damaged(0))?;
    let mut at = 0;
    while at < bytes.len() {
        write_address(moved, what, start, bytes, at, debug::LEFT_OUT)?;
        let number = bytes.get(at + 8..).unwrap_or_default();
        let last = number.iter().position(|byte| byte & 0x80 == 0).ok_or_else(|| damaged(at))?;
        at += 8 + last + 1;
    }
    Ok(())
}

/// Returns a hint if sections of this name are refused.
fn refused(name: &str) -> Option<&'static str> {
    let starts = |prefix: &str| name.starts_with(prefix);
    if starts(".stab") {
        return Some("; strip --strip-debug removes it");
    }
    let others = [".llvm_bb_addr_map", ".gnu.conflict", ".gnu.liblist"];
    (others.contains(&name) || starts(ATTRIBUTES.0)).then_some("")
}

/// A note: its type, and where its content lies in the section.
struct Note {
    kind: u32,
    content: Range<usize>,
}

/// Returns the notes of a section of these bytes.
///
/// # Errors
/// Returns the place of the first that is cut off.
fn notes(bytes: &[u8]) -> Result<Vec<Note>, usize> {
    let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk::<4>()?));
    let note = |at: usize| {
        let (name, size, kind) = (word(at)?, word(at.checked_add(4)?)?, word(at.checked_add(8)?)?);
        let start = at.checked_add(12)?.checked_add((name as usize).checked_next_multiple_of(4)?)?;
        let content = start..start.checked_add(size as usize)?;
        bytes.get(content.clone())?;
        Some(Note { kind, content })
    };
    let (mut all, mut at) = (Vec::new(), 0usize);
    while at < bytes.len() {
        let one = note(at).ok_or(at)?;
        at = one.content.end.checked_next_multiple_of(4).ok_or(at)?;
        all.push(one);
    }
    Ok(all)
}

/// Writes the addresses in the notes of probes: of the probe, of a mark for prelink, of a counter.
fn write_probes(moved: &mut Moved, start: u64, size: u64) -> Result<(), Refusal> {
    let what = "a note of a probe";
    let damaged = |at: usize| Refusal::Damaged { what, at: Addr(start.saturating_add(at as u64)) };
    let bytes = moved.slice(start, size).ok_or_else(|| damaged(0))?;
    for note in notes(bytes).map_err(damaged)?.iter().filter(|note| note.kind == PROBES.1) {
        for place in [0, 8, 16].map(|at| note.content.start + at) {
            if place + 8 > note.content.end {
                return Err(damaged(place));
            }
            // Most probes have no counter.
            write_address(moved, what, start, bytes, place, 1)?;
        }
    }
    Ok(())
}

/// Writes the addresses in the notes of annobin.
fn write_attributes(moved: &mut Moved, start: u64, size: u64) -> Result<(), Refusal> {
    let what = "a note of how code was built";
    let damaged = |at: usize| Refusal::Damaged { what, at: Addr(start.saturating_add(at as u64)) };
    let bytes = moved.slice(start, size).ok_or_else(|| damaged(0))?;
    for note in notes(bytes).map_err(damaged)? {
        if !ATTRIBUTES.1.contains(&note.kind) || !matches!(note.content.len(), 0 | 8 | 16) {
            return Err(damaged(note.content.start));
        }
        for place in note.content.step_by(8) {
            write_address(moved, what, start, bytes, place, debug::LEFT_OUT)?;
        }
    }
    Ok(())
}

/// Writes the image of the address at `place` of a section that starts at `start` in the file. Smaller numbers than
/// `least` are no addresses.
fn write_address(
    moved: &mut Moved,
    what: &'static str,
    start: u64,
    bytes: &[u8],
    place: usize,
    least: u64,
) -> Result<(), Refusal> {
    let at = start.saturating_add(place as u64);
    let held = bytes.get(place..).and_then(|rest| rest.first_chunk::<8>());
    let held = u64::from_le_bytes(*held.ok_or(Refusal::Damaged { what, at: Addr(at) })?);
    if held < least {
        return Ok(());
    }
    let to = moved.image(what, at, held)?;
    moved.write(what, at, &to.to_le_bytes())
}
