// SPDX-License-Identifier: Apache-2.0
//! Seccomp filters of any bytes are refused or answer.

use hugelift_core::seccomp::{Action, Data, Filter, Filters, Instruction};
use proptest::collection::vec;
use proptest::prelude::*;

/// Codes that the kernel permits, and a few that it does not.
const CODES: [u16; 46] = [
    0x20, 0x80, 0x81, 0x00, 0x01, 0x60, 0x61, 0x02, 0x03, 0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3c,
    0x44, 0x4c, 0x54, 0x5c, 0x64, 0x6c, 0x74, 0x7c, 0x84, 0xa4, 0xac, 0x05, 0x15, 0x1d, 0x25, 0x2d, 0x35,
    0x3d, 0x45, 0x4d, 0x06, 0x16, 0x07, 0x87, 0x28, 0x30, 0x94, 0x48, 0xb1,
];

fn instruction() -> impl Strategy<Value = Instruction> {
    let code = prop_oneof![20 => prop::sample::select(&CODES[..]), 1 => any::<u16>()];
    let k = prop_oneof![(0u32..16).prop_map(|n| n * 4), 0u32..16, any::<u32>()];
    (code, 0u8..4, 0u8..4, k).prop_map(|(code, jt, jf, k)| Instruction { code, jt, jf, k })
}

fn data() -> impl Strategy<Value = Data> {
    (any::<i32>(), any::<u32>(), any::<u64>(), any::<[u64; 6]>()).prop_map(|(number, arch, pc, args)| Data {
        number,
        arch,
        pc,
        args,
    })
}

/// A list of instructions of which most are accepted by the kernel: it ends with a return.
fn program() -> impl Strategy<Value = Vec<Instruction>> {
    let end = Instruction { code: 0x16, jt: 0, jf: 0, k: 0 };
    vec(instruction(), 0..24).prop_map(move |mut all| {
        all.push(end);
        all.push(end);
        all
    })
}

proptest! {
    #[test]
    fn any_program_is_refused_or_answers(program in program(), data in data()) {
        if let Some(filter) = Filter::new(program) {
            let action = filter.action(&data);
            // One filter twice answers as once.
            let twice = Filters::new(vec![filter.clone(), filter]);
            prop_assert_eq!(twice.action(&data), action);
        }
    }

    #[test]
    fn any_bytes_are_refused_or_answer(bytes in vec(any::<[u8; 8]>(), 0..64), data in data()) {
        let program: Vec<Instruction> = bytes.into_iter().map(Instruction::from_bytes).collect();
        if let Some(filter) = Filter::new(program) {
            filter.action(&data);
        }
    }

    /// A further filter never makes a call possible.
    #[test]
    fn a_further_filter_is_never_milder(programs in vec(program(), 1..4), data in data()) {
        let filters: Vec<Filter> = programs.into_iter().filter_map(Filter::new).collect();
        let mut last = Action::Allow;
        for count in 0..=filters.len() {
            let action = Filters::new(filters[..count].to_vec()).action(&data);
            let is_errno = matches!((action, last), (Action::Errno(_), Action::Errno(_)));
            prop_assert!(action <= last || is_errno, "{:?} after {:?}", action, last);
            last = action;
        }
    }
}
