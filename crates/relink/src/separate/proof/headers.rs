// SPDX-License-Identifier: Apache-2.0
//! Demands the same header tables, with every address moved, and a layout that kernel and loader accept.

use super::file::{Program, Section};
use super::flaw::Flaw;
use super::pair::Pair;
use super::rest::MINI;
use object::LittleEndian as LE;
use object::elf;
use object::pod::bytes_of;

/// The smallest page of any machine.
const BASE_PAGE: u64 = 4096;

fn flaw<T>(what: String) -> Result<T, Flaw> {
    Err(Flaw::Header(what))
}

pub(super) fn check(pair: &Pair) -> Result<(), Flaw> {
    file_header(pair)?;
    program_headers(pair)?;
    loads(pair)?;
    sections(pair)
}

fn file_header(pair: &Pair) -> Result<(), Flaw> {
    let (from, to) = (&pair.from.header, &pair.to.header);
    if from.e_type.get(LE) != elf::ET_DYN && !pair.still() {
        return flaw("a file of this type cannot move".into());
    }
    let entry = from.e_entry.get(LE);
    let mut wanted = *from;
    if entry != 0 {
        wanted.e_entry.set(LE, pair.moved(entry, "the entry point")?);
    }
    // Where the tables lie is checked with them.
    wanted.e_phoff = to.e_phoff;
    wanted.e_shoff = to.e_shoff;
    if bytes_of(&wanted) != bytes_of(to) {
        return flaw("the file header is not the same, with the entry point moved".into());
    }
    Ok(())
}

fn program_headers(pair: &Pair) -> Result<(), Flaw> {
    let (from, to) = (&pair.from, &pair.to);
    if from.programs.len() != to.programs.len() {
        return flaw(format!("{} program headers became {}", from.programs.len(), to.programs.len()));
    }
    for (i, (p, q)) in from.programs.iter().zip(&to.programs).enumerate() {
        let what = format!("program header {i} (type {:#x})", p.kind);
        if (p.kind, p.flags) != (q.kind, q.flags) {
            return flaw(format!("{what}: type or flags changed to {:#x}, {:#x}", q.kind, q.flags));
        }
        match elf::ProgramType(p.kind) {
            elf::PT_NULL => {}
            // Its bytes are checked with the memory.
            elf::PT_LOAD => physical(p, q, &what)?,
            elf::PT_PHDR => {
                let (offset, size) = to.program_table();
                let same = (q.offset, q.filesz, q.memsz) == (offset, size, size);
                if !same || to.offset(q.vaddr) != Some(offset) || p.align != q.align {
                    return flaw(format!("{what} does not say where the program headers are"));
                }
                physical(p, q, &what)?;
            }
            elf::PT_GNU_STACK => {
                if p != q {
                    return flaw(format!("{what} changed"));
                }
            }
            elf::PT_DYNAMIC
            | elf::PT_INTERP
            | elf::PT_NOTE
            | elf::PT_TLS
            | elf::PT_GNU_EH_FRAME
            | elf::PT_GNU_RELRO
            | elf::PT_GNU_PROPERTY => moved(pair, p, q, &what)?,
            _ if pair.still() => moved(pair, p, q, &what)?,
            _ => return Err(Flaw::Undecided(format!("{what} is of an unknown type"))),
        }
    }
    Ok(())
}

/// Checks that the physical address, which nobody reads, is the virtual one as before.
fn physical(p: &Program, q: &Program, what: &str) -> Result<(), Flaw> {
    let same = if p.paddr == p.vaddr { q.paddr == q.vaddr } else { q.paddr == p.paddr };
    if same { Ok(()) } else { flaw(format!("{what}: p_paddr is {:#x}", q.paddr)) }
}

