// SPDX-License-Identifier: Apache-2.0
//! Reads the header tables of an ELF file, and the memory that a loader makes of it.

use super::flaw::Flaw;
use object::LittleEndian as LE;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _};

/// A program header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Program {
    pub kind: u32,
    pub flags: u32,
    pub offset: u64,
    pub vaddr: u64,
    pub paddr: u64,
    pub filesz: u64,
    pub memsz: u64,
    pub align: u64,
}

impl Program {
    /// Returns the address behind its memory.
    pub fn end(&self) -> u64 {
        self.vaddr.saturating_add(self.memsz)
    }

    /// Returns the address behind its bytes of the file.
    pub fn file_end(&self) -> u64 {
        self.vaddr.saturating_add(self.filesz)
    }

    pub fn executable(&self) -> bool {
        self.flags & elf::PF_X.0 != 0
    }

    pub fn writable(&self) -> bool {
        self.flags & elf::PF_W.0 != 0
    }
}

/// A section header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Section<'a> {
    pub name: &'a [u8],
    pub name_at: u32,
    pub kind: u32,
    pub flags: u64,
    pub addr: u64,
    pub offset: u64,
    pub size: u64,
    pub link: u32,
    pub info: u32,
    pub align: u64,
    /// Never read by name: the headers are compared whole, and the size of an entry must stay.
    pub entsize: u64,
    /// What the copy must have as its bytes, if not those of the file.
    pub plain: Option<&'a [u8]>,
}

impl Section<'_> {
    /// Returns whether it is part of the memory of a process.
    pub fn allocated(&self) -> bool {
        self.flags & elf::SHF_ALLOC.0 != 0
    }

    pub fn has_bytes(&self) -> bool {
        self.kind != elf::SHT_NOBITS.0 && self.kind != elf::SHT_NULL.0 && self.size > 0
    }

    pub fn end(&self) -> u64 {
        self.addr.saturating_add(self.size)
    }

    /// Returns its name for messages.
    pub fn says(&self) -> String {
        self.name.escape_ascii().to_string()
    }
}

/// A file that was read.
pub(super) struct Elf<'a> {
    pub bytes: &'a [u8],
    pub header: FileHeader64<LE>,
    pub programs: Vec<Program>,
    pub sections: Vec<Section<'a>>,
    /// The `PT_LOAD`s that have memory, as they stand in the file.
    pub loads: Vec<Program>,
    /// Where the last byte that a header names ends.
    pub end: u64,
}

