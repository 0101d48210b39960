// SPDX-License-Identifier: Apache-2.0
//! Looks up a name in `/etc/ld.so.cache`.
#![no_main]

use hugelift_core::ldcache::{X86_64, lookup};
use libfuzzer_sys::fuzz_target;

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";

fuzz_target!(|data: &[u8]| {
    let (name, rest) = data.split_at(data.len().min(4));
    // Once as it is, and once behind the magic, with which few inputs begin.
    for cache in [rest.to_vec(), [MAGIC, rest].concat()] {
        match lookup(&cache, name, X86_64) {
            Ok(paths) => {
                assert!(paths.iter().all(|path| !path.contains(&0)));
                assert!(paths.len() <= cache.len() / 24, "an entry has 24 bytes");
            }
            Err(error) => assert!(!error.to_string().contains('\n')),
        }
    }
});
