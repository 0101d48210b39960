// SPDX-License-Identifier: Apache-2.0
//! Reads the functions that an ELF file names, and writes the map in which perf(1) looks up anonymous
//! code (`/tmp/perf-PID.map`; tools/perf/Documentation/jit-interface.txt in Linux).

use crate::addr::Range;
use crate::demangle::{Names, demangled};
use crate::printable::printable;
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object as _, ObjectSymbol as _, ReadRef, SymbolKind};
use std::borrow::Cow;
use std::fmt::Write as _;

/// A function at its stated address.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Function {
    /// Stated address.
    pub vaddr: u64,
    /// Length in bytes.
    pub size: u64,
    /// Name as in the symbol table (mangled).
    pub name: String,
}

/// Returns the functions of `file` by address, from its symbol table and its exported symbols (all that
/// a stripped file has); one name for each address.
///
/// # Errors
/// Returns why it is not an ELF file.
pub fn functions<'data>(file: impl ReadRef<'data>) -> Result<Vec<Function>, String> {
    let elf = ElfFile64::<LittleEndian, _>::parse(file).map_err(|e| e.to_string())?;
    let defined = elf.symbols().chain(elf.dynamic_symbols());
    let functions = defined.filter(|s| s.is_definition() && s.kind() == SymbolKind::Text && s.size() > 0);
    let mut all: Vec<Function> = functions
        .filter_map(|s| {
            let name = s.name().ok().filter(|name| !name.is_empty())?;
            Some(Function { vaddr: s.address(), size: s.size(), name: name.to_string() })
        })
        .collect();
    all.sort();
    all.dedup_by_key(|f| f.vaddr);
    Ok(all)
}

/// Returns a line for each of the functions, of an object loaded with `bias`, that overlaps one of
/// `spans`.
pub fn perf_map(functions: &[Function], bias: u64, spans: &[Range], names: Names) -> String {
    let mut out = String::new();
    for function in functions {
        let start = crate::addr::Addr(function.vaddr.wrapping_add(bias));
        let Some(range) = Range::sized(start, function.size) else { continue };
        if spans.iter().any(|span| span.intersect(range).is_some()) {
            let name = match names {
                Names::Demangled => demangled(&function.name),
                Names::Mangled => Cow::Borrowed(function.name.as_str()),
            };
            let name = printable(&name);
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{:x} {:x} {name}", start.0, function.size);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Addr;

    #[inline(never)]
    fn landmark(n: u64) -> u64 {
        std::hint::black_box(n) + 1
    }

    #[test]
    fn own_functions() {
        assert_eq!(landmark(1), 2);
        let file = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let all = functions(&*file).unwrap();
        let own = all.iter().find(|f| f.name.contains("symbols") && f.name.contains("landmark"));
        assert!(own.is_some_and(|f| f.size > 0), "{} functions", all.len());
        assert!(all.windows(2).all(|w| w[0].vaddr < w[1].vaddr));
        assert!(functions(&b"no ELF file"[..]).is_err());
        for cut in [64, 100, 4096, file.len() / 2] {
            // A damaged file gives an error or fewer functions, but no panic.
            assert!(functions(&file[..cut]).map_or(0, |f| f.len()) <= all.len());
        }
    }

    #[test]
    fn lines_of_the_map() {
        let function = |vaddr, size, name: &str| Function { vaddr, size, name: name.into() };
        let all = [
            function(0x1000, 0x10, "before"),
            function(0x1ff8, 0x10, "_ZN1a6acrossEv"),
            function(0x2010, 1, "a\nb"),
        ];
        let spans = [Range { start: Addr(0x7000_2000), end: Addr(0x7000_3000) }];
        let map = |bias, names| perf_map(&all, bias, &spans, names);
        let mangled = "70001ff8 10 _ZN1a6acrossEv\n70002010 1 a\\nb\n";
        assert_eq!(map(0x7000_0000, Names::Mangled), mangled);
        assert_eq!(map(0x7000_0000, Names::Demangled), mangled.replace("_ZN1a6acrossEv", "a::across"));
        assert_eq!(map(u64::MAX, Names::Mangled), "");
    }
}
