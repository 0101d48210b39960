// SPDX-License-Identifier: Apache-2.0
//! The dynamic section: which of its entries hold addresses (System V ABI, chapter 5, "Dynamic Section"; the
//! supplements of both machines; `elf.h` of glibc).

use super::moved::Moved;
use super::refusal::Refusal;
use crate::align::tables::LE;
use hugelift_core::addr::Addr;
use hugelift_core::elf::Machine;
use object::elf::{self, Dyn64, DynamicTag};
use object::read::elf::Dyn as _;
use std::collections::BTreeMap;

/// The entries of the original.
pub(super) struct Dynamic {
    /// Stated address of the section.
    pub address: u64,
    values: BTreeMap<i64, u64>,
}

impl Dynamic {
    pub fn get(&self, tag: DynamicTag) -> Option<u64> {
        self.values.get(&tag.0).copied()
    }
}

/// What an entry holds.
enum Holds {
    Address,
    Number,
}

/// Tags that `object` has no names for.
const DT_X86_64_PLT: i64 = 0x7000_0000;
const DT_X86_64_PLTSZ: i64 = 0x7000_0001;
const DT_X86_64_PLTENT: i64 = 0x7000_0003;
const AARCH64_FLAGS: [i64; 3] = [0x7000_0001, 0x7000_0003, 0x7000_0005];
const DT_RELRSZ_TO_RELRENT: [i64; 3] = [35, 36, 37];

fn holds(machine: Machine, tag: i64) -> Option<Holds> {
    const ADDRESSES: [DynamicTag; 20] = [
        elf::DT_PLTGOT,
        elf::DT_HASH,
        elf::DT_STRTAB,
        elf::DT_SYMTAB,
        elf::DT_RELA,
        elf::DT_INIT,
        elf::DT_FINI,
        elf::DT_REL,
        elf::DT_JMPREL,
        elf::DT_INIT_ARRAY,
        elf::DT_FINI_ARRAY,
        elf::DT_PREINIT_ARRAY,
        elf::DT_SYMTAB_SHNDX,
        elf::DT_GNU_HASH,
        elf::DT_TLSDESC_PLT,
        elf::DT_TLSDESC_GOT,
        elf::DT_VERSYM,
        elf::DT_VERDEF,
        elf::DT_VERNEED,
        elf::DT_SYMINFO,
    ];
    const NUMBERS: [DynamicTag; 33] = [
        elf::DT_NEEDED,
        elf::DT_PLTRELSZ,
        elf::DT_RELASZ,
        elf::DT_RELAENT,
        elf::DT_STRSZ,
        elf::DT_SYMENT,
        elf::DT_SONAME,
        elf::DT_RPATH,
        elf::DT_SYMBOLIC,
        elf::DT_RELSZ,
        elf::DT_RELENT,
        elf::DT_PLTREL,
        // The loader writes it; in the file it is 0.
        elf::DT_DEBUG,
        elf::DT_BIND_NOW,
        elf::DT_INIT_ARRAYSZ,
        elf::DT_FINI_ARRAYSZ,
        elf::DT_RUNPATH,
        elf::DT_FLAGS,
        elf::DT_PREINIT_ARRAYSZ,
        elf::DT_CHECKSUM,
        elf::DT_PLTPADSZ,
        elf::DT_MOVEENT,
        elf::DT_MOVESZ,
        elf::DT_FEATURE_1,
        elf::DT_POSFLAG_1,
        elf::DT_SYMINSZ,
        elf::DT_SYMINENT,
        elf::DT_RELACOUNT,
        elf::DT_RELCOUNT,
        elf::DT_FLAGS_1,
        elf::DT_VERDEFNUM,
        elf::DT_VERNEEDNUM,
        elf::DT_AUXILIARY,
    ];
    let named = |list: &[DynamicTag]| list.iter().any(|known| known.0 == tag);
    if named(&ADDRESSES) || tag == DT_RELRSZ_TO_RELRENT[1] {
        return Some(Holds::Address);
    }
    if named(&NUMBERS) || DT_RELRSZ_TO_RELRENT.contains(&tag) || tag == elf::DT_FILTER.0 {
        return Some(Holds::Number);
    }
    match machine {
        Machine::X86_64 if tag == DT_X86_64_PLT => Some(Holds::Address),
        Machine::X86_64 if tag == DT_X86_64_PLTSZ || tag == DT_X86_64_PLTENT => Some(Holds::Number),
        Machine::AArch64 if AARCH64_FLAGS.contains(&tag) => Some(Holds::Number),
        _ => None,
    }
}

/// Writes the entries that hold addresses.
pub(super) fn write(moved: &mut Moved) -> Result<Dynamic, Refusal> {
    let at = moved.tables.headers.dynamic.ok_or(Refusal::NoDynamic)?;
    let damaged = || Refusal::Damaged { what: "the dynamic section", at: Addr(at.vaddr) };
    if moved.offset(at.vaddr, at.size) != Some(at.offset) {
        return Err(damaged());
    }
    let bytes = moved.slice(at.offset, at.size).ok_or_else(damaged)?;
    let size = size_of::<Dyn64<object::LittleEndian>>();
    let (entries, _) =
        object::pod::slice_from_bytes::<Dyn64<object::LittleEndian>>(bytes, bytes.len() / size)
            .map_err(|()| damaged())?;
    let mut values = BTreeMap::new();
    let mut place = at.vaddr;
    for entry in entries {
        let (tag, value) = (entry.d_tag(LE), entry.d_val(LE));
        if tag == elf::DT_NULL {
            break;
        }
        match holds(moved.tables.headers.machine, tag.0) {
            // 0 stands for "none", and the header is nobody's table.
            Some(Holds::Address) if value != 0 => {
                let to = moved.image("the dynamic section", place, value)?;
                moved.write_word("the dynamic section", place + 8, to)?;
            }
            Some(_) => {}
            None => return Err(Refusal::Tag { tag: tag.0, value }),
        }
        values.insert(tag.0, value);
        place += size as u64;
    }
    let dynamic = Dynamic { address: at.vaddr, values };
    let writes_text = dynamic.get(elf::DT_FLAGS).is_some_and(|flags| flags & elf::DF_TEXTREL.0 != 0);
    if writes_text || dynamic.get(elf::DT_TEXTREL).is_some() {
        return Err(Refusal::TextRelocations);
    }
    Ok(dynamic)
}
