// SPDX-License-Identifier: Apache-2.0
//! Debug information in a file of its own (`objcopy --only-keep-debug`): an ELF file with the headers and the
//! section table of its program, but without the bytes of its memory.

use super::contents::{self, held_end};
use super::distances::Distances;
use super::extents::Extents;
use super::moved::Moved;
use super::plan::{Load, Plan, Way};
use super::refusal::Refusal;
use super::separated::Separated;
use super::{debug, notes, symbols, unpack};
use crate::align::tables::{LE, Tables, has_bytes, in_memory};
use hugelift_core::elf;
use object::elf as raw;
use object::pod::{bytes_of, bytes_of_slice};
use object::read::elf::{ProgramHeader as _, SectionHeader as _};

/// The name of the section that is such a file in itself (MiniDebugInfo, compressed).
pub(super) const MINI: &str = ".gnu_debugdata";

/// A program, and how it was separated.
pub(super) struct Program<'a> {
    pub tables: &'a Tables,
    pub way: &'a Way,
    pub distances: &'a Distances,
    /// Its segments, before and after.
    pub loads: Vec<Load>,
}

/// Moves all addresses in `debug`, the debug information of the file `original` that was separated.
///
/// # Errors
/// Returns a [`Refusal`] that says what was seen, and where.
pub fn separate_debug(debug: &[u8], original: &[u8], separated: &Separated) -> Result<Vec<u8>, Refusal> {
    let tables = Tables::parse(original)?;
    let of_debug = Tables::parse_debug(debug, &tables)?;
    if let (Some(is), Some(wanted)) = (build_id(debug, &of_debug), build_id(original, &tables))
        && is != wanted
    {
        return Err(Refusal::Foreign {
            what: format!("its build-id is {is}, but the program's is {wanted}"),
        });
    }
    belongs(debug, &of_debug, original, &tables)?;
    let after = Tables::parse(&separated.bytes)?;
    let ends =
        |tables: &Tables| tables.headers.segments.iter().map(|s| (s.vaddr, s.memsz)).collect::<Vec<_>>();
    let loads =
        ends(&tables).into_iter().zip(ends(&after)).map(|(before, after)| Load { before, after }).collect();
    let program = Program { tables: &tables, way: &separated.way, distances: &separated.distances, loads };
    moved(debug, &program)
}

/// Returns the build-id in a section of notes.
fn build_id(bytes: &[u8], tables: &Tables) -> Option<String> {
    let section = tables.sections.iter().find(|s| tables.section_name(bytes, s) == ".note.gnu.build-id")?;
    let start = usize::try_from(section.sh_offset(LE)).ok().filter(|_| has_bytes(section))?;
    elf::build_id(bytes.get(start..start.checked_add(usize::try_from(section.sh_size(LE)).ok()?)?)?)
}

/// Checks that the sections of the program have the addresses that the debug information states.
fn belongs(debug: &[u8], of_debug: &Tables, original: &[u8], tables: &Tables) -> Result<(), Refusal> {
    let mut common = 0u32;
    for section in of_debug.sections.iter().filter(|s| in_memory(s)) {
        let name = of_debug.section_name(debug, section);
        let same = tables.sections.iter().find(|s| in_memory(s) && tables.section_name(original, s) == name);
        let Some(same) = same else {
            return Err(Refusal::Foreign { what: format!("the program has no section {name}") });
        };
        let [is, wanted] = [section, same].map(|s| (s.sh_addr(LE), s.sh_size(LE)));
        if is != wanted {
            let [is, wanted] = [is, wanted].map(|(at, size)| format!("{size:#x} bytes at {at:#x}"));
            return Err(Refusal::Foreign {
                what: format!("its section {name} is {is}, but the program's is {wanted}"),
            });
        }
        common += 1;
    }
    match common {
        0 => Err(Refusal::Foreign { what: "it has none of the program's sections".into() }),
        _ => Ok(()),
    }
}

