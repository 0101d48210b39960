// SPDX-License-Identifier: Apache-2.0
//! Proves that debug information in a file of its own is that of the original, with every address moved.

use super::file::{Elf, Program, Section};
use super::flaw::Flaw;
use super::pair::{Pair, Proof};
use super::rest;
use super::unpacked::{self, DebugFile};
use crate::separate::distances::Distances;
use object::LittleEndian as LE;
use object::elf;
use object::pod::bytes_of;

/// The bytes of a file, before and after.
#[derive(Clone, Copy)]
pub struct Versions<'a> {
    /// The original.
    pub original: &'a [u8],
    /// The copy.
    pub copy: &'a [u8],
}

/// Proves that `debug` is the debug information of `program`, before and after its parts moved by `distances`.
///
/// # Errors
/// Returns the first [`Flaw`].
pub fn check_debug(program: Versions, debug: Versions, distances: &Distances) -> Result<Proof, Flaw> {
    let before = Elf::parse(program.original, "original")?;
    let after = Elf::parse(program.copy, "copy")?;
    check_split([&before, &after], debug, distances)
}

/// Proves the same of a program that was read.
pub(super) fn check_split(program: [&Elf; 2], debug: Versions, distances: &Distances) -> Result<Proof, Flaw> {
    let packed = Elf::parse_split(debug.original, "original debug information")?;
    let plain = unpacked::sections(&packed, None::<DebugFile>)?;
    let from = packed.with(&plain);
    let to = Elf::parse_split(debug.copy, "new debug information")?;
    let mut pair = Pair { from, to, distances, places: Vec::new(), proof: Proof::default() };
    file_header(&pair, program)?;
    program_headers(&pair, program)?;
    sections(&pair, program)?;
    rest::check(&mut pair)?;
    Ok(pair.proof)
}

fn flaw<T>(what: String) -> Result<T, Flaw> {
    Err(Flaw::Header(format!("separate debug information: {what}")))
}

fn file_header(pair: &Pair, [_, program]: [&Elf; 2]) -> Result<(), Flaw> {
    let (from, to) = (&pair.from.header, &pair.to.header);
    let mut wanted = *from;
    if from.e_entry.get(LE) != 0 {
        wanted.e_entry = program.header.e_entry;
    }
    wanted.e_shoff = to.e_shoff;
    if bytes_of(&wanted) != bytes_of(to) {
        return flaw("the file header is not that of the original, with the entry point of the copy".into());
    }
    Ok(())
}

/// Checks that each program header has the addresses of that of the program's copy.
fn program_headers(pair: &Pair, [before, after]: [&Elf; 2]) -> Result<(), Flaw> {
    let (from, to) = (&pair.from.programs, &pair.to.programs);
    if from.len() != to.len() || before.programs.len() != after.programs.len() {
        return flaw("the number of program headers changed".into());
    }
    let programs: Vec<_> = before.programs.iter().zip(&after.programs).collect();
    for (i, (p, q)) in from.iter().zip(to).enumerate() {
        if p.kind == elf::PT_NULL.0 || (p.vaddr, p.memsz, p.filesz) == (0, 0, 0) {
            if p != q {
                return flaw(format!("program header {i} changed"));
            }
            continue;
        }
        let same = |old: &&(&Program, &Program)| {
            (old.0.kind, old.0.vaddr, old.0.memsz) == (p.kind, p.vaddr, p.memsz)
        };
        let begins = |old: &&(&Program, &Program)| old.0.kind == elf::PT_LOAD.0 && old.0.vaddr == p.vaddr;
        let (vaddr, memsz) = match (programs.iter().find(same), programs.iter().find(begins)) {
            (Some((_, new)), _) => (new.vaddr, new.memsz),
            // A tool has changed the program since (patchelf).
            (None, Some((old, new))) if p.kind == elf::PT_LOAD.0 => {
                (new.vaddr, p.memsz.wrapping_add(new.memsz).wrapping_sub(old.memsz))
            }
            (None, _) => (pair.moved(p.vaddr, "the address of a program header")?, p.memsz),
        };
        let paddr = if p.paddr == p.vaddr { vaddr } else { p.paddr };
        // A segment that was extended downwards begins with other bytes now.
        let filesz = if memsz == p.memsz { p.filesz } else { 0 };
        let wanted = Program { vaddr, memsz, paddr, filesz, ..*p };
        if *q != wanted {
            return flaw(format!("program header {i} is {q:x?} and should be {wanted:x?}"));
        }
    }
    Ok(())
}

/// Checks that each section has the address that it has in the program's copy.
fn sections(pair: &Pair, [before, after]: [&Elf; 2]) -> Result<(), Flaw> {
    if pair.from.sections.len() != pair.to.sections.len() {
        return flaw("the number of sections changed".into());
    }
    for (i, (s, t)) in pair.from.sections.iter().zip(&pair.to.sections).enumerate() {
        let what = format!("section {i} ({})", s.says());
        // Debug information in a file of its own has no other such file in it.
        if !s.allocated() && s.has_bytes() && s.name == rest::MINI {
            return Err(Flaw::Undecided(format!("section {} cannot be unpacked", s.says())));
        }
        let mut wanted = Section { offset: t.offset, plain: None, ..*s };
        if !s.has_bytes() {
            wanted.offset = s.offset;
        }
        if s.allocated() {
            wanted.addr = pair.moved(s.addr, &what)?;
            let has = |program: &Elf, at: u64| {
                let same = |u: &Section| u.allocated() && u.name == s.name && u.addr == at;
                program.sections.iter().any(same)
            };
            if has(before, s.addr) && !has(after, wanted.addr) {
                return flaw(format!("{what}: the program's copy has no such section at {:#x}", wanted.addr));
            }
            if pair.from.contents(s) != pair.to.contents(t) {
                return flaw(format!("the bytes of {what} changed"));
            }
            if s.has_bytes() && s.kind != elf::SHT_NOTE.0 {
                return Err(Flaw::Undecided(format!("{what} has bytes of the program")));
            }
        }
        if wanted != *t {
            return flaw(format!("{what}: its header is {t:x?} and should be {wanted:x?}"));
        }
    }
    Ok(())
}
