// SPDX-License-Identifier: Apache-2.0
//! The file header, the program headers and the section table.

use super::moved::Moved;
use super::original::{base_page, largest_align};
use super::plan::Way;
use super::refusal::Refusal;
use crate::align::tables::{LE, Program, in_memory};
use hugelift_core::addr::Addr;
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
    let mut to_offset = plan.shifted(offset).ok_or_else(damaged)?;
    let to = match program.p_type(LE) {
        elf::PT_PHDR if new_start => {
            to_offset = programs_to;
            programs_to
        }
        elf::PT_LOAD if memsz > 0 => {
            let segments = &moved.tables.headers.segments;
            let number = segments.binary_search_by_key(&at, |s| s.vaddr).map_err(|_| damaged())?;
            let extent = plan.extents.segments.get(number).ok_or_else(damaged)?;
            let image = plan.distances.image(at).ok_or_else(damaged)?;
            // What lies before its first byte in memory lies there in the file too.
            to_offset = to_offset.wrapping_add(extent.start).wrapping_sub(image);
            program.p_align.set(LE, base_page(moved.tables));
            if (extent.start, to_offset) == (0, 0) {
                // Loaders align the first address to the largest alignment of all, which others may need.
                program.p_align.set(LE, largest_align(moved.tables));
            }
            program.p_filesz.set(LE, extent.file_end - extent.start);
            program.p_memsz.set(LE, extent.mem_end - extent.start);
            extent.start
        }
        _ => moved.image("a program header", moved.tables.program_table().0, at)?,
    };
    if program.p_paddr(LE) == at {
        program.p_paddr.set(LE, to);
    }
    program.p_vaddr.set(LE, to);
    program.p_offset.set(LE, to_offset);
    Ok(())
}
