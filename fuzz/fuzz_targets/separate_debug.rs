// SPDX-License-Identifier: Apache-2.0
//! Separates a program and moves its debug information, a file of its own: nothing panics. The input is the length
//! of the program (4 bytes, little-endian), the program, and the debug information.
#![no_main]

use hugelift_core::addr::PageSize;
use hugelift_relink::separate::proof::{self, DebugFile, Versions};
use hugelift_relink::separate::{Options, separate, separate_debug};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some(page) = PageSize::new(64 << 10) else { return };
    let Some((len, rest)) = data.split_first_chunk::<4>() else { return };
    let Some((program, debug)) = rest.split_at_checked(u32::from_le_bytes(*len) as usize) else { return };
    let Ok(mut done) = separate(program, page, Options { least: 1 }) else { return };
    let Ok(new) = separate_debug(debug, program, &done) else { return };
    // What is compressed is unpacked to 64 times the file at most.
    assert!(new.len() <= 66 * debug.len());
    let name = b"name.debug";
    if done.link(name, &new).is_ok() {
        let file = DebugFile { name, bytes: &new };
        let _ = proof::check_linked(program, &done.bytes, &done.distances, Some(file));
    }
    let programs = Versions { original: program, copy: &done.bytes };
    // What is damaged in the input may be so in the copy.
    let _ = proof::check_debug(programs, Versions { original: debug, copy: &new }, &done.distances);
});
