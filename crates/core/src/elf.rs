// SPDX-License-Identifier: Apache-2.0
//! What the planner needs of an ELF file (elf(5)): its program headers, and where its
//! notes, interpreter and dynamic section lie.
//!
//! [`Headers::parse`] takes the first bytes of a file or of its image in memory, which are the same
//! bytes. Everything that lies deeper is returned as offset and size, for the caller to read from
//! wherever it has the object, and is parsed by separate functions.

use crate::maps::Prot;
use object::LittleEndian;
use object::elf::{self, FileHeader64, NoteHeader64, ProgramHeader64};
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _};
use std::borrow::Cow;

/// How many bytes from the start of an object [`Headers::parse`] needs: the program headers that
/// linkers write lie inside. Those that a tool has rewritten (BOLT) may lie anywhere: see
/// [`Headers::parse_with`].
pub const HEAD_BYTES: usize = 4096;

/// One `PT_LOAD`, at its stated address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Its protection.
    pub prot: Prot,
    /// Stated address.
    pub vaddr: u64,
    /// Bytes in memory.
    pub memsz: u64,
    /// Bytes in the file; the rest is `.bss`.
    pub filesz: u64,
    /// Offset in the file.
    pub offset: u64,
    /// `p_align`.
    pub align: u64,
}

/// A stretch of the object, at its stated address and its offset in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// Offset in the file.
    pub offset: u64,
    /// Stated address.
    pub vaddr: u64,
    /// Bytes in the file.
    pub size: u64,
}

/// The machine of an ELF file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Machine {
    /// `EM_X86_64`
    X86_64,
    /// `EM_AARCH64`
    AArch64,
    /// Another one, by its number.
    Other(u16),
}

/// The program headers of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Headers {
    /// The machine that it runs on.
    pub machine: Machine,
    /// `ET_DYN`: the kernel or the loader chooses the address.
    pub relocatable: bool,
    /// Stated address of the entry point.
    pub entry: u64,
    /// The `PT_LOAD`s, by address.
    pub segments: Vec<Segment>,
    /// `PT_GNU_RELRO`: becomes read-only after relocation.
    pub relro: Option<Stretch>,
    /// `PT_INTERP`: a dynamic program.
    pub interp: Option<Stretch>,
    /// `PT_DYNAMIC`.
    pub dynamic: Option<Stretch>,
    /// `PT_NOTE`s; the build-id is in one of them.
    pub notes: Vec<Stretch>,
}

/// Why bytes are not an ELF object that hugelift can read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ElfError {
    /// Another kind of file.
    #[error("not an ELF file (starts with {0})")]
    NotElf(String),
    /// `ELFCLASS32`.
    #[error("a 32-bit program")]
    Class32,
    /// `ELFDATA2MSB`: no machine that hugelift supports can run it.
    #[error("a big-endian program")]
    BigEndian,
    /// Cut off, or its headers contradict each other.
    #[error("damaged ELF file: {0}")]
    Damaged(String),
}

/// One program header.
type Entry = ProgramHeader64<LittleEndian>;

impl Headers {
    /// Parses the file header and the program headers from `head`, the first [`HEAD_BYTES`] bytes (or
    /// all, if there are fewer).
    ///
    /// # Errors
    /// Returns an [`ElfError`] with the value seen.
    pub fn parse(head: &[u8]) -> Result<Headers, ElfError> {
        Headers::parse_with(head, |_, _| None)
    }

