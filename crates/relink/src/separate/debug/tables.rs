// SPDX-License-Identifier: Apache-2.0
//! The tables of debug information that hold addresses beside the units: `.debug_aranges`, `.debug_addr`,
//! `.debug_frame`, `.gdb_index`.

use super::sections::{Found, Sections, Wrong};
use super::units::ThreadLocal;
use gimli::{
    BaseAddresses, CallFrameInstruction, CieOrFde, DebugFrame, EndianSlice, LittleEndian, UnwindSection as _,
};

/// Reads the tables, so that each address in them is noted.
pub(super) fn read(sections: &Sections, thread_local: &ThreadLocal) -> Result<(), Wrong> {
    ranges(sections).ok_or_else(|| cut_off(".debug_aranges"))?;
    addresses(sections, thread_local).ok_or_else(|| cut_off(".debug_addr"))?;
    frames(sections)?;
    index(sections).ok_or_else(|| cut_off(".gdb_index"))
}

fn cut_off(section: &'static str) -> Wrong {
    Wrong { section, what: "cut off, or of an unknown form".into() }
}

/// Notes the address at `at` of a section that starts at `start` in the file.
fn note(sections: &Sections, bytes: &[u8], start: u64, at: usize) -> Option<u64> {
    let address = u64::from_le_bytes(*bytes.get(at..)?.first_chunk::<8>()?);
    sections.found.borrow_mut().push(Found { at: start.checked_add(at as u64)?, address });
    Some(address)
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk::<8>()?))
}

fn half(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk::<4>()?) as usize)
}

/// Returns where the content of the unit at `at` starts and ends, and the size of its offsets.
fn unit(bytes: &[u8], at: usize) -> Option<(usize, usize, usize)> {
    let (start, len, offset) = match half(bytes, at)? {
        0xffff_ffff => (at.checked_add(12)?, usize::try_from(word(bytes, at.checked_add(4)?)?).ok()?, 8),
        len => (at.checked_add(4)?, len, 4),
    };
    let end = start.checked_add(len)?;
    (end <= bytes.len()).then_some((start, end, offset))
}

/// `.debug_aranges`: pairs of an address and a length.
fn ranges(sections: &Sections) -> Option<()> {
    let Some((bytes, start)) = sections.get(".debug_aranges") else { return Some(()) };
    let mut at = 0;
    while at < bytes.len() {
        let (content, end, offset) = unit(bytes, at)?;
        let sizes = content.checked_add(2 + offset)?;
        // Addresses of 8 bytes, no segments.
        if bytes.get(sizes..sizes.checked_add(2)?)? != [8, 0] {
            return None;
        }
        // The pairs are aligned from the start of the unit.
        let mut pair = at.checked_add((sizes + 2 - at).checked_next_multiple_of(16)?)?;
        while pair.checked_add(16)? <= end {
            note(sections, bytes, start, pair)?;
            pair += 16;
        }
        at = end;
    }
    Some(())
}

/// `.debug_addr` of DWARF 5: addresses, to which others refer by their number.
fn addresses(sections: &Sections, thread_local: &ThreadLocal) -> Option<()> {
    let Some((bytes, start)) = sections.get(".debug_addr") else { return Some(()) };
    let mut at = 0;
    while at < bytes.len() {
        let (content, end, _) = unit(bytes, at)?;
        if bytes.get(content..content.checked_add(4)?)? != [5, 0, 8, 0] {
            return None;
        }
        let base = content + 4;
        for (index, place) in (base..).step_by(8).take_while(|place| place + 8 <= end).enumerate() {
            if !thread_local.contains(&(base, index)) {
                note(sections, bytes, start, place)?;
            }
        }
        at = end;
    }
    Some(())
}

/// `.debug_frame`: the start of each function.
fn frames(sections: &Sections) -> Result<(), Wrong> {
    let wrong = || Wrong::of(".debug_frame");
    let Some((bytes, start)) = sections.get(".debug_frame") else { return Ok(()) };
    let mut frame = DebugFrame::from(EndianSlice::new(bytes, LittleEndian));
    frame.set_address_size(8);
    let bases = BaseAddresses::default();
    let mut entries = frame.entries(&bases);
    while let Some(entry) = entries.next().map_err(wrong())? {
        let CieOrFde::Fde(partial) = entry else { continue };
        let at = partial.offset();
        let fde = partial.parse(|_, bases, offset| frame.cie_from_offset(bases, offset)).map_err(wrong())?;
        if fde.cie().address_size() != 8 || fde.cie().augmentation().is_some() {
            return Err(cut_off(".debug_frame"));
        }
        // Behind the length and the offset of the CIE.
        let header = if half(bytes, at) == Some(0xffff_ffff) { 20 } else { 8 };
        let noted = note(sections, bytes, start, at.saturating_add(header));
        if noted != Some(fde.initial_address()) {
            return Err(cut_off(".debug_frame"));
        }
        let mut instructions = fde.instructions(&frame, &bases);
        while let Some(instruction) = instructions.next().map_err(wrong())? {
            if let CallFrameInstruction::SetLoc { .. } = instruction {
                return Err(cut_off(".debug_frame"));
            }
        }
    }
    Ok(())
}

/// `.gdb_index`: ranges of addresses and the number of their unit (versions 4 to 9).
fn index(sections: &Sections) -> Option<()> {
    let Some((bytes, start)) = sections.get(".gdb_index") else { return Some(()) };
    if !(4..=9).contains(&half(bytes, 0)?) {
        return None;
    }
    let [from, to] = [half(bytes, 12)?, half(bytes, 16)?];
    let entries = bytes.get(from..to)?.len() / 20;
    for entry in 0..entries {
        let at = from.checked_add(entry * 20)?;
        note(sections, bytes, start, at)?;
        note(sections, bytes, start, at + 8)?;
    }
    Some(())
}
