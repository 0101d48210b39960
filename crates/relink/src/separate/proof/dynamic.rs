// SPDX-License-Identifier: Apache-2.0
//! Finds the addresses in the dynamic section, and those in the table of offsets that no relocation names.

use super::file::{Elf, u64_at};
use super::flaw::Flaw;
use super::pair::Pair;
use object::elf;

/// Tags whose value is an address.
const ADDRESSES: &[elf::DynamicTag] = &[
    elf::DT_PLTGOT,
    elf::DT_HASH,
    elf::DT_STRTAB,
    elf::DT_SYMTAB,
    elf::DT_RELA,
    elf::DT_INIT,
    elf::DT_FINI,
    elf::DT_JMPREL,
    elf::DT_INIT_ARRAY,
    elf::DT_FINI_ARRAY,
    elf::DT_PREINIT_ARRAY,
    elf::DT_RELR,
    elf::DT_GNU_HASH,
    elf::DT_TLSDESC_PLT,
    elf::DT_TLSDESC_GOT,
    elf::DT_VERSYM,
    elf::DT_VERDEF,
    elf::DT_VERNEED,
];

/// Tags whose value is a number, an offset in the string table, or nothing.
const NUMBERS: &[elf::DynamicTag] = &[
    elf::DT_NEEDED,
    elf::DT_PLTRELSZ,
    elf::DT_RELASZ,
    elf::DT_RELAENT,
    elf::DT_STRSZ,
    elf::DT_SYMENT,
    elf::DT_SONAME,
    elf::DT_RPATH,
    elf::DT_SYMBOLIC,
    elf::DT_PLTREL,
    elf::DT_BIND_NOW,
    elf::DT_INIT_ARRAYSZ,
    elf::DT_FINI_ARRAYSZ,
    elf::DT_PREINIT_ARRAYSZ,
    elf::DT_RUNPATH,
    elf::DT_FLAGS,
    elf::DT_RELRSZ,
    elf::DT_RELRENT,
    elf::DT_RELACOUNT,
    elf::DT_FLAGS_1,
    elf::DT_VERDEFNUM,
    elf::DT_VERNEEDNUM,
    elf::DT_AUXILIARY,
    elf::DT_FILTER,
    elf::DT_DEPAUDIT,
    elf::DT_AUDIT,
    // The loader writes it.
    elf::DT_DEBUG,
];

/// `DT_X86_64_PLT`, and the size and the length of an entry behind it.
const X86_64_PLT: [i64; 3] = [0x7000_0000, 0x7000_0001, 0x7000_0003];
/// `DT_AARCH64_BTI_PLT`, `PAC_PLT` and `VARIANT_PCS`: flags.
const AARCH64_FLAGS: [i64; 3] = [0x7000_0001, 0x7000_0003, 0x7000_0005];

/// Returns the entries of the dynamic section with their addresses: the tag, where it is, and the value.
pub(super) fn entries(elf: &Elf) -> Vec<(i64, u64, u64)> {
    let Some(dynamic) = elf.program(elf::PT_DYNAMIC) else { return Vec::new() };
    let bytes = elf.memory(dynamic.vaddr, dynamic.filesz).unwrap_or_default();
    let entry = |i: usize| {
        let at = i * 16;
        let tag = i64::from_le_bytes(u64_at(bytes, at)?.to_le_bytes());
        (tag != elf::DT_NULL.0).then_some((tag, dynamic.vaddr + at as u64, u64_at(bytes, at + 8)?))
    };
    (0..bytes.len() / 16).map_while(entry).collect()
}

/// Returns the value of a tag.
pub(super) fn value(elf: &Elf, tag: elf::DynamicTag) -> Option<u64> {
    entries(elf).iter().find(|entry| entry.0 == tag.0).map(|entry| entry.2)
}

/// Adds the addresses of the dynamic section. `relocated` are the places that relocations name, sorted.
pub(super) fn check(pair: &mut Pair, relocated: &[u64]) -> Result<(), Flaw> {
    let Some(dynamic) = pair.from.program(elf::PT_DYNAMIC).copied() else {
        return Err(Flaw::Undecided("there is no dynamic section".into()));
    };
    let all = entries(&pair.from);
    if all.is_empty() {
        return Err(Flaw::Undecided("the dynamic section is empty".into()));
    }
    for (tag, at, value) in all {
        let aarch64 = pair.from.machine() == elf::EM_AARCH64;
        let known = elf::DynamicTag(tag);
        if ADDRESSES.contains(&known) || (!aarch64 && tag == X86_64_PLT[0]) {
            // An address that is not there is 0.
            if value != 0 {
                pair.add(at + 8, value, "an address of the dynamic section")?;
            }
            continue;
        }
        let flag = aarch64 && AARCH64_FLAGS.contains(&tag) || !aarch64 && X86_64_PLT.contains(&tag);
        if !NUMBERS.contains(&known) && !flag {
            return Err(Flaw::Undecided(format!("the dynamic section has the tag {tag:#x}")));
        }
    }
    for name in [&b".got"[..], b".got.plt"] {
        let Some(section) = pair.from.section(name) else { continue };
        let (start, end) = (section.addr, section.end());
        for at in (start..end.saturating_sub(7)).step_by(8) {
            let own = pair.from.word(at) == Some(dynamic.vaddr);
            if own && dynamic.vaddr != 0 && relocated.binary_search(&at).is_err() {
                pair.add(at, dynamic.vaddr, "the address of the dynamic section")?;
            }
        }
    }
    Ok(())
}
