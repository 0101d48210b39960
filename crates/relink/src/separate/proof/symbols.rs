// SPDX-License-Identifier: Apache-2.0
//! Finds the values of symbols, and looks every symbol up in the copy as a loader does.

use super::dynamic::value;
use super::file::{Elf, Section, u16_at, u32_at, u64_at};
use super::flaw::Flaw;
use super::pair::{Pair, Place};
use object::elf;

/// Bytes of an entry of a table.
pub(super) const SYMBOL: usize = 24;

/// An entry of a symbol table.
#[derive(Clone, Copy)]
pub(super) struct Symbol {
    pub name: u32,
    pub info: u8,
    pub shndx: u16,
    pub value: u64,
}

impl Symbol {
    pub fn kind(&self) -> elf::SymbolType {
        elf::SymbolType(self.info & 0xf)
    }

    /// Returns whether it is defined at an address of the object.
    pub fn has_address(&self) -> bool {
        self.kind() != elf::STT_TLS
            && self.kind() != elf::STT_FILE
            && (1..elf::SHN_LORESERVE).contains(&self.shndx)
    }
}

/// Returns entry `i` of a table.
pub(super) fn symbol(table: &[u8], i: usize) -> Option<Symbol> {
    let entry = table.get(i * SYMBOL..(i + 1) * SYMBOL)?;
    Some(Symbol {
        name: u32_at(entry, 0)?,
        info: *entry.get(4)?,
        shndx: u16_at(entry, 6)?,
        value: u64_at(entry, 8)?,
    })
}

/// Returns the name at `offset` of a table of strings.
pub(super) fn string(strings: &[u8], offset: u32) -> &[u8] {
    let rest = strings.get(offset as usize..).unwrap_or_default();
    rest.split(|b| *b == 0).next().unwrap_or_default()
}

/// Returns what the value of a symbol must be in the copy.
pub(super) fn wanted(pair: &Pair, symbol: &Symbol, name: &[u8]) -> Result<u64, Flaw> {
    let flaw = |what: String| Flaw::Symbol { name: name.escape_ascii().to_string(), what };
    if symbol.shndx == elf::SHN_XINDEX.0 {
        return Err(Flaw::Undecided("a symbol's section is in a table of its own (SHN_XINDEX)".into()));
    }
    // An undefined function with an address is its entry of the procedure linkage table.
    if symbol.shndx == elf::SHN_UNDEF.0 && symbol.kind() != elf::STT_TLS && symbol.value != 0 {
        return pair.moved(symbol.value, "the value of a symbol");
    }
    if !symbol.has_address() {
        return Ok(symbol.value);
    }
    let Some(section) = pair.from.sections.get(usize::from(symbol.shndx)) else {
        return Err(flaw(format!("there is no section {}", symbol.shndx)));
    };
    if !section.allocated() {
        return Ok(symbol.value);
    }
    // No section lies where the file header does, which linkers give some section all the same (`__ehdr_start`).
    if symbol.value == 0 && [&pair.from, &pair.to].iter().all(|elf| elf.address(0) == Some(0)) {
        return Ok(0);
    }
    let by = pair.moved(section.addr, "the address of a section")?.wrapping_sub(section.addr);
    Ok(symbol.value.wrapping_add(by))
}

/// Returns whether the linker has defined a symbol at this address of the original. Such a symbol has a name and no type.
pub(super) fn linker_defines(pair: &Pair, address: u64) -> bool {
    pair.from.sections.iter().filter(|s| is_table(s)).any(|table| {
        let bytes = pair.from.contents(table);
        let mut symbols = (0..bytes.len() / SYMBOL).filter_map(|i| symbol(bytes, i));
        symbols.any(|s| s.value == address && s.name != 0 && s.kind() == elf::STT_NOTYPE && s.has_address())
    })
}

/// Adds the values of the dynamic symbols.
pub(super) fn check(pair: &mut Pair) -> Result<(), Flaw> {
    let tables: Vec<Section> =
        pair.from.sections.iter().filter(|s| s.allocated() && is_table(s)).copied().collect();
    if value(&pair.from, elf::DT_SYMTAB).is_some_and(|at| !tables.iter().any(|s| s.addr == at)) {
        return Err(Flaw::Undecided("no section is the table of dynamic symbols".into()));
    }
    for table in tables {
        let bytes = pair.from.contents(&table);
        let strings = pair.from.sections.get(table.link as usize).map_or(&[][..], |s| pair.from.contents(s));
        for i in 0..bytes.len() / SYMBOL {
            let Some(symbol) = symbol(bytes, i) else { break };
            let value = wanted(pair, &symbol, string(strings, symbol.name))?;
            pair.proof.symbols += 1;
            if value != symbol.value {
                let at = table.addr + (i * SYMBOL + 8) as u64;
                pair.places.push(Place { at, len: 8, value, or: None, what: "the value of a symbol" });
            }
        }
    }
    Ok(())
}

pub(super) fn is_table(section: &Section) -> bool {
    section.kind == elf::SHT_DYNSYM.0 || section.kind == elf::SHT_SYMTAB.0
}

