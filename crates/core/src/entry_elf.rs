// SPDX-License-Identifier: Apache-2.0
//! Makes an entry of the store an ELF file, so that perf(1) and other tools that read
//! `/proc/PID/maps` find the names of the functions in it.
//!
//! ```text
//!   | head: ELF header, program headers | hole | span | span | tail: symbols, names, section headers |
//! ```
//!
//! Addresses are those that the object states, so that its symbols keep their values. There is no
//! build-id: by the object's build-id, tools would take the entry for the object, which has other
//! offsets.

use crate::addr::PageSize;
use crate::elf::Machine;
use crate::record::StoredSpan;
use crate::symbols::Function;
use object::elf::{
    self, FileHeader64, Ident, ProgramFlags, ProgramHeader64, SectionFlags, SectionHeader64, SectionType,
    Sym64, SymbolInfo, SymbolSection,
};
use object::endian::{LittleEndian as Le, U16, U32, U64};
use object::pod::bytes_of;

/// The bytes of an entry besides its spans.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Names {
    /// The bytes at the start of the file.
    pub head: Vec<u8>,
    /// The bytes behind the spans.
    pub tail: Vec<u8>,
}

/// Names of sections, as in the last section. The constants below are the offset of each.
const SECTIONS: &[u8] = b"\0.text\0.rodata\0.symtab\0.strtab\0.shstrtab\0";
const TEXT: u32 = 1;
const RODATA: u32 = 7;
const SYMTAB: u32 = 15;
const STRTAB: u32 = 23;
const SHSTRTAB: u32 = 31;

impl Names {
    /// Names the functions among `functions` that overlap one of `spans`. Returns no names if there are none, or more spans
    /// than an ELF file of this form can have.
    pub fn new(machine: Machine, functions: &[Function], spans: &[StoredSpan]) -> Names {
        build(machine, functions, spans).unwrap_or_default()
    }

    /// Returns the number of bytes of both.
    pub fn bytes(&self) -> u64 {
        (self.head.len() + self.tail.len()) as u64
    }
}

/// The symbol table of an entry.
struct Symbols {
    symbols: Vec<u8>,
    strings: Vec<u8>,
    /// Which spans hold functions.
    has_code: Vec<bool>,
}

/// Returns symbols of the functions that overlap a span; `None` if there are none.
fn symbols(functions: &[Function], spans: &[StoredSpan]) -> Option<Symbols> {
    let mut symbols = bytes_of(&Sym64::<Le>::default()).to_vec();
    let mut strings = vec![0];
    let mut has_code = vec![false; spans.len()];
    for function in functions {
        let end = function.vaddr.saturating_add(function.size);
        let reaches = |s: &StoredSpan| function.vaddr < s.vaddr.saturating_add(s.bytes) && end > s.vaddr;
        let Some(span) = spans.iter().position(reaches) else { continue };
        has_code[span] = true;
        let symbol = Sym64 {
            st_name: U32::new(Le, u32::try_from(strings.len()).ok()?),
            st_info: SymbolInfo((elf::STB_GLOBAL.0 << 4) | elf::STT_FUNC.0),
            // Sections are counted from 1.
            st_shndx: U16::new(Le, SymbolSection(u16::try_from(span + 1).ok()?)),
            st_value: U64::new(Le, function.vaddr),
            st_size: U64::new(Le, function.size),
            ..Sym64::default()
        };
        symbols.extend_from_slice(bytes_of(&symbol));
        strings.extend(function.name.bytes().filter(|b| *b != 0));
        strings.push(0);
    }
    (strings.len() > 1).then_some(Symbols { symbols, strings, has_code })
}

