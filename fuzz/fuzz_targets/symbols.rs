// SPDX-License-Identifier: Apache-2.0
//! The functions that an ELF file names, and perf's map of them.
#![no_main]

use hugelift_core::addr::{Addr, Range};
use hugelift_core::demangle::Names;
use hugelift_core::symbols::{functions, perf_map};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(all) = functions(data) else { return };
    assert!(all.windows(2).all(|pair| pair[0].vaddr < pair[1].vaddr));
    let whole = Range { start: Addr(0), end: Addr(u64::MAX) };
    for names in [Names::Demangled, Names::Mangled] {
        let map = perf_map(&all, 0x1000, &[whole], names);
        for line in map.lines() {
            let mut words = line.splitn(3, ' ');
            let mut number = || words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
            assert!(number().is_some() && number().is_some_and(|size| size > 0), "{line}");
            assert!(words.next().is_some_and(|name| !name.is_empty()), "{line}");
        }
        assert!(map.lines().count() <= all.len());
    }
});
