// SPDX-License-Identifier: Apache-2.0
//! What the original says to more than one step.

use super::refusal::Refusal;
use crate::align::BASE_PAGE;
use crate::align::tables::{LE, Tables, has_bytes, in_memory, names_bytes};
use hugelift_core::elf::Machine;
use object::read::elf::{ProgramHeader as _, SectionHeader as _};

/// Returns `size` bytes at an offset; `None` if the file is shorter.
pub(super) fn slice(bytes: &[u8], offset: u64, size: u64) -> Option<&[u8]> {
    bytes.get(usize::try_from(offset).ok()?..usize::try_from(offset.checked_add(size)?).ok()?)
}

/// The traps of x86-64 are one byte: `int3`. On AArch64 four zeros are `udf`.
pub(super) fn trap(machine: Machine) -> u8 {
    if machine == Machine::X86_64 { 0xcc } else { 0 }
}

/// Returns the page size that the file is linked for: no smaller page can be the base page of a machine that
/// runs it.
pub(super) fn base_page(tables: &Tables) -> u64 {
    let least = tables.headers.segments.iter().map(|s| s.align).min().unwrap_or(BASE_PAGE);
    match tables.headers.machine {
        Machine::AArch64 if least >= 0x10000 => 0x10000,
        Machine::AArch64 if least >= 0x4000 => 0x4000,
        _ => BASE_PAGE,
    }
}

/// Returns the largest alignment of any segment.
pub(super) fn largest_align(tables: &Tables) -> u64 {
    let aligns = tables.headers.segments.iter().map(|s| s.align);
    aligns.filter(|align| align.is_power_of_two()).max().unwrap_or(BASE_PAGE).max(base_page(tables))
}

/// Checks the offset `at`, which is loaded at `vaddr`. Nothing may lie across it. What lies before it in memory must lie
/// before it in the file, and so behind it.
pub(super) fn is_apart_in_file(tables: &Tables, at: u64, vaddr: u64) -> Result<(), Refusal> {
    let whole = |what: String, offset: u64, size: u64| {
        let fits = offset >= at || offset.saturating_add(size) <= at;
        fits.then_some(()).ok_or(Refusal::Across { what, at })
    };
    let same_side = |what: &dyn Fn() -> String, address: u64, offset: u64| {
        let same = (address < vaddr) == (offset < at);
        same.then_some(()).ok_or_else(|| Refusal::Across { what: what(), at })
    };
    for s in tables.headers.segments.iter().filter(|s| s.filesz > 0) {
        let what = || format!("the segment at {:#x}", s.vaddr);
        whole(what(), s.offset, s.filesz)?;
        same_side(&what, s.vaddr, s.offset)?;
    }
    for p in tables.programs.iter().filter(|p| names_bytes(p)) {
        let what = || format!("the piece at {:#x}", p.p_vaddr(LE));
        whole(what(), p.p_offset(LE), p.p_filesz(LE))?;
        same_side(&what, p.p_vaddr(LE), p.p_offset(LE))?;
    }
    for (i, s) in tables.sections.iter().enumerate().filter(|(_, s)| has_bytes(s)) {
        let what = || format!("section {i}");
        whole(what(), s.sh_offset(LE), s.sh_size(LE))?;
        if in_memory(s) {
            same_side(&what, s.sh_addr(LE), s.sh_offset(LE))?;
        }
    }
    for (what, (offset, size)) in
        [("the program header table", tables.program_table()), ("the section table", tables.section_table())]
    {
        whole(what.into(), offset, size)?;
    }
    Ok(())
}