/// Moves all addresses in `debug`.
pub(super) fn moved(debug: &[u8], program: &Program) -> Result<Vec<u8>, Refusal> {
    let tables = Tables::parse_debug(debug, program.tables)?;
    let news = unpack::unpacked(debug, &tables)?;
    if news.is_empty() {
        return moved_plain(debug, &tables, program);
    }
    let mut plain = contents::replaced(debug, &tables, held_end(&tables), &news)?;
    let mut tables = Tables::parse_debug(&plain, program.tables)?;
    unpack::rename(&mut plain, &mut tables)?;
    moved_plain(&plain, &tables, program)
}

/// Moves all addresses in `debug`, in which nothing is compressed.
fn moved_plain(debug: &[u8], tables: &Tables, program: &Program) -> Result<Vec<u8>, Refusal> {
    for section in tables.sections.iter().filter(|s| has_bytes(s)) {
        let name = || tables.section_name(debug, section);
        if in_memory(section) && section.sh_type(LE) != raw::SHT_NOTE {
            let what = format!("it has the bytes of {}, which objcopy --only-keep-debug leaves out", name());
            return Err(Refusal::Foreign { what });
        }
        let relocations = matches!(section.sh_type(LE), raw::SHT_REL | raw::SHT_RELA | raw::SHT_RELR);
        if relocations || name() == MINI {
            return Err(Refusal::Section { name: name(), hint: "" });
        }
    }
    // Nothing is inserted here: the offsets in the file stay.
    let (way, distances) = (program.way.clone(), program.distances.clone());
    let plan = Plan { way, distances, extents: Extents::default(), mend: Vec::new() };
    let mut moved = Moved::new(debug, tables, &plan);
    symbols::write(&mut moved, None)?;
    notes::write(&mut moved)?;
    debug::write(&mut moved)?;
    headers(&mut moved, program)?;
    Ok(moved.into_bytes())
}

/// Writes the three tables of headers.
fn headers(moved: &mut Moved, program: &Program) -> Result<(), Refusal> {
    let tables = moved.tables;
    let (programs_at, _) = tables.program_table();
    let (sections_at, _) = tables.section_table();
    let mut file = tables.file;
    let entry = file.e_entry.get(LE);
    if entry != 0 {
        file.e_entry.set(LE, moved.image("the file header", 0, entry)?);
    }
    let mut programs = tables.programs.clone();
    for header in &mut programs {
        write_program(moved, program, header)?;
    }
    let mut sections = tables.sections.clone();
    for section in sections.iter_mut().filter(|s| s.sh_type(LE) != raw::SHT_NULL && in_memory(s)) {
        let at = section.sh_addr(LE);
        section.sh_addr.set(LE, moved.image("the section table", sections_at, at)?);
    }
    moved.write("the file header", 0, bytes_of(&file))?;
    moved.write("the program header table", programs_at, bytes_of_slice(&programs))?;
    moved.write("the section table", sections_at, bytes_of_slice(&sections))
}

/// Writes a program header. It has the addresses of that of the program, and its own offset.
fn write_program(
    moved: &Moved,
    program: &Program,
    header: &mut crate::align::tables::Program,
) -> Result<(), Refusal> {
    let (kind, at, memsz) = (header.p_type(LE), header.p_vaddr(LE), header.p_memsz(LE));
    if kind == raw::PT_NULL || (at, header.p_filesz(LE), memsz) == (0, 0, 0) {
        return Ok(());
    }
    let table = moved.tables.program_table().0;
    // Its size may be another one: a tool has changed the program since (patchelf).
    let load = program.loads.iter().find(|load| kind == raw::PT_LOAD && load.before.0 == at);
    let to = match (kind, load, program.way) {
        // The headers of the copy follow its new file header.
        (raw::PT_PHDR, _, Way::All { .. }) => size_of_val(&moved.tables.file) as u64,
        (_, Some(load), _) => load.after.0,
        _ => moved.image("a program header", table, at)?,
    };
    if let Some(load) = load.filter(|load| load.after.1 != load.before.1) {
        header.p_memsz.set(LE, memsz.wrapping_add(load.after.1).wrapping_sub(load.before.1));
        // What this file has of the segment does not lie at its start any more.
        header.p_filesz.set(LE, 0);
    }
    if header.p_paddr(LE) == at {
        header.p_paddr.set(LE, to);
    }
    header.p_vaddr.set(LE, to);
    Ok(())
}
