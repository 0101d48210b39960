// SPDX-License-Identifier: Apache-2.0
//! Notes that hold addresses, and sections that are refused because they do.

use super::Refusal;
use super::moved::Moved;
use crate::addr::Addr;
use crate::align::tables::LE;
use object::elf;
use object::read::elf::SectionHeader as _;

/// The type of the notes that describe probes (`NT_STAPSDT`), in sections of this name.
const PROBES: (&str, u32) = (".note.stapsdt", 3);

/// Notes of this name hold ranges of code (annobin).
const ATTRIBUTES: &str = ".gnu.build.attributes";

/// Writes the notes that hold addresses.
///
/// # Errors
/// Returns a [`Refusal`] if a section holds addresses in a form that is not rewritten.
pub(super) fn write(moved: &mut Moved) -> Result<(), Refusal> {
    for section in &moved.tables.sections {
        let name = moved.tables.section_name(moved.bytes, section);
        if name == PROBES.0 && section.sh_type(LE) == elf::SHT_NOTE {
            write_probes(moved, section.sh_offset(LE), section.sh_size(LE))?;
        }
        if let Some(hint) = refused(&name) {
            return Err(Refusal::Section { name, hint });
        }
    }
    Ok(())
}

/// Returns a hint if sections of this name are refused.
fn refused(name: &str) -> Option<&'static str> {
    let starts = |prefix: &str| name.starts_with(prefix);
    if starts(".zdebug_") {
        return Some("; first: objcopy --decompress-debug-sections");
    }
    if starts(".stab") {
        return Some("; strip --strip-debug removes it");
    }
    let others = [".gnu_debugdata", ".llvm_bb_addr_map", ATTRIBUTES, ".gnu.conflict", ".gnu.liblist"];
    others.contains(&name).then_some("")
}

/// Writes the addresses in the notes of probes: of the probe, of a mark for prelink, of a counter.
fn write_probes(moved: &mut Moved, start: u64, size: u64) -> Result<(), Refusal> {
    let what = "a note of a probe";
    let damaged = |at: u64| Refusal::Damaged { what, at: Addr(at) };
    let bytes = moved.slice(start, size).ok_or_else(|| damaged(start))?;
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?));
    let mut at = 0usize;
    while at < bytes.len() {
        let here = start + at as u64;
        let header = word(at).zip(at.checked_add(4).and_then(word)).zip(at.checked_add(8).and_then(word));
        let ((name, content), kind) = header.ok_or_else(|| damaged(here))?;
        let content_at =
            (name as usize).checked_next_multiple_of(4).and_then(|n| at.checked_add(12)?.checked_add(n));
        let content_at = content_at.ok_or_else(|| damaged(here))?;
        if kind == PROBES.1 {
            for i in 0..3 {
                let place = content_at.checked_add(8 * i).ok_or_else(|| damaged(here))?;
                let held = bytes.get(place..).and_then(|rest| rest.first_chunk::<8>());
                let held = u64::from_le_bytes(*held.ok_or_else(|| damaged(here))?);
                // Most probes have no counter.
                if held != 0 {
                    let to = moved.image(what, here, held)?;
                    moved.write(what, start + place as u64, &to.to_le_bytes())?;
                }
            }
        }
        let next = (content as usize).checked_next_multiple_of(4).and_then(|n| content_at.checked_add(n));
        at = next.ok_or_else(|| damaged(here))?;
    }
    Ok(())
}