/// Checks a header that names a stretch of memory.
fn moved(pair: &Pair, p: &Program, q: &Program, what: &str) -> Result<(), Flaw> {
    let vaddr = pair.moved(p.vaddr, what)?;
    if q.vaddr != vaddr {
        return flaw(format!("{what}: its address is {:#x} and should be {vaddr:#x}", q.vaddr));
    }
    if (p.filesz, p.memsz, p.align) != (q.filesz, q.memsz, q.align) {
        return flaw(format!("{what}: size or alignment changed"));
    }
    // Both ends move alike: a piece is never torn. What a thread has of its own beyond the file is not loaded there.
    let loaded = if p.kind == elf::PT_TLS.0 { p.filesz } else { p.memsz };
    if loaded > 0 && !pair.distances.keeps(p.vaddr, p.vaddr.saturating_add(loaded - 1)) {
        return flaw(format!("{what}: its parts move by different distances"));
    }
    // Programs of old linkers have an empty stretch at an address in no segment.
    if p.filesz > 0 && pair.to.offset(q.vaddr) != Some(q.offset) {
        return flaw(format!("{what}: offset {:#x} is not where its address is loaded from", q.offset));
    }
    // Where a block of thread-local storage lies depends on its address modulo its alignment.
    if p.kind == elf::PT_TLS.0 && p.align > 1 && p.vaddr % p.align != q.vaddr % p.align {
        return flaw(format!("{what}: {:#x} is not aligned to {:#x} as before", q.vaddr, p.align));
    }
    physical(p, q, what)
}

/// Checks what the kernel and loaders demand of the segments of the copy.
fn loads(pair: &Pair) -> Result<(), Flaw> {
    let (from, to) = (&pair.from, &pair.to);
    for q in &to.loads {
        let what = format!("the copy's segment at {:#x}", q.vaddr);
        if q.align < BASE_PAGE || !q.align.is_power_of_two() {
            return flaw(format!("{what}: alignment {:#x}", q.align));
        }
        if q.filesz > 0 && q.vaddr % q.align != q.offset % q.align {
            return flaw(format!(
                "{what}: offset {:#x} does not agree with alignment {:#x}",
                q.offset, q.align
            ));
        }
        if q.writable() && q.executable() {
            let was = |p: &Program| p.writable() && p.executable();
            if !from.loads.iter().any(was) {
                return flaw(format!("{what} is writable and executable"));
            }
        }
    }
    for pair in to.loads.windows(2) {
        let last = pair[0].end().div_ceil(BASE_PAGE);
        if last > pair[1].vaddr / BASE_PAGE {
            return flaw(format!(
                "the copy's segments at {:#x} and {:#x} share a page",
                pair[0].vaddr, pair[1].vaddr
            ));
        }
    }
    // The kernel aligns the first mapped address; everything else follows from it.
    let largest = |loads: &[Program]| loads.iter().map(|l| l.align).max().unwrap_or(1);
    let first = |loads: &[Program]| loads.first().map_or(0, |l| l.vaddr - l.vaddr % BASE_PAGE);
    let (was, is) = (first(&from.loads) % largest(&from.loads), first(&to.loads) % largest(&to.loads));
    if was == 0 && is != 0 {
        return flaw(format!(
            "the copy's first address {:#x} is not aligned as its segments state",
            first(&to.loads)
        ));
    }
    Ok(())
}

fn sections(pair: &Pair) -> Result<(), Flaw> {
    let (from, to) = (&pair.from, &pair.to);
    if from.sections.is_empty() {
        return Err(Flaw::Undecided("there is no section table".into()));
    }
    if from.sections.len() != to.sections.len() {
        return flaw(format!("{} sections became {}", from.sections.len(), to.sections.len()));
    }
    for (i, (s, t)) in from.sections.iter().zip(&to.sections).enumerate() {
        let what = format!("section {i} ({})", s.says());
        let mut wanted = Section { offset: t.offset, plain: None, ..*s };
        // It is compressed; its content is checked.
        if !s.allocated() && s.name == MINI {
            wanted.size = t.size;
        }
        if s.allocated() {
            wanted.addr = pair.moved(s.addr, &what)?;
            if s.size > 0 && s.flags & elf::SHF_TLS.0 == 0 && !pair.distances.keeps(s.addr, s.end() - 1) {
                return flaw(format!("{what}: its ends move by different distances"));
            }
            if s.align > 1 && s.addr % s.align != wanted.addr % s.align {
                return flaw(format!(
                    "{what}: {:#x} is not aligned to {:#x} as before",
                    wanted.addr, s.align
                ));
            }
            if s.has_bytes() && to.offset(t.addr) != Some(t.offset) {
                return flaw(format!(
                    "{what}: offset {:#x} is not where its address is loaded from",
                    t.offset
                ));
            }
        }
        if wanted != *t {
            return flaw(format!("{what}: its header is {t:x?} and should be {wanted:x?}"));
        }
    }
    Ok(())
}
