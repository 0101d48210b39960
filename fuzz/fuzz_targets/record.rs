// SPDX-License-Identifier: Apache-2.0
//! A record of the store.
#![no_main]

use hugelift_core::record::Record;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    match Record::parse(data) {
        Ok(record) => {
            for entry in &record.entries {
                assert!(entry.spans.iter().all(|s| s.offset + s.bytes <= entry.file.bytes));
            }
            // It is written and read back, whatever its path.
            let json = record.to_json().expect("every record has a form");
            assert_eq!(Record::parse(&json).as_ref(), Ok(&record));
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
});
