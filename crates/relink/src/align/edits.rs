// SPDX-License-Identifier: Apache-2.0
//! The header tables with their new offsets.

use super::groups::moved;
use super::places::{Edit, Move, Placed};
use super::refusal::Refusal;
use super::tables::{LE, Tables, has_bytes};
use object::elf;
use object::pod::{bytes_of, bytes_of_slice};
use object::read::elf::{ProgramHeader as _, SectionHeader as _};

/// Returns the three header tables of the output.
pub(super) fn edits(tables: &Tables, moves: &[Move], placed: &[Placed]) -> Result<Vec<Edit>, Refusal> {
    check(tables, moves, placed)?;
    let (programs_at, _) = tables.program_table();
    let (sections_at, _) = tables.section_table();
    let mut file = tables.file;
    file.e_phoff.set(LE, moved(moves, programs_at));
    file.e_shoff.set(LE, moved(moves, sections_at));

    let mut programs = tables.programs.clone();
    // `placed` has the non-empty PT_LOADs alone, in this order.
    let mut loads = placed.iter();
    for program in &mut programs {
        let (offset, vaddr) = (program.p_offset(LE), program.p_vaddr(LE));
        match program.p_type(LE) {
            elf::PT_NULL => {}
            elf::PT_LOAD if program.p_memsz(LE) > 0 => {
                let Some(load) = loads.next() else { continue };
                program.p_offset.set(LE, load.to);
                program.p_align.set(LE, load.align_to);
            }
            _ => program.p_offset.set(LE, new_offset(tables, moves, placed, vaddr, offset)),
        }
    }

    let mut sections = tables.sections.clone();
    for section in &mut sections {
        let (offset, addr) = (section.sh_offset(LE), section.sh_addr(LE));
        if section.sh_type(LE) == elf::SHT_NULL {
            continue;
        }
        let in_memory = section.sh_flags(LE).0 & elf::SHF_ALLOC.0 != 0;
        let to = if in_memory && !has_bytes(section) {
            new_offset(tables, moves, placed, addr, offset)
        } else {
            moved(moves, offset)
        };
        section.sh_offset.set(LE, to);
    }

    let edit = |at, bytes: &[u8]| Edit { at: moved(moves, at), bytes: bytes.to_vec() };
    Ok(vec![
        edit(0, bytes_of(&file)),
        edit(programs_at, bytes_of_slice(&programs)),
        edit(sections_at, bytes_of_slice(&sections)),
    ])
}

/// Returns the new offset of a piece at `offset`, which may be empty: it goes with the segment that has
/// its address.
fn new_offset(tables: &Tables, moves: &[Move], placed: &[Placed], vaddr: u64, offset: u64) -> u64 {
    match tables.segment_of(vaddr, offset).and_then(|i| placed.get(i)) {
        Some(segment) => offset + (segment.to - segment.from),
        None => moved(moves, offset),
    }
}

/// Checks that the edits overwrite neither each other nor a section, and that Linux before 5.18 finds
/// the program headers: it assumes that address and offset differ by as much as in the first segment
/// (`create_elf_tables`).
fn check(tables: &Tables, moves: &[Move], placed: &[Placed]) -> Result<(), Refusal> {
    let meet = |a: (u64, u64), b: (u64, u64)| a.0 < b.0.saturating_add(b.1) && b.0 < a.0.saturating_add(a.1);
    let (file, programs) = ((0, size_of_val(&tables.file) as u64), tables.program_table());
    if meet(file, programs) {
        return Err(Refusal::Clash { what: "the program header table" });
    }
    let contents = tables.sections.iter().filter(|s| has_bytes(s));
    let mut others = contents.map(|s| (s.sh_offset(LE), s.sh_size(LE))).chain([file, programs]);
    if others.any(|other| meet(other, tables.section_table())) {
        return Err(Refusal::Clash { what: "the section table" });
    }
    let holds = |s: &&Placed| programs.0.checked_sub(s.from).is_some_and(|at| at < s.filesz);
    if let (Some(first), Some(home)) = (placed.first(), placed.iter().find(holds)) {
        let bias = |s: &Placed, offset: u64| s.vaddr.0.wrapping_sub(offset);
        let found = |home_at, first_at| bias(home, home_at) == bias(first, first_at);
        if found(home.from, first.from) && !found(home.to, first.to) {
            return Err(Refusal::ProgramHeaders);
        }
    }
    debug_assert!(moves.windows(2).all(|w| w[0].to + w[0].len <= w[1].to));
    Ok(())
}
