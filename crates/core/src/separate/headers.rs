// SPDX-License-Identifier: Apache-2.0
//! The file header, the program headers and the section table.

use super::Refusal;
use super::layout::{self, Way, in_memory};
use super::moved::Moved;
use crate::addr::Addr;
use crate::align::tables::{LE, Program};
use object::elf;
use object::pod::{bytes_of, bytes_of_slice};
use object::read::elf::{ProgramHeader as _, SectionHeader as _};

/// Writes the three tables. Returns the bytes that the copy must begin with, if the old header is not there
/// any more.
pub(super) fn write(moved: &mut Moved) -> Result<Vec<u8>, Refusal> {
    let (tables, plan) = (moved.tables, moved.plan);
    let shifted =
        |offset: u64| plan.shifted(offset).ok_or(Refusal::Damaged { what: "an offset", at: Addr(offset) });
    let new_start = matches!(plan.way, Way::All { .. });
    let (programs_at, _) = tables.program_table();
    let (sections_at, _) = tables.section_table();

    let mut file = tables.file;
    let entry = file.e_entry.get(LE);
    // A shared object without an entry point has 0.
    if entry != 0 {
        file.e_entry.set(LE, moved.image("the file header", 0, entry)?);
    }
    let header_size = size_of_val(&file) as u64;
    let programs_to = if new_start { header_size } else { shifted(programs_at)? };
    file.e_phoff.set(LE, programs_to);
    file.e_shoff.set(LE, shifted(sections_at)?);

    let mut programs = tables.programs.clone();
    for program in &mut programs {
        write_program(moved, program, programs_to)?;
    }
    let mut sections = tables.sections.clone();
    for section in sections.iter_mut().filter(|s| s.sh_type(LE) != elf::SHT_NULL) {
        if in_memory(section) {
            let at = section.sh_addr(LE);
            section.sh_addr.set(LE, moved.image("the section table", sections_at, at)?);
        }
        section.sh_offset.set(LE, shifted(section.sh_offset(LE))?);
    }
    moved.write("the section table", sections_at, bytes_of_slice(&sections))?;
    if new_start {
        return Ok([bytes_of(&file), bytes_of_slice(&programs)].concat());
    }
    moved.write("the file header", 0, bytes_of(&file))?;
    moved.write("the program header table", programs_at, bytes_of_slice(&programs))?;
    Ok(Vec::new())
}

fn write_program(moved: &Moved, program: &mut Program, programs_to: u64) -> Result<(), Refusal> {
    let plan = moved.plan;
    let (at, offset) = (program.p_vaddr(LE), program.p_offset(LE));
    let (filesz, memsz) = (program.p_filesz(LE), program.p_memsz(LE));
    // PT_GNU_STACK only carries flags.
    if program.p_type(LE) == elf::PT_NULL || (at, filesz, memsz) == (0, 0, 0) {
        return Ok(());
    }
    let damaged = || Refusal::Damaged { what: "a program header", at: Addr(at) };
    let new_start = matches!(plan.way, Way::All { .. });
    let mut to = match program.p_type(LE) {
        elf::PT_PHDR if new_start => programs_to,
        // The first segment still begins with the header.
        elf::PT_LOAD if new_start && at == 0 => plan.inserted,
        _ => moved.image("a program header", moved.tables.program_table().0, at)?,
    };
    let mut to_offset = plan.shifted(offset).ok_or_else(damaged)?;
    if new_start && program.p_type(LE) == elf::PT_PHDR {
        to_offset = programs_to;
    }
    if program.p_type(LE) == elf::PT_LOAD {
        program.p_align.set(LE, layout::base_page(moved.tables));
        if offset == plan.at && filesz > 0 {
            to = to.checked_sub(plan.inserted).ok_or_else(damaged)?;
            to_offset = plan.at;
            program.p_filesz.set(LE, filesz.checked_add(plan.inserted).ok_or_else(damaged)?);
            program.p_memsz.set(LE, memsz.checked_add(plan.inserted).ok_or_else(damaged)?);
        }
    }
    if program.p_paddr(LE) == at {
        program.p_paddr.set(LE, to);
    }
    program.p_vaddr.set(LE, to);
    program.p_offset.set(LE, to_offset);
    Ok(())
}
