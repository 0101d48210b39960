// SPDX-License-Identifier: Apache-2.0
//! Re-lays whole ELF files: a file that is not refused keeps its bytes, and does not change again.
#![no_main]

use hugelift_core::addr::PageSize;
use hugelift_relink::align::{layout, verify};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // The smallest size: inputs are small.
    let Ok(first) = layout(data, PageSize::SMALL) else { return };
    // An extreme p_align demands more padding than fits into memory.
    if first.bytes > 1 << 24 {
        return;
    }
    let output = first.write(data);
    verify(data, &output).expect("a copy of the input");
    let again = layout(&output, PageSize::SMALL).expect("the copy is as good as the input");
    assert!(again.is_identity());
});