/// Looks each defined dynamic symbol of the original up in the copy.
pub(super) fn lookups(pair: &mut Pair) -> Result<(), Flaw> {
    let Some(section) = pair.from.sections.iter().find(|s| s.kind == elf::SHT_DYNSYM.0).copied() else {
        return Ok(());
    };
    let Some(found) = Lookup::new(&pair.to) else {
        return Err(Flaw::Undecided("the copy's tables of symbols cannot be read".into()));
    };
    let table = pair.from.contents(&section);
    let strings = pair.from.sections.get(section.link as usize).map_or(&[][..], |s| pair.from.contents(s));
    // Those before are local.
    for i in section.info as usize..table.len() / SYMBOL {
        let Some(old) = symbol(table, i).filter(|s| s.shndx != elf::SHN_UNDEF.0) else { continue };
        let name = string(strings, old.name);
        let flaw = |what: &str| Flaw::Symbol { name: name.escape_ascii().to_string(), what: what.into() };
        // A name may have several versions; each is an entry of its own.
        let new = found.entry(name, i).ok_or_else(|| flaw("a lookup does not find it in the copy"))?;
        if new.value != wanted(pair, &old, name)? || new.info != old.info || new.shndx != old.shndx {
            return Err(flaw("a lookup finds another value in the copy"));
        }
        pair.proof.lookups += 1;
    }
    Ok(())
}

/// The tables by which a loader finds a symbol, from the dynamic section alone.
struct Lookup<'a> {
    symbols: &'a [u8],
    strings: &'a [u8],
    gnu: Option<Gnu<'a>>,
    sysv: Option<&'a [u8]>,
}

/// The parts of `DT_GNU_HASH`.
struct Gnu<'a> {
    first: u32,
    shift: u32,
    bloom: &'a [u8],
    buckets: &'a [u8],
    chains: &'a [u8],
}

impl<'a> Lookup<'a> {
    fn new(elf: &Elf<'a>) -> Option<Lookup<'a>> {
        let from = |tag| value(elf, tag).and_then(|at| elf.memory_from(at));
        let gnu = from(elf::DT_GNU_HASH).and_then(|table| {
            let [buckets, first, words, shift] = [0, 4, 8, 12].map(|at| u32_at(table, at));
            let (bloom, rest) = table.get(16..)?.split_at_checked(8 * words? as usize)?;
            let (buckets, chains) = rest.split_at_checked(4 * buckets? as usize)?;
            Some(Gnu { first: first?, shift: shift?, bloom, buckets, chains })
        });
        let sysv = from(elf::DT_HASH);
        let strings = value(elf, elf::DT_STRTAB)?;
        let strings = elf.memory(strings, value(elf, elf::DT_STRSZ)?)?;
        (gnu.is_some() || sysv.is_some()).then_some(())?;
        Some(Lookup { symbols: from(elf::DT_SYMTAB)?, strings, gnu, sysv })
    }

    /// Finds entry `wanted`, which has this name, by every table that there is.
    fn entry(&self, name: &[u8], wanted: usize) -> Option<Symbol> {
        if let Some(gnu) = &self.gnu {
            self.by_gnu(gnu, name, wanted)?;
        }
        if let Some(sysv) = self.sysv {
            self.by_sysv(sysv, name, wanted)?;
        }
        symbol(self.symbols, wanted)
    }

    fn named(&self, i: usize, name: &[u8]) -> bool {
        symbol(self.symbols, i).is_some_and(|s| string(self.strings, s.name) == name)
    }

    fn by_gnu(&self, gnu: &Gnu, name: &[u8], wanted: usize) -> Option<()> {
        let hash = name.iter().fold(5381u32, |h, b| h.wrapping_mul(33).wrapping_add(u32::from(*b)));
        let words = (gnu.bloom.len() / 8).max(1);
        let word = u64_at(gnu.bloom, 8 * (hash as usize / 64 % words))?;
        let bits = 1u64 << (hash % 64) | 1u64 << (hash.checked_shr(gnu.shift)? % 64);
        (word & bits == bits).then_some(())?;
        let count = (gnu.buckets.len() / 4).max(1);
        let mut i = u32_at(gnu.buckets, 4 * (hash as usize % count))?;
        loop {
            let chain = u32_at(gnu.chains, 4 * i.checked_sub(gnu.first)? as usize)?;
            if chain | 1 == hash | 1 && i as usize == wanted && self.named(wanted, name) {
                return Some(());
            }
            (chain & 1 == 0).then_some(())?;
            i += 1;
        }
    }

    fn by_sysv(&self, table: &[u8], name: &[u8], wanted: usize) -> Option<()> {
        let hash = name.iter().fold(0u32, |h, b| {
            let h = (h << 4).wrapping_add(u32::from(*b));
            let top = h & 0xf000_0000;
            (h ^ (top >> 24)) & !top
        });
        let (buckets, chains) = (u32_at(table, 0)?, u32_at(table, 4)?);
        let mut i = u32_at(table, 8 + 4 * (hash.checked_rem(buckets)?) as usize)?;
        // A damaged chain may be a circle, and its stated length longer than the table.
        for _ in 0..(chains as usize).min(table.len() / 4) {
            if i as usize == wanted && self.named(wanted, name) {
                return Some(());
            }
            (i != 0 && i < chains).then_some(())?;
            i = u32_at(table, 8 + 4 * (buckets as usize + i as usize))?;
        }
        None
    }
}