impl<'a> Elf<'a> {
    /// Reads `bytes`; `which` names the file in messages.
    pub fn parse(bytes: &'a [u8], which: &'static str) -> Result<Elf<'a>, Flaw> {
        let flaw = |what: String| Flaw::Unreadable { which, what };
        let mut elf = Elf::parse_split(bytes, which)?;
        let is_load = |p: &&Program| p.kind == elf::PT_LOAD.0 && p.memsz > 0;
        elf.loads = elf.programs.iter().filter(is_load).copied().collect();
        let loads = &elf.loads;
        for load in loads {
            let end = load.offset.checked_add(load.filesz).filter(|end| *end <= bytes.len() as u64);
            let sound = load.filesz <= load.memsz && load.vaddr.checked_add(load.memsz).is_some();
            if !sound || end.is_none() {
                return Err(flaw(format!("the segment at {:#x} does not fit", load.vaddr)));
            }
        }
        if loads.is_empty() || loads.windows(2).any(|w| w[0].end() > w[1].vaddr) {
            return Err(flaw("its segments overlap or are out of order".into()));
        }
        let ends = elf.programs.iter().map(|p| p.offset.saturating_add(p.filesz));
        elf.end = ends.max().unwrap_or(0).max(elf.end);
        Ok(elf)
    }

    /// Reads `bytes`, debug information in a file of its own: it has the program headers of its program, but not
    /// the bytes that they name.
    pub fn parse_split(bytes: &'a [u8], which: &'static str) -> Result<Elf<'a>, Flaw> {
        let flaw = |what: String| Flaw::Unreadable { which, what };
        let told = |e: object::Error| flaw(e.to_string());
        let header = FileHeader64::<LE>::parse(bytes).map_err(told)?;
        let e = header.endian().map_err(told)?;
        let machine = header.e_machine(e);
        if header.e_ident().data != elf::ELFDATA2LSB || !matches!(machine, elf::EM_X86_64 | elf::EM_AARCH64) {
            return Err(flaw(format!("machine {machine} is not one of those that are checked")));
        }
        let programs: Vec<Program> = header
            .program_headers(e, bytes)
            .map_err(told)?
            .iter()
            .map(|p| Program {
                kind: p.p_type(e).0,
                flags: p.p_flags(e).0,
                offset: p.p_offset(e),
                vaddr: p.p_vaddr(e),
                paddr: p.p_paddr.get(e),
                filesz: p.p_filesz(e),
                memsz: p.p_memsz(e),
                align: p.p_align(e),
            })
            .collect();
        let table = header.section_headers(e, bytes).map_err(told)?;
        let names = header.section_strings(e, bytes, table).map_err(told)?;
        let section = |s: &elf::SectionHeader64<LE>| Section {
            name: s.name(e, names).unwrap_or_default(),
            name_at: s.sh_name(e),
            kind: s.sh_type(e).0,
            flags: s.sh_flags(e).0,
            addr: s.sh_addr(e),
            offset: s.sh_offset(e),
            size: s.sh_size(e),
            link: s.sh_link(e),
            info: s.sh_info(e),
            align: s.sh_addralign(e),
            entsize: s.sh_entsize(e),
            plain: None,
        };
        let sections: Vec<Section> = table.iter().map(section).collect();
        let inside =
            |offset: u64, size: u64| offset.checked_add(size).is_some_and(|end| end <= bytes.len() as u64);
        for s in sections.iter().filter(|s| s.has_bytes()) {
            if !inside(s.offset, s.size) {
                return Err(flaw(format!("section {} reaches behind the end of the file", s.says())));
            }
        }
        let mut elf = Elf { bytes, header: *header, programs, sections, loads: Vec::new(), end: 0 };
        let tables = [elf.program_table(), elf.section_table()].map(|(at, size)| at.saturating_add(size));
        let ends = elf.sections.iter().filter(|s| s.has_bytes()).map(|s| s.offset + s.size);
        elf.end = ends.chain(tables).max().unwrap_or(0);
        Ok(elf)
    }

    /// Returns bytes of the file.
    pub fn file(&self, offset: u64, size: u64) -> Option<&'a [u8]> {
        let start = usize::try_from(offset).ok()?;
        self.bytes.get(start..start.checked_add(usize::try_from(size).ok()?)?)
    }

    /// Returns the segment that holds the byte at `addr`.
    pub fn load(&self, addr: u64) -> Option<&Program> {
        let behind = self.loads.partition_point(|load| load.vaddr <= addr);
        self.loads.get(behind.checked_sub(1)?).filter(|load| addr < load.end())
    }

    /// Returns bytes of memory that come from the file, all of one segment, or of segments that follow each other in
    /// memory and in the file.
    pub fn memory(&self, addr: u64, size: u64) -> Option<&'a [u8]> {
        let load = self.load(addr)?;
        let end = addr.checked_add(size)?;
        (end <= load.file_end() || end <= self.run_end(addr)?).then_some(())?;
        self.file(load.offset.checked_add(addr - load.vaddr)?, size)
    }

    /// Returns the bytes of memory from `addr` to the end of the segment's bytes in the file, and of those that follow.
    pub fn memory_from(&self, addr: u64) -> Option<&'a [u8]> {
        self.memory(addr, self.run_end(addr)?.checked_sub(addr)?)
    }

    /// Returns where the bytes of the file end that follow `addr` in memory and in the file.
    fn run_end(&self, addr: u64) -> Option<u64> {
        let from = self.loads.partition_point(|load| load.vaddr <= addr).checked_sub(1)?;
        let mut loads = self.loads.get(from..)?.iter();
        let mut last = loads.next()?;
        for next in loads {
            let follows = |a: &Program, b: &Program| {
                a.vaddr.checked_add(a.filesz) == Some(b.vaddr)
                    && a.offset.checked_add(a.filesz) == Some(b.offset)
            };
            if last.filesz != last.memsz || !follows(last, next) {
                break;
            }
            last = next;
        }
        Some(last.file_end())
    }

    /// Returns the word of 8 bytes at `addr`; in `.bss` it is 0.
    pub fn word(&self, addr: u64) -> Option<u64> {
        match self.memory(addr, 8) {
            Some(bytes) => Some(u64_at(bytes, 0)?),
            None => {
                let load = self.load(addr)?;
                (addr >= load.file_end() && addr.checked_add(8)? <= load.end()).then_some(0)
            }
        }
    }

    /// Returns the offset in the file of the byte at `addr`.
    pub fn offset(&self, addr: u64) -> Option<u64> {
        let load = self.load(addr)?;
        (addr < load.file_end()).then(|| load.offset + (addr - load.vaddr))
    }

    /// Returns the address at which the byte at `offset` is loaded.
    pub fn address(&self, offset: u64) -> Option<u64> {
        let holds = |load: &&Program| offset >= load.offset && offset - load.offset < load.filesz;
        self.loads.iter().find(holds).map(|load| load.vaddr + (offset - load.offset))
    }

    /// Returns the only program header of a kind.
    pub fn program(&self, kind: elf::ProgramType) -> Option<&Program> {
        self.programs.iter().find(|p| p.kind == kind.0)
    }

    /// Returns the first section of this name.
    pub fn section(&self, name: &[u8]) -> Option<&Section<'a>> {
        self.sections.iter().find(|s| s.name == name)
    }

    /// Returns the bytes of a section in the file.
    pub fn contents(&self, section: &Section<'a>) -> &'a [u8] {
        match section.plain {
            Some(plain) => plain,
            None if section.has_bytes() => self.file(section.offset, section.size).unwrap_or_default(),
            None => &[],
        }
    }

    pub fn machine(&self) -> elf::Machine {
        self.header.e_machine.get(LE)
    }

    /// Returns offset and size of the program headers in the file.
    pub fn program_table(&self) -> (u64, u64) {
        (
            self.header.e_phoff.get(LE),
            self.programs.len() as u64 * size_of::<elf::ProgramHeader64<LE>>() as u64,
        )
    }

    /// Returns offset and size of the section table in the file.
    pub fn section_table(&self) -> (u64, u64) {
        (
            self.header.e_shoff.get(LE),
            self.sections.len() as u64 * size_of::<elf::SectionHeader64<LE>>() as u64,
        )
    }
}

/// Returns the little-endian number of 8 bytes at `at`.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// Returns the little-endian number of 4 bytes at `at`.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// Returns the little-endian number of 2 bytes at `at`.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_le_bytes(bytes.try_into().ok()?))
}
