// SPDX-License-Identifier: Apache-2.0
//! Reads the three header tables of an ELF file: the file header, the program headers, the section
//! table. Checks everything that re-laying relies on.

use super::pages::{BASE_PAGE, congruent};
use super::refusal::Refusal;
use hugelift_core::addr::Addr;
use hugelift_core::elf::{ElfError, Headers};
use object::LittleEndian;
use object::elf::{self, FileHeader64, ProgramHeader64, SectionHeader64};
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _};

pub(crate) type File = FileHeader64<LittleEndian>;
pub(crate) type Program = ProgramHeader64<LittleEndian>;
pub(crate) type Section = SectionHeader64<LittleEndian>;

/// The byte order of every machine that hugelift runs on.
pub(crate) const LE: LittleEndian = LittleEndian;

/// The header tables of one file.
pub(crate) struct Tables {
    /// The program headers as the planner sees them.
    pub headers: Headers,
    pub file: File,
    pub programs: Vec<Program>,
    pub sections: Vec<Section>,
}

impl Tables {
    /// Reads and checks the tables of the file `bytes`.
    ///
    /// # Errors
    /// Returns a [`Refusal`] if it is no program or shared object, cut off, prelinked, or without
    /// sections.
    pub fn parse(bytes: &[u8]) -> Result<Tables, Refusal> {
        let damaged = |e: object::read::Error| Refusal::Elf(ElfError::Damaged(e.to_string()));
        if let Ok(file) = File::parse(bytes) {
            match file.e_type.get(LE) {
                elf::ET_REL => return Err(Refusal::Object),
                elf::ET_CORE => return Err(Refusal::Core),
                _ => {}
            }
        }
        let headers = Headers::parse(bytes)?;
        let file = *File::parse(bytes).map_err(damaged)?;
        let programs = file.program_headers(LE, bytes).map_err(damaged)?.to_vec();
        let len = bytes.len() as u64;
        let end = table_end(&file);
        if file.e_shoff.get(LE) != 0 && end > len {
            return Err(Refusal::Short { what: "the section table".into(), end, len });
        }
        let sections = file.section_headers(LE, bytes).map_err(damaged)?;
        if sections.is_empty() {
            return Err(Refusal::NoSections);
        }
        let prelinked =
            |names| sections.iter().any(|s| s.name(LE, names).is_ok_and(|n| n == b".gnu.prelink_undo"));
        if file.section_strings(LE, bytes, sections).is_ok_and(prelinked) {
            return Err(Refusal::Prelinked);
        }
        let tables = Tables { headers, file, programs, sections: sections.to_vec() };
        tables.check(len)?;
        Ok(tables)
    }

    /// Reads the tables of `bytes`, the debug information of a program in a file of its own. Its program headers
    /// name bytes that the program has, so its segments are taken from `program`.
    ///
    /// # Errors
    /// Returns a [`Refusal`] if it is cut off, or without sections.
    pub fn parse_debug(bytes: &[u8], program: &Tables) -> Result<Tables, Refusal> {
        let damaged = |e: object::read::Error| Refusal::Elf(ElfError::Damaged(e.to_string()));
        if !bytes.starts_with(&elf::ELFMAG) {
            let seen = bytes.get(..4.min(bytes.len())).unwrap_or_default();
            return Err(Refusal::Elf(ElfError::NotElf(seen.escape_ascii().to_string())));
        }
        let file = *File::parse(bytes).map_err(damaged)?;
        if file.e_ident.class != elf::ELFCLASS64 {
            return Err(Refusal::Elf(ElfError::Class32));
        }
        if file.e_ident.data != elf::ELFDATA2LSB {
            return Err(Refusal::Elf(ElfError::BigEndian));
        }
        let len = bytes.len() as u64;
        inside("the section table".into(), 0, table_end(&file), len)?;
        let programs = file.program_headers(LE, bytes).map_err(damaged)?.to_vec();
        let sections = file.section_headers(LE, bytes).map_err(damaged)?.to_vec();
        if sections.is_empty() {
            return Err(Refusal::NoSections);
        }
        let tables = Tables { headers: program.headers.clone(), file, programs, sections };
        tables.sections_are_inside(len)?;
        Ok(tables)
    }

