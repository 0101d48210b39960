// SPDX-License-Identifier: Apache-2.0
//! Gives sections behind what is loaded other contents, of any length.

use super::refusal::Refusal;
use crate::align::tables::{LE, Section, Tables, has_bytes, in_memory, names_bytes};
use hugelift_core::addr::Addr;
use hugelift_core::elf::Segment;
use object::elf;
use object::pod::{bytes_of, bytes_of_slice};
use object::read::elf::{ProgramHeader as _, SectionHeader as _};

/// What a section becomes.
pub(super) struct New {
    /// Its number.
    pub section: usize,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its alignment, if it was compressed and is not any more.
    pub unpacked: Option<u64>,
}

/// The alignment of the section table.
const TABLE_ALIGN: u64 = 8;

/// Returns where the bytes of the program that is loaded end in the file.
pub(super) fn loaded_end(tables: &Tables) -> u64 {
    let segments = tables.headers.segments.iter().map(|s| s.offset.saturating_add(s.filesz));
    let programs = tables.programs.iter().filter(|p| names_bytes(p));
    let programs = programs.map(|p| p.p_offset(LE).saturating_add(p.p_filesz(LE)));
    segments.chain(programs).max().unwrap_or(0).max(held_end(tables))
}

/// Returns where the headers and the sections of a program end, in a file that holds only its debug information.
pub(super) fn held_end(tables: &Tables) -> u64 {
    let (at, size) = tables.program_table();
    let sections = tables.sections.iter().filter(|s| in_memory(s) && has_bytes(s));
    let sections = sections.map(|s| s.sh_offset(LE).saturating_add(s.sh_size(LE)));
    let headers = [size_of_val(&tables.file) as u64, at.saturating_add(size)];
    sections.chain(headers).max().unwrap_or(0)
}

/// Returns the file with its section table behind all else, if it lies in a segment now, as patchelf(1) leaves it. The
/// old table stays where it is: what is loaded must be the same, whatever the table says.
pub(super) fn with_table_apart(bytes: &[u8], tables: &Tables) -> Option<Vec<u8>> {
    let (at, size) = tables.section_table();
    let meets = |s: &Segment| at < s.offset.saturating_add(s.filesz) && s.offset < at.saturating_add(size);
    if !tables.headers.segments.iter().any(meets) {
        return None;
    }
    let mut apart = bytes.to_vec();
    apart.resize(bytes.len().next_multiple_of(8), 0);
    let mut file = tables.file;
    file.e_shoff.set(LE, apart.len() as u64);
    apart.extend_from_slice(bytes_of_slice(&tables.sections));
    apart.get_mut(..size_of_val(&file))?.copy_from_slice(bytes_of(&file));
    Some(apart)
}

/// What lies behind what is loaded: a section, or the table of sections.
struct Piece {
    /// Its offset in the input.
    from: u64,
    /// Its bytes in the input.
    len: u64,
    /// Its number; `None` is the table.
    section: Option<usize>,
    align: u64,
}