    /// Parses as [`Headers::parse`] does. If the program headers lie deeper in the file, `deeper` must
    /// return them, given their offset and size (at most 4 MB) in bytes.
    ///
    /// # Errors
    /// Returns an [`ElfError`] with the value seen.
    pub fn parse_with(
        head: &[u8],
        deeper: impl FnOnce(u64, usize) -> Option<Vec<u8>>,
    ) -> Result<Headers, ElfError> {
        if !head.starts_with(&elf::ELFMAG) {
            let seen = head.get(..4.min(head.len())).unwrap_or_default();
            return Err(ElfError::NotElf(format!("{}", seen.escape_ascii())));
        }
        if head.get(4) == Some(&elf::ELFCLASS32.0) {
            return Err(ElfError::Class32);
        }
        if head.get(5) == Some(&elf::ELFDATA2MSB.0) {
            return Err(ElfError::BigEndian);
        }
        let damaged = |what: &str| ElfError::Damaged(what.to_string());
        let header = FileHeader64::<LittleEndian>::parse(head).map_err(|e| damaged(&e.to_string()))?;
        let endian = header.endian().map_err(|e| damaged(&e.to_string()))?;
        let relocatable = match header.e_type(endian) {
            elf::ET_EXEC => false,
            elf::ET_DYN => true,
            other => return Err(damaged(&format!("type {other} is neither executable nor shared object"))),
        };
        let mut headers = Headers {
            machine: match header.e_machine(endian) {
                elf::EM_X86_64 => Machine::X86_64,
                elf::EM_AARCH64 => Machine::AArch64,
                other => Machine::Other(other.0),
            },
            relocatable,
            entry: header.e_entry(endian),
            segments: Vec::new(),
            relro: None,
            interp: None,
            dynamic: None,
            notes: Vec::new(),
        };
        let (offset, count) = (header.e_phoff(endian), usize::from(header.e_phnum(endian)));
        let entry = usize::from(header.e_phentsize(endian));
        if entry != size_of::<Entry>() || count == usize::from(u16::MAX) {
            return Err(damaged(&format!("{count} program headers of {entry} bytes")));
        }
        let size = count * entry;
        let inside = usize::try_from(offset).ok().and_then(|at| head.get(at..at.checked_add(size)?));
        let table = inside.map(Cow::Borrowed).or_else(|| deeper(offset, size).map(Cow::Owned));
        let table = table.ok_or_else(|| damaged(&format!("no program headers at offset {offset:#x}")))?;
        let (entries, _) = object::pod::slice_from_bytes::<Entry>(&table, count)
            .map_err(|()| damaged(&format!("program headers at offset {offset:#x} are cut off")))?;
        for entry in entries {
            headers.add(endian, entry)?;
        }
        if headers.segments.is_empty() {
            return Err(damaged("no PT_LOAD"));
        }
        // The kernel maps them in the order of the file and requires ascending addresses.
        if headers.segments.windows(2).any(|w| w[0].vaddr.saturating_add(w[0].memsz) > w[1].vaddr) {
            return Err(damaged("PT_LOADs overlap or are out of order"));
        }
        Ok(headers)
    }

    fn add(&mut self, endian: LittleEndian, header: &Entry) -> Result<(), ElfError> {
        let (vaddr, memsz) = (header.p_vaddr(endian), header.p_memsz(endian));
        let (offset, filesz) = (header.p_offset(endian), header.p_filesz(endian));
        let stretch = Stretch { offset, vaddr, size: filesz };
        let kind = header.p_type(endian);
        let in_memory = vaddr.checked_add(memsz).is_some();
        let in_file = offset.checked_add(filesz).is_some() && filesz <= memsz;
        if (kind == elf::PT_LOAD && !(in_memory && in_file)) || (kind == elf::PT_GNU_RELRO && !in_memory) {
            let what = format!("segment at {vaddr:#x} of {memsz:#x} bytes ({filesz:#x} of them in the file)");
            return Err(ElfError::Damaged(what));
        }
        match kind {
            elf::PT_LOAD if memsz > 0 => {
                let flags = header.p_flags(endian).0;
                let on = |bit: elf::ProgramFlags| flags & bit.0 != 0;
                let prot =
                    Prot { read: on(elf::PF_R), write: on(elf::PF_W), exec: on(elf::PF_X), bti: false };
                let align = header.p_align(endian);
                self.segments.push(Segment { prot, vaddr, memsz, filesz, offset, align });
            }
            // RELRO is a range of memory: its size in the file is not used.
            elf::PT_GNU_RELRO => self.relro = Some(Stretch { size: memsz, ..stretch }),
            elf::PT_INTERP => self.interp = Some(stretch),
            elf::PT_DYNAMIC => self.dynamic = Some(stretch),
            elf::PT_NOTE => self.notes.push(stretch),
            _ => {}
        }
        Ok(())
    }

