// SPDX-License-Identifier: Apache-2.0
//! The symbol tables.

use super::moved::Moved;
use super::refusal::Refusal;
use crate::align::tables::{LE, in_memory};
use hugelift_core::addr::Addr;
use object::elf::{self, Sym64};
use object::read::elf::{SectionHeader as _, Sym as _};
use object::{LittleEndian, pod};

type Symbol = Sym64<LittleEndian>;

/// Writes the values of all symbols that are addresses. `loaded` is the address of the table that the loader reads,
/// which must be that of a section. By how much one moves is decided by its section, as
/// the address of a symbol such as `__bss_start` may lie at the edge of two.
pub(super) fn write(moved: &mut Moved, loaded: Option<u64>) -> Result<(), Refusal> {
    let what = "the symbol table";
    let by = distances(moved)?;
    let mut loaded = loaded.filter(|&at| at != 0);
    for section in &moved.tables.sections {
        if !matches!(section.sh_type(LE), elf::SHT_SYMTAB | elf::SHT_DYNSYM) {
            continue;
        }
        if in_memory(section) && loaded == Some(section.sh_addr(LE)) {
            loaded = None;
        }
        let (offset, size) = (section.sh_offset(LE), section.sh_size(LE));
        let damaged = || Refusal::Damaged { what, at: Addr(offset) };
        let bytes = moved.slice(offset, size).ok_or_else(damaged)?;
        let count = bytes.len() / size_of::<Symbol>();
        let (symbols, _) = pod::slice_from_bytes::<Symbol>(bytes, count).map_err(|()| damaged())?;
        let mut new = symbols.to_vec();
        for symbol in &mut new {
            if let Some(to) = image(moved, symbol, &by, offset)? {
                symbol.st_value.set(LE, to);
            }
        }
        moved.write(what, offset, pod::bytes_of_slice(&new))?;
    }
    match loaded {
        // The section table does not have it, so its length is unknown.
        Some(at) => Err(Refusal::Damaged { what: "a symbol table that no section names", at: Addr(at) }),
        None => Ok(()),
    }
}

/// Returns how far each section moves; `None` for one without an address.
fn distances(moved: &Moved) -> Result<Vec<Option<u64>>, Refusal> {
    let (table, _) = moved.tables.section_table();
    let by = |section: &crate::align::tables::Section| {
        let at = section.sh_addr(LE);
        let image = || moved.image("the section table", table, at);
        in_memory(section).then(image).transpose().map(|to| to.map(|to| to - at))
    };
    moved.tables.sections.iter().map(by).collect()
}

/// Returns the new value of a symbol; `None` if it does not move.
fn image(moved: &Moved, symbol: &Symbol, by: &[Option<u64>], table: u64) -> Result<Option<u64>, Refusal> {
    let what = "the symbol table";
    let value = symbol.st_value(LE);
    let index = symbol.st_shndx(LE);
    // An offset in thread-local data, or the name of a file.
    if matches!(symbol.st_type(), elf::STT_TLS | elf::STT_FILE) {
        return Ok(None);
    }
    match index {
        elf::SHN_ABS | elf::SHN_COMMON => Ok(None),
        // If it has a value, that is the stub that stands for the function's address.
        elf::SHN_UNDEF if value == 0 => Ok(None),
        // A table of their sections' numbers lies elsewhere: files with so many sections have no such symbols
        // at the edge of two parts, unless the address says so.
        elf::SHN_UNDEF | elf::SHN_XINDEX => moved.image(what, table, value).map(Some),
        index => match by.get(usize::from(index.0)) {
            // The symbol of the header (`__ehdr_start`) is given some section near it. The copy has its header there too.
            Some(_) if value == 0 => Ok(None),
            Some(Some(by)) => Ok(Some(value.wrapping_add(*by))),
            Some(None) => Ok(None),
            None => Err(Refusal::Damaged { what: "a symbol of no section", at: Addr(value) }),
        },
    }
}
