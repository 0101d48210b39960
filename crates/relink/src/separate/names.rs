// SPDX-License-Identifier: Apache-2.0
//! Names of what lies before the code.
//!
//! An address in an instruction need not be that of the object that it belongs to: compilers fold a constant index
//! into it, so `*(&table[-2064] + i)` of an array at 0x2040 has the address of the ELF header. Such a reference must
//! follow the array. Only a symbol tells it from one to the header or to the edge of a table.

use crate::align::tables::{LE, Tables};
use object::elf::{self, Sym64};
use object::read::elf::{SectionHeader as _, Sym as _};
use object::{LittleEndian, pod};

/// Returns the addresses below `end` for which the linker has defined a symbol (`__ehdr_start`, `__executable_start`,
/// `__rela_iplt_start`), ascending. Such symbols have no type, unlike objects and functions. A stripped program has
/// none.
pub(super) fn linker_symbols(bytes: &[u8], tables: &Tables, end: u64) -> Vec<u64> {
    let is_table = |kind| matches!(kind, elf::SHT_SYMTAB | elf::SHT_DYNSYM);
    let mut values: Vec<u64> = Vec::new();
    for section in tables.sections.iter().filter(|s| is_table(s.sh_type(LE))) {
        let table = section.data(LE, bytes).unwrap_or_default();
        let count = table.len() / size_of::<Sym64<LittleEndian>>();
        let Ok((symbols, _)) = pod::slice_from_bytes::<Sym64<LittleEndian>>(table, count) else { continue };
        let defined = |s: &&Sym64<LittleEndian>| {
            let named = s.st_name(LE) != 0 && s.st_type() == elf::STT_NOTYPE;
            let placed = !matches!(s.st_shndx(LE), elf::SHN_UNDEF | elf::SHN_ABS | elf::SHN_COMMON);
            named && placed && s.st_value(LE) < end
        };
        values.extend(symbols.iter().filter(defined).map(|s| s.st_value(LE)));
    }
    values.sort_unstable();
    values.dedup();
    values
}
