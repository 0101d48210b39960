// SPDX-License-Identifier: Apache-2.0
//! A note of past runs.
#![no_main]

use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::note::Note;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    match Note::parse(data) {
        Ok(note) => {
            if let Some(touched) = &note.touched {
                let all = Range { start: Addr(0), end: Addr(1 << 32) };
                let seen = touched.seen(all, 0x1000, PageSize::MB2);
                assert!(seen.iter().all(|r| all.covers(*r)));
            }
            // It is written and read back, whatever its path.
            let json = note.to_json().expect("every note has a form");
            assert_eq!(Note::parse(&json).as_ref(), Ok(&note));
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
});
