// SPDX-License-Identifier: Apache-2.0
//! Distances in data and in large code that no table names: to the object's own headers, and to what else lies
//! before the code and can be named by a program.
//!
//! Assemblers write them as `.long x - .`, as `.quad x - .`, or relative to the global offset table
//! (`movabs $x@GOTOFF`). Nothing says where they are, so each place that could hold one is checked.

use super::original::slice;
use crate::align::tables::{LE, Section, Tables, has_bytes, in_memory};
use hugelift_core::elf::Machine;
use object::elf::{self, Dyn64};
use object::read::elf::{Dyn as _, SectionHeader as _};

/// Addresses from a first one up to one behind.
type Range = (u64, u64);

/// Bytes of the file header of a 64-bit file.
const FILE_HEADER: u64 = 64;

/// Returns where the file header and the program headers lie in memory.
pub(super) fn headers(tables: &Tables) -> Vec<Range> {
    let (offset, size) = tables.program_table();
    let holds = |s: &&hugelift_core::elf::Segment| offset >= s.offset && offset - s.offset < s.filesz;
    let programs = tables.headers.segments.iter().find(holds).map(|s| {
        let start = s.vaddr.saturating_add(offset - s.offset);
        (start, start.saturating_add(size))
    });
    [(0, FILE_HEADER)].into_iter().chain(programs).collect()
}

/// Returns whether one of the ranges holds an address.
pub(super) fn holds(ranges: &[Range], at: u64) -> bool {
    ranges.iter().any(|&(start, end)| start <= at && at < end)
}

/// Returns what lies below `end` and has a name that a program may use: the headers, and sections whose bytes
/// are not the linker's.
fn named(bytes: &[u8], tables: &Tables, end: u64) -> Vec<Range> {
    let own = |s: &&Section| {
        let note = s.sh_type(LE) == elf::SHT_NOTE || tables.section_name(bytes, s) == ".interp";
        in_memory(s) && s.sh_addr(LE) < end && note
    };
    let sections = tables.sections.iter().filter(own);
    let sections = sections.map(|s| (s.sh_addr(LE), s.sh_addr(LE).saturating_add(s.sh_size(LE))));
    headers(tables).into_iter().chain(sections).collect()
}

/// Returns a place behind `end` that may hold a distance to what lies before it, and where that leads.
pub(super) fn to_front(bytes: &[u8], tables: &Tables, end: u64) -> Option<(u64, u64)> {
    let named = named(bytes, tables, end);
    // Nothing but the linker's tables lies there, so a reference of code to any byte of it counts.
    Scan { bytes, tables, data: &named, code: &[(0, end)] }.find(end)
}

/// Returns a place that may hold a distance to the object's headers, and where that leads.
pub(super) fn to_headers(bytes: &[u8], tables: &Tables) -> Option<(u64, u64)> {
    let headers = headers(tables);
    Scan { bytes, tables, data: &headers, code: &headers }.find(0)
}

/// What is searched, and the ranges that no number may refer to.
struct Scan<'a> {
    bytes: &'a [u8],
    tables: &'a Tables,
    /// What data must not refer to.
    data: &'a [Range],
    /// What code must not refer to.
    code: &'a [Range],
}