    /// Returns the stated address of the first segment, rounded down to base pages of `page` bytes.
    pub fn first_page(&self, page: u64) -> u64 {
        self.segments.first().map_or(0, |s| s.vaddr & !page.saturating_sub(1))
    }

    /// Returns the offset in the file of the bytes that are loaded at the stated addresses `vaddr..vaddr+size`, if one segment
    /// has them all. Segments are mapped in base pages of `page` bytes.
    pub fn offset_of(&self, vaddr: u64, size: u64, page: u64) -> Option<u64> {
        let within = page.saturating_sub(1);
        let end = vaddr.checked_add(size)?;
        let holds = |s: &&Segment| {
            let to = s.vaddr.saturating_add(s.filesz).saturating_add(within) & !within;
            s.filesz > 0 && (s.vaddr & !within) <= vaddr && end <= to
        };
        let segment = self.segments.iter().find(holds)?;
        Some(segment.offset.wrapping_add(vaddr.wrapping_sub(segment.vaddr)))
    }
}

/// Returns the GNU build-id from the bytes of a `PT_NOTE`, in lower-case hexadecimal.
pub fn build_id(note: &[u8]) -> Option<String> {
    let mut rest = note;
    loop {
        // Header, name and description, each padded to four bytes.
        let (header, tail) = object::pod::from_bytes::<NoteHeader64<LittleEndian>>(rest).ok()?;
        let e = LittleEndian;
        let (name_len, desc_len) = (header.n_namesz.get(e) as usize, header.n_descsz.get(e) as usize);
        let name = tail.get(..name_len)?;
        let desc_at = name_len.checked_next_multiple_of(4)?;
        let desc = tail.get(desc_at..desc_at.checked_add(desc_len)?)?;
        if name == b"GNU\0" && header.n_type.get(e) == elf::NT_GNU_BUILD_ID && !desc.is_empty() {
            return Some(desc.iter().map(|b| format!("{b:02x}")).collect());
        }
        rest = tail.get(desc_at.checked_add(desc_len.checked_next_multiple_of(4)?)?..)?;
    }
}

/// The entries of the dynamic section by which needed objects are found and text relocations detected.
/// Strings are offsets into the string table at `strtab`.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Dynamic {
    /// `DT_NEEDED`, in order.
    pub needed: Vec<u64>,
    /// `DT_RPATH`.
    pub rpath: Option<u64>,
    /// `DT_RUNPATH`.
    pub runpath: Option<u64>,
    /// `DT_SONAME`.
    pub soname: Option<u64>,
    /// Stated address of `DT_STRTAB`.
    pub strtab: u64,
    /// `DT_STRSZ`, in bytes.
    pub strsz: u64,
    /// `DT_TEXTREL` or `DF_TEXTREL`: the loader writes to text.
    pub textrel: bool,
    /// `DF_1_NODEFLIB`: the loader's default folders are not searched.
    pub no_default_lib: bool,
}

/// Parses the bytes of `PT_DYNAMIC`. Entries behind `DT_NULL`, and one that is cut off, are ignored.
pub fn dynamic(bytes: &[u8]) -> Dynamic {
    let mut out = Dynamic::default();
    let e = LittleEndian;
    let count = bytes.len() / size_of::<elf::Dyn64<LittleEndian>>();
    let Ok((table, _)) = object::pod::slice_from_bytes::<elf::Dyn64<LittleEndian>>(bytes, count) else {
        return out;
    };
    for entry in table {
        let value = entry.d_val(e);
        match entry.d_tag(e) {
            elf::DT_NULL => break,
            elf::DT_NEEDED => out.needed.push(value),
            elf::DT_RPATH => out.rpath = Some(value),
            elf::DT_RUNPATH => out.runpath = Some(value),
            elf::DT_SONAME => out.soname = Some(value),
            elf::DT_STRTAB => out.strtab = value,
            elf::DT_STRSZ => out.strsz = value,
            elf::DT_TEXTREL => out.textrel = true,
            elf::DT_FLAGS => out.textrel |= value & elf::DF_TEXTREL.0 != 0,
            elf::DT_FLAGS_1 => out.no_default_lib |= value & elf::DF_1_NODEFLIB.0 != 0,
            _ => {}
        }
    }
    out
}