    fn sections_are_inside(&self, len: u64) -> Result<(), Refusal> {
        for (i, s) in self.sections.iter().enumerate().filter(|(_, s)| has_bytes(s)) {
            inside(format!("section {i}"), s.sh_offset(LE), s.sh_size(LE), len)?;
        }
        Ok(())
    }

    fn check(&self, len: u64) -> Result<(), Refusal> {
        let inside = |what: String, start: u64, size: u64| inside(what, start, size, len);
        for s in &self.headers.segments {
            inside(format!("segment at {:#x}", s.vaddr), s.offset, s.filesz)?;
            if s.filesz > 0 && !congruent(s.offset, s.vaddr, BASE_PAGE) {
                return Err(Refusal::Torn { vaddr: Addr(s.vaddr), offset: s.offset });
            }
        }
        for p in self.programs.iter().filter(|p| names_bytes(p)) {
            inside(format!("the piece at {:#x}", p.p_vaddr(LE)), p.p_offset(LE), p.p_filesz(LE))?;
        }
        self.sections_are_inside(len)
    }

    /// Returns offset and size of the program headers.
    pub fn program_table(&self) -> (u64, u64) {
        (self.file.e_phoff.get(LE), size_of_val(&self.programs[..]) as u64)
    }

    /// Returns offset and size of the section table.
    pub fn section_table(&self) -> (u64, u64) {
        (self.file.e_shoff.get(LE), size_of_val(&self.sections[..]) as u64)
    }

    /// Returns the name of a section of the file `bytes`, for people; a bad one is shown escaped.
    pub fn section_name(&self, bytes: &[u8], section: &Section) -> String {
        let strings = self.file.section_strings(LE, bytes, &self.sections);
        let name = strings.ok().and_then(|strings| section.name(LE, strings).ok());
        // A name is a few words long: a hostile one may be the whole file.
        name.map_or("?".into(), |name| {
            name.get(..name.len().min(100)).unwrap_or_default().escape_ascii().to_string()
        })
    }

    /// Returns the index (in [`Headers::segments`]) of the `PT_LOAD` whose memory holds `vaddr` and whose
    /// bytes in the file hold `offset`, or end there.
    pub fn segment_of(&self, vaddr: u64, offset: u64) -> Option<usize> {
        let segments = &self.headers.segments;
        let i = segments.partition_point(|s| s.vaddr <= vaddr).checked_sub(1)?;
        let s = segments.get(i)?;
        let inside = vaddr - s.vaddr;
        let same = inside <= s.memsz && offset.checked_sub(s.offset).is_some_and(|at| at <= s.filesz);
        (same && s.filesz > 0).then_some(i)
    }
}

/// Checks that `size` bytes at `start` are bytes of a file of length `len`.
fn inside(what: String, start: u64, size: u64, len: u64) -> Result<(), Refusal> {
    match start.checked_add(size) {
        Some(end) if end <= len => Ok(()),
        end => Err(Refusal::Short { what, end: end.unwrap_or(u64::MAX), len }),
    }
}

/// Returns where the section table ends according to the file header alone.
fn table_end(file: &File) -> u64 {
    let size = u64::from(file.e_shnum.get(LE)) * u64::from(file.e_shentsize.get(LE));
    file.e_shoff.get(LE).saturating_add(size)
}

/// Returns whether a program header other than a `PT_LOAD` names bytes in the file. RELRO does not: it
/// is a range of memory, and its range in the file may reach into the next segment.
pub(crate) fn names_bytes(program: &Program) -> bool {
    let other = matches!(program.p_type(LE), elf::PT_LOAD | elf::PT_NULL | elf::PT_GNU_RELRO);
    !other && program.p_filesz(LE) > 0
}

/// Returns whether a section has bytes in the file.
pub(crate) fn has_bytes(section: &Section) -> bool {
    let kind = section.sh_type(LE);
    kind != elf::SHT_NULL && kind != elf::SHT_NOBITS && section.sh_size(LE) > 0
}

/// Returns whether a section is part of the program in memory.
pub(crate) fn in_memory(section: &Section) -> bool {
    section.sh_flags(LE).0 & elf::SHF_ALLOC.0 != 0
}