impl Scan<'_> {
    /// Searches all segments from the address `from` on.
    fn find(&self, from: u64) -> Option<(u64, u64)> {
        let tables = self.tables;
        let offsets = match tables.headers.machine {
            Machine::X86_64 => offset_tables(self.bytes, tables),
            _ => Vec::new(),
        };
        let (mut code, mut read) = (Vec::new(), headers(tables));
        for s in tables.sections.iter().filter(|s| in_memory(s) && has_bytes(s)) {
            let range = (s.sh_addr(LE), s.sh_addr(LE).saturating_add(s.sh_size(LE)));
            if s.sh_flags(LE).0 & elf::SHF_EXECINSTR.0 != 0 {
                code.push(range);
            } else if is_table(&tables.section_name(self.bytes, s), s) {
                read.push(range);
            }
        }
        code.sort_unstable();
        read.sort_unstable();
        for segment in tables.headers.segments.iter().filter(|s| s.vaddr >= from) {
            let bytes = slice(self.bytes, segment.offset, segment.filesz).unwrap_or_default();
            let end = segment.vaddr.saturating_add(bytes.len() as u64);
            let mut at = segment.vaddr;
            // Pieces of code, of tables with a known form, and of data follow each other.
            while at < end {
                let (in_code, code_edge) = piece(&code, at);
                let (in_read, read_edge) = piece(&read, at);
                let to = code_edge.min(read_edge).min(end);
                let start = usize::try_from(at - segment.vaddr).ok()?;
                let length = usize::try_from(to - at).ok()?;
                let rest = bytes.get(start..).unwrap_or_default();
                let found = match (in_code, in_read) {
                    (true, _) => self.in_code(bytes, start, length, at, &offsets),
                    (_, true) => None,
                    _ => self.in_data(rest, length, at, &offsets),
                };
                if found.is_some() {
                    return found;
                }
                at = to;
            }
        }
        None
    }

    /// Searches `length` bytes of data. A distance of four bytes is usually aligned. An unaligned distance counts only if
    /// it leads to the file header: symbols name the file header.
    fn in_data(&self, data: &[u8], length: usize, start: u64, offsets: &[u64]) -> Option<(u64, u64)> {
        let last = self.data.iter().map(|range| range.1).max()?;
        for (i, at) in (0..length).zip(start..) {
            if let Some(word) = data.get(i..).and_then(|rest| rest.first_chunk::<4>()) {
                let to = at.wrapping_add_signed(i32::from_le_bytes(*word).into());
                let near = to < last && (at.is_multiple_of(4) || to < FILE_HEADER);
                if near && holds(self.data, to) {
                    return Some((at, to));
                }
            }
            if let Some(word) = data.get(i..).and_then(|rest| rest.first_chunk::<8>()) {
                let word = u64::from_le_bytes(*word);
                let bases = [at].into_iter().chain(offsets.iter().copied());
                let mut tos = bases.map(|base| base.wrapping_add(word));
                if let Some(to) = tos.find(|&to| to < last && holds(self.data, to)) {
                    return Some((at, to));
                }
            }
        }
        None
    }

    /// Searches `length` bytes of code for numbers of eight bytes: the operand of `movabs`, or aligned data
    /// between instructions.
    fn in_code(
        &self,
        all: &[u8],
        first: usize,
        length: usize,
        start: u64,
        offsets: &[u64],
    ) -> Option<(u64, u64)> {
        if offsets.is_empty() {
            return None;
        }
        for (i, at) in (first..first.saturating_add(length)).zip(start..) {
            let Some(word) = all.get(i..).and_then(|rest| rest.first_chunk::<8>()) else { break };
            let word = u64::from_le_bytes(*word);
            let mut tos = offsets.iter().map(|base| base.wrapping_add(word));
            let Some(to) = tos.find(|&to| holds(self.code, to)) else { continue };
            let before = i.checked_sub(2).and_then(|i| all.get(i..i + 2)).unwrap_or_default();
            let operand = matches!(before, [0x48..=0x4f, 0xa0..=0xa3 | 0xb8..=0xbf]);
            // Data between instructions is believed if it leads to what has a name.
            if operand || at.is_multiple_of(8) && holds(self.data, to) {
                return Some((at, to));
            }
        }
        None
    }
}

/// Returns whether `at` lies in one of the sorted ranges, and where that ends or the next one begins.
fn piece(ranges: &[Range], at: u64) -> (bool, u64) {
    let behind = ranges.partition_point(|range| range.0 <= at);
    let inside = ranges.get(..behind).unwrap_or_default().iter().rev().take(8).find(|range| at < range.1);
    match inside {
        Some(range) => (true, range.1),
        None => (false, ranges.get(behind).map_or(u64::MAX, |range| range.0)),
    }
}

/// Returns whether a section has a form that is known, so that none of its words is a distance to a header.
fn is_table(name: &str, section: &Section) -> bool {
    let linked = !matches!(
        section.sh_type(LE),
        elf::SHT_PROGBITS | elf::SHT_INIT_ARRAY | elf::SHT_FINI_ARRAY | elf::SHT_PREINIT_ARRAY
    );
    linked || [".eh_frame", ".eh_frame_hdr", ".interp"].contains(&name)
}

/// Returns where global offset tables begin: the sections of that name, and what the loader calls so.
fn offset_tables(bytes: &[u8], tables: &Tables) -> Vec<u64> {
    let named = |s: &&Section| in_memory(s) && tables.section_name(bytes, s).starts_with(".got");
    let mut all: Vec<u64> = tables.sections.iter().filter(named).map(|s| s.sh_addr(LE)).collect();
    let dynamic = tables.headers.dynamic.and_then(|at| slice(bytes, at.offset, at.size)).unwrap_or_default();
    let count = dynamic.len() / size_of::<Dyn64<object::LittleEndian>>();
    if let Ok((entries, _)) = object::pod::slice_from_bytes::<Dyn64<object::LittleEndian>>(dynamic, count) {
        all.extend(entries.iter().filter(|e| e.d_tag(LE) == elf::DT_PLTGOT).map(|e| e.d_val(LE)));
    }
    all.retain(|&at| at != 0);
    all.sort_unstable();
    all.dedup();
    all
}