fn build(machine: Machine, functions: &[Function], spans: &[StoredSpan]) -> Option<Names> {
    let start = spans.last().and_then(|s| s.offset.checked_add(s.bytes))?;
    let Symbols { symbols, strings, has_code } = symbols(functions, spans)?;
    let loaded = u16::try_from(spans.len()).ok()?;
    let last = loaded.checked_add(3).filter(|n| *n < elf::SHN_LORESERVE)?;

    let strings_at = start + symbols.len() as u64;
    let names_at = strings_at + strings.len() as u64;
    let headers_at = (names_at + SECTIONS.len() as u64).next_multiple_of(8);
    let mut head = bytes_of(&file_header(machine, loaded, last, headers_at)).to_vec();
    let mut headers = bytes_of(&section(0, elf::SHT_NULL, 0, 0)).to_vec();
    for (span, code) in spans.iter().zip(has_code) {
        head.extend_from_slice(bytes_of(&program_header(span, code)));
        let (name, flags) = if code { (TEXT, elf::SHF_EXECINSTR.0) } else { (RODATA, 0) };
        let header = SectionHeader64 {
            sh_flags: U64::new(Le, SectionFlags(elf::SHF_ALLOC.0 | flags)),
            sh_addr: U64::new(Le, span.vaddr),
            ..section(name, elf::SHT_PROGBITS, span.offset, span.bytes)
        };
        headers.extend_from_slice(bytes_of(&header));
    }
    let symtab = SectionHeader64 {
        sh_link: U32::new(Le, u32::from(last) - 1),
        // Index of the first global symbol: all but symbol 0 are global.
        sh_info: U32::new(Le, 1),
        sh_entsize: U64::new(Le, size_of::<Sym64<Le>>() as u64),
        ..section(SYMTAB, elf::SHT_SYMTAB, start, symbols.len() as u64)
    };
    headers.extend_from_slice(bytes_of(&symtab));
    for (name, at, bytes) in [(STRTAB, strings_at, strings.len()), (SHSTRTAB, names_at, SECTIONS.len())] {
        headers.extend_from_slice(bytes_of(&section(name, elf::SHT_STRTAB, at, bytes as u64)));
    }

    let mut tail = symbols;
    tail.extend(strings);
    tail.extend(SECTIONS);
    tail.resize((headers_at - start) as usize, 0);
    tail.extend(headers);
    // The head must end before the first span begins.
    (head.len() as u64 <= spans[0].offset).then_some(Names { head, tail })
}

fn file_header(machine: Machine, programs: u16, last_section: u16, sections_at: u64) -> FileHeader64<Le> {
    let machine = match machine {
        Machine::X86_64 => elf::EM_X86_64,
        Machine::AArch64 => elf::EM_AARCH64,
        Machine::Other(number) => elf::Machine(number),
    };
    let size = |bytes: usize| U16::new(Le, bytes as u16);
    FileHeader64 {
        e_ident: Ident {
            magic: elf::ELFMAG,
            class: elf::ELFCLASS64,
            data: elf::ELFDATA2LSB,
            version: elf::EV_CURRENT,
            os_abi: elf::ELFOSABI_NONE,
            abi_version: 0,
            padding: [0; 7],
        },
        e_type: U16::new(Le, elf::ET_DYN),
        e_machine: U16::new(Le, machine),
        e_version: U32::new(Le, u32::from(elf::EV_CURRENT.0)),
        e_phoff: U64::new(Le, size_of::<FileHeader64<Le>>() as u64),
        e_shoff: U64::new(Le, sections_at),
        e_ehsize: size(size_of::<FileHeader64<Le>>()),
        e_phentsize: size(size_of::<ProgramHeader64<Le>>()),
        e_phnum: U16::new(Le, programs),
        e_shentsize: size(size_of::<SectionHeader64<Le>>()),
        e_shnum: U16::new(Le, last_section + 1),
        e_shstrndx: U16::new(Le, SymbolSection(last_section)),
        e_entry: U64::new(Le, 0),
        e_flags: U32::new(Le, elf::FileFlags(0)),
    }
}

fn program_header(span: &StoredSpan, code: bool) -> ProgramHeader64<Le> {
    let execute = if code { elf::PF_X.0 } else { 0 };
    ProgramHeader64 {
        p_type: U32::new(Le, elf::PT_LOAD),
        p_flags: U32::new(Le, ProgramFlags(elf::PF_R.0 | execute)),
        p_offset: U64::new(Le, span.offset),
        p_vaddr: U64::new(Le, span.vaddr),
        p_paddr: U64::new(Le, span.vaddr),
        p_filesz: U64::new(Le, span.bytes),
        p_memsz: U64::new(Le, span.bytes),
        // Address and offset may agree modulo a base page only.
        p_align: U64::new(Le, PageSize::SMALL.bytes()),
    }
}

