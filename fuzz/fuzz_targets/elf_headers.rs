// SPDX-License-Identifier: Apache-2.0
//! Parses ELF headers and program headers, in place or elsewhere: the second half of the input is the
//! program headers that the file has deeper inside.
#![no_main]

use hugelift_core::elf::Headers;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (head, deeper) = data.split_at(data.len() / 2);
    for parsed in [Headers::parse(data), Headers::parse_with(head, |_, _| Some(deeper.to_vec()))] {
        let Ok(headers) = parsed else { continue };
        assert!(!headers.segments.is_empty());
        let ends = headers.segments.windows(2).map(|w| (w[0].vaddr.checked_add(w[0].memsz), w[1].vaddr));
        assert!(ends.into_iter().all(|(end, next)| end.is_some_and(|end| end <= next)));
        headers.first_page(4096);
    }
});