/// Returns the file with other contents of some sections. What lies before the offset `end` stays there, but such a
/// section before it gets its place at the end of the file.
pub(super) fn replaced(bytes: &[u8], tables: &Tables, end: u64, news: &[New]) -> Result<Vec<u8>, Refusal> {
    let damaged = |at: u64| Refusal::Damaged { what: "sections that are not loaded", at: Addr(at) };
    let slice = |from: u64, to: u64| {
        let range = usize::try_from(from).ok().zip(usize::try_from(to).ok());
        range.and_then(|(from, to)| bytes.get(from..to)).ok_or_else(|| damaged(from))
    };
    let new_of = |section: Option<usize>| news.iter().find(|new| Some(new.section) == section);
    let pieces = pieces(tables, end);
    let table_moves = pieces.iter().any(|piece| piece.section.is_none());
    let mut sections = tables.sections.clone();
    let mut file = tables.file;
    let mut out = slice(0, end)?.to_vec();
    let mut last = end;
    for piece in &pieces {
        let Piece { from, len, section, align } = *piece;
        // Programs find bytes that no section names by their offset.
        if from < last || slice(last, from)?.iter().any(|&b| b != 0) {
            return Err(damaged(last));
        }
        last = from.checked_add(len).ok_or_else(|| damaged(from))?;
        let to = (out.len() as u64).checked_next_multiple_of(align).ok_or_else(|| damaged(from))?;
        out.resize(usize::try_from(to).map_err(|_| damaged(from))?, 0);
        match new_of(section) {
            Some(new) => out.extend_from_slice(&new.bytes),
            None => out.extend_from_slice(slice(from, last)?),
        }
        match section.and_then(|i| sections.get_mut(i)) {
            Some(section) => section.sh_offset.set(LE, to),
            None => file.e_shoff.set(LE, to),
        }
    }
    let behind = usize::try_from(last).ok().and_then(|last| bytes.get(last..)).unwrap_or_default();
    if behind.iter().any(|&b| b != 0) {
        return Err(damaged(last));
    }
    for new in news {
        let section = sections.get_mut(new.section).ok_or_else(|| damaged(end))?;
        if section.sh_offset(LE) < end {
            section.sh_offset.set(LE, put_at_end(&mut out, tables, section, &new.bytes)?);
        }
        section.sh_size.set(LE, new.bytes.len() as u64);
        if let Some(align) = new.unpacked {
            section.sh_flags.set(LE, elf::SectionFlags(section.sh_flags(LE).0 & !elf::SHF_COMPRESSED.0));
            section.sh_addralign.set(LE, align);
        }
    }
    let mut put = |at: u64, bytes: &[u8]| {
        let start = usize::try_from(at).ok();
        let range = start.and_then(|start| Some(start..start.checked_add(bytes.len())?));
        let place = range.and_then(|range| out.get_mut(range)).ok_or_else(|| damaged(at))?;
        place.copy_from_slice(bytes);
        Ok::<(), Refusal>(())
    };
    let table = if table_moves { file.e_shoff.get(LE) } else { tables.section_table().0 };
    put(table, bytes_of_slice(&sections))?;
    put(0, bytes_of(&file))?;
    Ok(out)
}

/// Gives a section between segments its place at the end of the file: patchelf(1) appends segments. Returns the
/// offset.
fn put_at_end(out: &mut Vec<u8>, tables: &Tables, section: &Section, new: &[u8]) -> Result<u64, Refusal> {
    let (at, size) = (section.sh_offset(LE), section.sh_size(LE));
    let damaged = || Refusal::Damaged { what: "a section that is not loaded", at: Addr(at) };
    let meets = |start: u64, len: u64| start < at.saturating_add(size) && at < start.saturating_add(len);
    let sections = tables.sections.iter().filter(|s| has_bytes(s) && meets(s.sh_offset(LE), s.sh_size(LE)));
    let (table, len) = tables.section_table();
    let loaded = tables.headers.segments.iter().any(|s| meets(s.offset, s.filesz));
    if sections.count() > 1 || meets(table, len) || loaded {
        return Err(damaged());
    }
    let range = usize::try_from(at).ok().zip(usize::try_from(size).ok());
    let old = range.and_then(|(at, size)| out.get_mut(at..at.checked_add(size)?));
    old.ok_or_else(damaged)?.fill(0);
    out.resize(out.len().next_multiple_of(8), 0);
    let to = out.len() as u64;
    out.extend_from_slice(new);
    Ok(to)
}

/// Returns what lies behind the offset `end`, in order.
fn pieces(tables: &Tables, end: u64) -> Vec<Piece> {
    let sections = tables.sections.iter().enumerate().filter(|(_, s)| has_bytes(s));
    let sections = sections.map(|(i, s)| Piece {
        from: s.sh_offset(LE),
        len: s.sh_size(LE),
        section: Some(i),
        align: Some(s.sh_addralign(LE))
            .filter(|align| align.is_power_of_two() && *align <= 4096)
            .unwrap_or(1),
    });
    let (from, len) = tables.section_table();
    let table = Piece { from, len, section: None, align: TABLE_ALIGN };
    let mut pieces: Vec<Piece> = sections.chain([table]).filter(|piece| piece.from >= end).collect();
    pieces.sort_by_key(|piece| piece.from);
    pieces
}
