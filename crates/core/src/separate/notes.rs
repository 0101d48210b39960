// SPDX-License-Identifier: Apache-2.0
//! Notes that hold addresses, and sections that are refused because they do.

use super::moved::Moved;
use super::{Refusal, debug};
use crate::addr::Addr;
use crate::align::tables::LE;
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
        } else if let Some(hint) = refused(&name) {
            return Err(Refusal::Section { name, hint });
        }
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