fn section(name: u32, kind: SectionType, offset: u64, bytes: u64) -> SectionHeader64<Le> {
    SectionHeader64 {
        sh_name: U32::new(Le, name),
        sh_type: U32::new(Le, kind),
        sh_offset: U64::new(Le, offset),
        sh_size: U64::new(Le, bytes),
        sh_flags: U64::new(Le, SectionFlags(0)),
        sh_addr: U64::new(Le, 0),
        sh_link: U32::new(Le, 0),
        sh_info: U32::new(Le, 0),
        sh_addralign: U64::new(Le, 1),
        sh_entsize: U64::new(Le, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::{Object as _, ObjectSection as _, ObjectSegment as _, ObjectSymbol as _};

    const MB2: u64 = 2 << 20;

    fn file(names: &Names, spans: &[StoredSpan]) -> Vec<u8> {
        let mut file = names.head.clone();
        file.resize(spans.last().map_or(0, |s| s.offset + s.bytes) as usize, 0);
        file.extend(&names.tail);
        file
    }

    #[test]
    fn a_reader_finds_each_function_in_its_span() {
        let spans = [
            StoredSpan { vaddr: 0, bytes: MB2, offset: MB2 },
            StoredSpan { vaddr: 3 * MB2, bytes: MB2, offset: 2 * MB2 },
        ];
        let function = |vaddr, size, name: &str| Function { vaddr, size, name: name.into() };
        let functions = [
            function(2 * MB2, 8, "outside"),
            function(3 * MB2 - 8, 16, "across"),
            function(3 * MB2 + 0x40, 4, "within"),
        ];
        let names = Names::new(Machine::AArch64, &functions, &spans);
        let file = file(&names, &spans);
        let elf = object::read::elf::ElfFile64::<Le>::parse(&*file).unwrap();
        assert_eq!(elf.architecture(), object::Architecture::Aarch64);
        let segments: Vec<_> = elf.segments().map(|s| (s.address(), s.file_range())).collect();
        assert_eq!(segments, [(0, (MB2, MB2)), (3 * MB2, (2 * MB2, MB2))]);
        let symbol = |s: object::read::elf::ElfSymbol64<'_, '_, Le>| {
            let section = elf.section_by_index(s.section_index().unwrap()).unwrap();
            (s.name().unwrap().to_string(), s.address(), s.size(), section.name().unwrap().to_string())
        };
        let got: Vec<_> = elf.symbols().map(symbol).collect();
        let expected = |name: &str, at, size| (name.to_string(), at, size, ".text".to_string());
        assert_eq!(got, [expected("across", 3 * MB2 - 8, 16), expected("within", 3 * MB2 + 0x40, 4)]);
        assert_eq!(elf.sections().next().unwrap().name(), Ok(".rodata"));
        assert_eq!(elf.build_id(), Ok(None));
    }

    #[test]
    fn without_functions_there_are_no_bytes() {
        let span = StoredSpan { vaddr: MB2, bytes: MB2, offset: MB2 };
        let far = Function { vaddr: u64::MAX, size: u64::MAX, name: "far".into() };
        assert_eq!(Names::new(Machine::X86_64, std::slice::from_ref(&far), &[span]), Names::default());
        assert_eq!(Names::new(Machine::X86_64, &[far], &[]), Names::default());
        // There are more spans than section numbers, and than the first page could list.
        let spans: Vec<_> =
            (1..70_000).map(|n| StoredSpan { vaddr: n * MB2, bytes: MB2, offset: n * MB2 }).collect();
        let near = Function { vaddr: MB2, size: 1, name: "near".into() };
        assert_eq!(Names::new(Machine::X86_64, &[near], &spans), Names::default());
    }
}
