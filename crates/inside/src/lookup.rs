// SPDX-License-Identifier: Apache-2.0
//! Finds the next definition of a function after this library's own, as `dlsym(RTLD_NEXT)` does.
//! (Before glibc 2.34 that function is in a library which may not be loaded.)

use crate::libc::{Object, each_object};
use core::ffi::{CStr, c_char, c_int};

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DT_VERSYM: u64 = 0x6fff_fff0;
/// The bit in a symbol's version that marks an old version, which a program linked today does not get.
const HIDDEN: u16 = 0x8000;
const STT_FUNC: u8 = 2;

/// `Elf64_Sym`
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

struct Search<'a> {
    name: &'a [u8],
    /// An address in this library.
    own: usize,
    /// The library itself has been seen.
    passed: bool,
    /// The first definition before it in the loader's list (musl has its C library there), and
    /// the first behind it.
    found: [usize; 2],
}

/// Returns the address of the next function of this name, or 0.
pub fn next(name: &CStr) -> usize {
    let own = next as fn(&CStr) -> usize as usize;
    let mut search = Search { name: name.to_bytes(), own, passed: false, found: [0; 2] };
    // SAFETY: `visit` gets the data that it expects.
    unsafe { each_object(visit, (&raw mut search).cast()) };
    let [before, behind] = search.found;
    if behind != 0 { behind } else { before }
}

unsafe extern "C" fn visit(object: *const Object, _size: usize, data: *mut u8) -> c_int {
    // SAFETY: dl_iterate_phdr(3) passes a live object, `next` its data.
    let (object, search) = unsafe { (&*object, &mut *data.cast::<Search<'_>>()) };
    if object.headers.is_null() {
        return 0;
    }
    // SAFETY: the object's program headers, as it states them.
    let headers = unsafe { core::slice::from_raw_parts(object.headers, object.count.into()) };
    let at = |vaddr: u64| object.bias.wrapping_add(vaddr as usize);
    let holds = |address: usize| {
        headers.iter().any(|h| h.kind == PT_LOAD && (at(h.vaddr)..at(h.vaddr + h.memsz)).contains(&address))
    };
    if holds(search.own) {
        search.passed = true;
        return 0;
    }
    let found = &mut search.found[usize::from(search.passed)];
    if *found != 0 {
        return 0;
    }
    let Some(dynamic) = headers.iter().find(|h| h.kind == PT_DYNAMIC) else { return 0 };
    // SAFETY: the loader has mapped it, and it ends in a null entry (elf(5)).
    let tables = unsafe { Tables::read(at(dynamic.vaddr) as *const [u64; 2], object.bias) };
    // SAFETY: as above.
    *found = tables.map_or(0, |tables| unsafe { tables.find(search.name) });
    c_int::from(search.found[1] != 0)
}

/// The symbol tables of an object.
struct Tables {
    bias: usize,
    symbols: *const Symbol,
    strings: *const c_char,
    versions: *const u16,
    hash: *const u32,
    gnu_hash: *const u32,
}

impl Tables {
    /// # Safety
    /// `entries` is the dynamic section of an object that was loaded with `bias`.
    unsafe fn read(mut entries: *const [u64; 2], bias: usize) -> Option<Tables> {
        let mut found = [0usize; 5];
        loop {
            // SAFETY: the caller's promise.
            let [tag, value] = unsafe { *entries };
            if tag == 0 {
                break;
            }
            let tags = [DT_SYMTAB, DT_STRTAB, DT_VERSYM, DT_HASH, DT_GNU_HASH];
            if let Some(i) = tags.iter().position(|t| *t == tag) {
                // glibc has added the bias already, musl has not.
                let value = value as usize;
                found[i] = if value < bias { bias + value } else { value };
            }
            // SAFETY: before the null entry.
            entries = unsafe { entries.add(1) };
        }
        let [symbols, strings, versions, hash, gnu_hash] = found;
        (symbols != 0 && strings != 0).then_some(Tables {
            bias,
            symbols: symbols as *const Symbol,
            strings: strings as *const c_char,
            versions: versions as *const u16,
            hash: hash as *const u32,
            gnu_hash: gnu_hash as *const u32,
        })
    }

    /// # Safety
    /// The object is loaded.
    unsafe fn find(&self, name: &[u8]) -> usize {
        // SAFETY: the caller's promise; the tables are laid out as the gABI and glibc say.
        unsafe {
            if !self.gnu_hash.is_null() {
                return self.by_gnu_hash(name);
            }
            if self.hash.is_null() {
                return 0;
            }
            // Its second word is the number of symbols.
            let count = *self.hash.add(1);
            (1..count).map(|i| self.address(i, name)).find(|a| *a != 0).unwrap_or(0)
        }
    }

    /// # Safety
    /// The object is loaded.
    unsafe fn by_gnu_hash(&self, name: &[u8]) -> usize {
        let hash = gnu_hash(name);
        // SAFETY: as for `find`: four words, the filter, the buckets, the chains.
        unsafe {
            let [buckets, first, filter, _] = *self.gnu_hash.cast::<[u32; 4]>();
            if buckets == 0 {
                return 0;
            }
            let table = self.gnu_hash.add(4 + 2 * filter as usize);
            let mut index = *table.add((hash % buckets) as usize);
            if index < first {
                return 0;
            }
            let chain = table.add(buckets as usize);
            loop {
                let there = *chain.add((index - first) as usize);
                if there | 1 == hash | 1 {
                    match self.address(index, name) {
                        0 => {}
                        address => return address,
                    }
                }
                if there & 1 != 0 {
                    return 0;
                }
                index += 1;
            }
        }
    }

    /// Returns the address of symbol `index` if it is the function of this name, otherwise 0.
    ///
    /// # Safety
    /// The object is loaded, and it has such a symbol.
    unsafe fn address(&self, index: u32, name: &[u8]) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            let symbol = &*self.symbols.add(index as usize);
            let hidden = !self.versions.is_null() && *self.versions.add(index as usize) & HIDDEN != 0;
            let is_function = symbol.info & 15 == STT_FUNC && symbol.section != 0;
            let named = || CStr::from_ptr(self.strings.add(symbol.name as usize)).to_bytes() == name;
            if is_function && !hidden && named() { self.bias + symbol.value as usize } else { 0 }
        }
    }
}

fn gnu_hash(name: &[u8]) -> u32 {
    name.iter().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_the_gnu_hash_table() {
        // Values of the published description of the section.
        assert_eq!(gnu_hash(b""), 0x0000_1505);
        assert_eq!(gnu_hash(b"printf"), 0x156b_2bb8);
        assert_eq!(gnu_hash(b"exit"), 0x7c96_7e3f);
        assert_eq!(gnu_hash(b"syscall"), 0xbac2_12a0);
    }
}
