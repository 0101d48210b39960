// SPDX-License-Identifier: Apache-2.0
//! A seccomp filter as the kernel hands it out, and the system call that it answers.
#![no_main]

use hugelift_core::seccomp::{Data, Filter, Filters, Instruction};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Call, Vec<[u8; 8]>)| {
    let ((number, arch, pc, args), bytes) = input;
    let data = Data { number, arch, pc, args };
    let program: Vec<Instruction> = bytes.into_iter().map(Instruction::from_bytes).collect();
    if let Some(filter) = Filter::new(program) {
        let action = filter.action(&data);
        assert_eq!(Filters::new(vec![filter.clone(), filter]).action(&data), action);
    }
});

/// The fields of [`Data`].
type Call = (i32, u32, u64, [u64; 6]);
