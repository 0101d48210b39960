// SPDX-License-Identifier: Apache-2.0
//! A trace of memory accesses, whole and in two pieces, and the walks that it needs.
#![no_main]

use hugelift_lab::walks::code::Code;
use hugelift_lab::walks::count::{Counting, Options};
use hugelift_lab::walks::table::CPUS;
use libfuzzer_sys::fuzz_target;

fn counting() -> Counting {
    let options = Options { cpus: vec![&CPUS[0], &CPUS[6]], adjacent: true, skip: 1, window: None };
    Counting::new(options, Code::all())
}

fuzz_target!(|data: (&[u8], usize)| {
    let (bytes, cut) = data;
    let cut = cut.checked_rem(bytes.len()).unwrap_or(0);
    let (mut whole, mut pieces) = (counting(), counting());
    whole.feed(bytes);
    pieces.feed(&bytes[..cut]);
    pieces.feed(&bytes[cut..]);
    let (all, again) = (whole.finish(), pieces.finish());
    assert_eq!(all, again);
    assert_eq!(whole.reader.lines, pieces.reader.lines);
    match all {
        Ok(counted) => {
            for of in &counted.cpus {
                // An access needs a walk for each of its pages at most: 17 pages of 4 kB.
                assert!(of.layouts.iter().all(|layout| layout.code.walks <= 17 * counted.instructions));
                assert!(of.layouts.iter().all(|layout| layout.data.walks <= 17 * counted.data_accesses));
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
});
