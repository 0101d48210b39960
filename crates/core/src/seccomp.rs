// SPDX-License-Identifier: Apache-2.0
//! What seccomp(2) filters answer to a system call: their programs of classic BPF, checked and run as the
//! kernel does.
//!
//! A program has at most 4096 instructions and jumps only forward, so each run ends.

/// The kernel's `BPF_MAXINSNS`.
const MOST: usize = 4096;
/// The kernel's `BPF_MEMWORDS`.
const WORDS: usize = 16;
/// `sizeof(struct seccomp_data)`
const DATA_BYTES: u32 = 64;
/// The kernel's `MAX_ERRNO`.
const MAX_ERRNO: u16 = 4095;

/// An instruction: `struct sock_filter` (linux/filter.h).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    /// What it does.
    pub code: u16,
    /// Instructions to skip if its condition is true.
    pub jt: u8,
    /// Instructions to skip if its condition is false.
    pub jf: u8,
    /// Its constant.
    pub k: u32,
}

impl Instruction {
    /// The bytes of an instruction.
    pub const BYTES: usize = 8;

    /// Reads an instruction as a little-endian kernel writes it.
    pub fn from_bytes(bytes: [u8; Instruction::BYTES]) -> Instruction {
        let [c0, c1, jt, jf, k @ ..] = bytes;
        Instruction { code: u16::from_le_bytes([c0, c1]), jt, jf, k: u32::from_le_bytes(k) }
    }
}

/// A system call as filters see it: `struct seccomp_data` (linux/seccomp.h).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Data {
    /// Its number.
    pub number: i32,
    /// The architecture: `AUDIT_ARCH_...` (linux/audit.h).
    pub arch: u32,
    /// The address behind the system call instruction.
    pub pc: u64,
    /// Its arguments.
    pub args: [u64; 6],
}

impl Data {
    /// Returns the 32-bit word at this offset; filters read no other size.
    fn word(&self, at: u32) -> u32 {
        let half = |value: u64| if at.is_multiple_of(8) { value as u32 } else { (value >> 32) as u32 };
        match at {
            0 => self.number.cast_unsigned(),
            4 => self.arch,
            8..16 => half(self.pc),
            _ => half(self.args.get((at / 8) as usize - 2).copied().unwrap_or_default()),
        }
    }
}

/// What a filter answers to a system call (seccomp(2)), in the order in which one answer overrules another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Action {
    /// The process is killed; also the meaning of each unknown answer.
    KillProcess,
    /// The thread is killed.
    KillThread,
    /// The thread gets SIGSYS in place of the call.
    Trap,
    /// The call is not made, and returns this errno; 0 pretends success.
    Errno(u16),
    /// Another process answers in its place.
    UserNotification,
    /// A tracer decides; without one the call returns ENOSYS.
    Trace,
    /// The call is logged and made.
    Log,
    /// The call is made.
    Allow,
}

impl Action {
    /// Returns the meaning of what a filter has returned.
    fn of(value: u32) -> Action {
        match value >> 16 {
            0x0000 => Action::KillThread,
            0x0003 => Action::Trap,
            0x0005 => Action::Errno((value as u16).min(MAX_ERRNO)),
            0x7fc0 => Action::UserNotification,
            0x7ff0 => Action::Trace,
            0x7ffc => Action::Log,
            0x7fff => Action::Allow,
            _ => Action::KillProcess,
        }
    }

    /// Returns whether the call is made as if there were no filter.
    pub fn is_made(self) -> bool {
        matches!(self, Action::Log | Action::Allow)
    }

    /// Returns which of two answers the kernel follows, this one or that of an older filter.
    fn and(self, older: Action) -> Action {
        match (self, older) {
            // Of two errnos that of the newer filter is returned.
            (Action::Errno(_), Action::Errno(_)) => self,
            _ => self.min(older),
        }
    }
}

/// A filter that the kernel would accept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter(Vec<Instruction>);

/// Classes and operations of instructions (linux/bpf_common.h), written as the kernel's macros.
mod code {
    pub const LD_ABS: u16 = 0x20;
    pub const LD_LEN: u16 = 0x80;
    pub const LDX_LEN: u16 = 0x81;
    pub const LD_IMM: u16 = 0x00;
    pub const LDX_IMM: u16 = 0x01;
    pub const LD_MEM: u16 = 0x60;
    pub const LDX_MEM: u16 = 0x61;
    pub const ST: u16 = 0x02;
    pub const STX: u16 = 0x03;
    pub const ADD_K: u16 = 0x04;
    pub const ADD_X: u16 = 0x0c;
    pub const SUB_K: u16 = 0x14;
    pub const SUB_X: u16 = 0x1c;
    pub const MUL_K: u16 = 0x24;
    pub const MUL_X: u16 = 0x2c;
    pub const DIV_K: u16 = 0x34;
    pub const DIV_X: u16 = 0x3c;
    pub const OR_K: u16 = 0x44;
    pub const OR_X: u16 = 0x4c;
    pub const AND_K: u16 = 0x54;
    pub const AND_X: u16 = 0x5c;
    pub const LSH_K: u16 = 0x64;
    pub const LSH_X: u16 = 0x6c;
    pub const RSH_K: u16 = 0x74;
    pub const RSH_X: u16 = 0x7c;
    pub const NEG: u16 = 0x84;
    pub const XOR_K: u16 = 0xa4;
    pub const XOR_X: u16 = 0xac;
    pub const JA: u16 = 0x05;
    pub const JEQ_K: u16 = 0x15;
    pub const JEQ_X: u16 = 0x1d;
    pub const JGT_K: u16 = 0x25;
    pub const JGT_X: u16 = 0x2d;
    pub const JGE_K: u16 = 0x35;
    pub const JGE_X: u16 = 0x3d;
    pub const JSET_K: u16 = 0x45;
    pub const JSET_X: u16 = 0x4d;
    pub const RET_K: u16 = 0x06;
    pub const RET_A: u16 = 0x16;
    pub const TAX: u16 = 0x07;
    pub const TXA: u16 = 0x87;
}

impl Filter {
    /// Checks a program as the kernel does (`seccomp_check_filter` and `bpf_check_classic`); `None` if it
    /// would refuse it. Memory that was not written to reads as 0 here, where the kernel refuses to read it.
    pub fn new(program: Vec<Instruction>) -> Option<Filter> {
        let len = program.len();
        let may_follow = |(at, one): (usize, &Instruction)| {
            let lands = |skipped: u32| (at as u64 + 1 + u64::from(skipped)) < len as u64;
            match one.code {
                code::LD_ABS => one.k < DATA_BYTES && one.k.is_multiple_of(4),
                code::LD_MEM | code::LDX_MEM | code::ST | code::STX => (one.k as usize) < WORDS,
                code::DIV_K => one.k != 0,
                code::LSH_K | code::RSH_K => one.k < u32::BITS,
                code::JA => lands(one.k),
                code::JEQ_K..=code::JSET_X if is_condition(one.code) => {
                    lands(one.jt.into()) && lands(one.jf.into())
                }
                code::RET_K | code::RET_A => true,
                other => is_plain(other),
            }
        };
        let ends = program.last().is_some_and(|last| matches!(last.code, code::RET_K | code::RET_A));
        let is_valid = len <= MOST && ends && program.iter().enumerate().all(may_follow);
        is_valid.then_some(Filter(program))
    }

    /// Returns what it answers to a call.
    pub fn action(&self, data: &Data) -> Action {
        Action::of(self.run(data))
    }

    /// Returns the value that the program returns. A step outside of the program, which the check excludes,
    /// ends it with 0, as a division by zero does in the kernel.
    fn run(&self, data: &Data) -> u32 {
        let (mut a, mut x, mut memory, mut at) = (0u32, 0u32, [0u32; WORDS], 0usize);
        while let Some(one) = self.0.get(at) {
            let k = one.k;
            at += 1;
            let word = k as usize % WORDS;
            let mut jump = |is_true: bool| at += usize::from(if is_true { one.jt } else { one.jf });
            match one.code {
                code::LD_ABS => a = data.word(k),
                code::LD_LEN => a = DATA_BYTES,
                code::LDX_LEN => x = DATA_BYTES,
                code::LD_IMM => a = k,
                code::LDX_IMM => x = k,
                code::LD_MEM => a = memory[word],
                code::LDX_MEM => x = memory[word],
                code::ST => memory[word] = a,
                code::STX => memory[word] = x,
                code::ADD_K => a = a.wrapping_add(k),
                code::ADD_X => a = a.wrapping_add(x),
                code::SUB_K => a = a.wrapping_sub(k),
                code::SUB_X => a = a.wrapping_sub(x),
                code::MUL_K => a = a.wrapping_mul(k),
                code::MUL_X => a = a.wrapping_mul(x),
                code::DIV_K | code::DIV_X => {
                    let by = if one.code == code::DIV_K { k } else { x };
                    match a.checked_div(by) {
                        Some(value) => a = value,
                        None => return 0,
                    }
                }
                code::OR_K => a |= k,
                code::OR_X => a |= x,
                code::AND_K => a &= k,
                code::AND_X => a &= x,
                // The CPU takes the shift's low 5 bits.
                code::LSH_K => a = a.wrapping_shl(k),
                code::LSH_X => a = a.wrapping_shl(x),
                code::RSH_K => a = a.wrapping_shr(k),
                code::RSH_X => a = a.wrapping_shr(x),
                code::NEG => a = a.wrapping_neg(),
                code::XOR_K => a ^= k,
                code::XOR_X => a ^= x,
                code::JA => at = at.saturating_add(k as usize),
                code::JEQ_K => jump(a == k),
                code::JEQ_X => jump(a == x),
                code::JGT_K => jump(a > k),
                code::JGT_X => jump(a > x),
                code::JGE_K => jump(a >= k),
                code::JGE_X => jump(a >= x),
                code::JSET_K => jump(a & k != 0),
                code::JSET_X => jump(a & x != 0),
                code::TAX => x = a,
                code::TXA => a = x,
                code::RET_K => return k,
                code::RET_A => return a,
                _ => return 0,
            }
        }
        0
    }
}

/// Returns whether a conditional jump has this code.
fn is_condition(code: u16) -> bool {
    use code::*;
    matches!(code, JEQ_K | JEQ_X | JGT_K | JGT_X | JGE_K | JGE_X | JSET_K | JSET_X)
}

/// Returns whether a permitted instruction without conditions on its fields has this code.
fn is_plain(code: u16) -> bool {
    use code::*;
    let loads = matches!(code, LD_LEN | LDX_LEN | LD_IMM | LDX_IMM | TAX | TXA | NEG);
    let with_k = matches!(code, ADD_K | SUB_K | MUL_K | OR_K | AND_K | XOR_K);
    let with_x = matches!(code, ADD_X | SUB_X | MUL_X | DIV_X | OR_X | AND_X | LSH_X | RSH_X | XOR_X);
    loads || with_k || with_x
}

/// All filters of a thread.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Filters(Vec<Filter>);

impl Filters {
    /// Takes the filters of a thread, the oldest first.
    pub fn new(all: Vec<Filter>) -> Filters {
        Filters(all)
    }

    /// Returns how many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns what becomes of a call under all of them.
    pub fn action(&self, data: &Data) -> Action {
        let answers = self.0.iter().map(|filter| filter.action(data));
        answers.fold(Action::Allow, |older, newer| newer.and(older))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X86_64: u32 = 0xc000_003e;
    const ALLOW: u32 = 0x7fff_0000;
    const KILL: u32 = 0x8000_0000;
    const EPERM: u32 = 0x0005_0001;

    fn op(code: u16, k: u32) -> Instruction {
        Instruction { code, jt: 0, jf: 0, k }
    }

    fn jump(code: u16, k: u32, jt: u8, jf: u8) -> Instruction {
        Instruction { code, jt, jf, k }
    }

    fn filter(program: &[Instruction]) -> Filter {
        Filter::new(program.to_vec()).unwrap_or_else(|| panic!("refused: {program:?}"))
    }

    fn call(number: i32, args: [u64; 6]) -> Data {
        Data { number, arch: X86_64, pc: 0x7fff_1234_5678, args }
    }

    /// A filter that answers each other call.
    fn constant(value: u32) -> Filter {
        filter(&[op(code::RET_K, value)])
    }

    /// The shape that libseccomp generates: the architecture, the x32 calls, then a list of numbers.
    fn list(numbers: &[u32], listed: u32, other: u32) -> Filter {
        let mut program = vec![
            op(code::LD_ABS, 4),
            jump(code::JEQ_K, X86_64, 1, 0),
            op(code::RET_K, KILL),
            op(code::LD_ABS, 0),
            jump(code::JGE_K, 0x4000_0000, 0, 1),
            op(code::RET_K, KILL),
        ];
        for number in numbers {
            program.extend([jump(code::JEQ_K, *number, 0, 1), op(code::RET_K, listed)]);
        }
        program.push(op(code::RET_K, other));
        filter(&program)
    }

    #[test]
    fn a_list_of_numbers() {
        let docker = list(&[9, 11, 25], ALLOW, EPERM);
        let action = |data: Data| docker.action(&data);
        assert_eq!(action(call(25, [0; 6])), Action::Allow);
        assert_eq!(action(call(26, [0; 6])), Action::Errno(1));
        assert_eq!(action(call(0x4000_0019, [0; 6])), Action::KillProcess);
        assert_eq!(action(Data { arch: 0x4000_0003, ..call(25, [0; 6]) }), Action::KillProcess);
    }

    /// As systemd's MemoryDenyWriteExecute: mprotect with PROT_EXEC fails, any other is made.
    #[test]
    fn a_test_of_an_argument() {
        let denies = filter(&[
            op(code::LD_ABS, 0),
            jump(code::JEQ_K, 10, 0, 4),
            op(code::LD_ABS, 32),
            op(code::AND_K, 4),
            jump(code::JEQ_K, 4, 0, 1),
            op(code::RET_K, EPERM),
            op(code::RET_K, ALLOW),
        ]);
        let of = |number, prot: u64| denies.action(&call(number, [0x1000, 4096, prot, 0, 0, 0]));
        assert_eq!(of(10, 5), Action::Errno(1));
        assert_eq!(of(10, 1), Action::Allow);
        assert_eq!(of(9, 5), Action::Allow);
    }

    /// As Chromium's: both halves of an argument are compared, and a bit mask is tested.
    #[test]
    fn both_halves_of_an_argument() {
        let program = filter(&[
            op(code::LD_ABS, 28),
            jump(code::JEQ_K, 0, 0, 3),
            op(code::LD_ABS, 24),
            jump(code::JSET_K, !0x17, 1, 0),
            op(code::RET_K, ALLOW),
            op(code::RET_K, 0x0003_0000),
        ]);
        let of = |value: u64| program.action(&call(28, [0, value, 0, 0, 0, 0]));
        assert_eq!((of(0x17), of(0x20), of(1 << 32)), (Action::Allow, Action::Trap, Action::Trap));
    }

    #[test]
    fn every_word_of_the_call_is_read() {
        let data = Data { number: 1, arch: 2, pc: 3 | 4 << 32, args: [5, 6, 7, 8, 9, 10 | 11 << 32] };
        let word = |k: u32| filter(&[op(code::LD_ABS, k), op(code::RET_A, 0)]).run(&data);
        let got: Vec<u32> = (0..DATA_BYTES).step_by(4).map(word).collect();
        assert_eq!(got, [1, 2, 3, 4, 5, 0, 6, 0, 7, 0, 8, 0, 9, 0, 10, 11]);
    }

    #[test]
    fn arithmetic_is_that_of_the_kernel() {
        let with = |a: u32, code: u16, x: u32| {
            let program = [op(code::LDX_IMM, x), op(code::LD_IMM, a), op(code, x), op(code::RET_A, 0)];
            filter(&program).run(&Data::default())
        };
        for (a, code, x, expected) in [
            (7, code::ADD_X, u32::MAX, 6),
            (1, code::SUB_X, 2, u32::MAX),
            (1 << 31, code::MUL_X, 2, 0),
            (9, code::DIV_X, 2, 4),
            (9, code::DIV_X, 0, 0),
            (1, code::LSH_X, 33, 2),
            (8, code::RSH_X, 35, 1),
            (1, code::NEG, 0, u32::MAX),
            (6, code::XOR_K, 3, 5),
            (6, code::AND_X, 3, 2),
            (6, code::OR_K, 9, 15),
        ] {
            assert_eq!(with(a, code, x), expected, "{a} {code:#x} {x}");
        }
        let stored = [
            op(code::LD_IMM, 5),
            op(code::ST, 15),
            op(code::LDX_MEM, 15),
            op(code::LD_IMM, 0),
            op(code::TXA, 0),
            op(code::RET_A, 0),
        ];
        assert_eq!(filter(&stored).run(&Data::default()), 5);
    }

    #[test]
    fn the_most_severe_answer_is_followed() {
        let of = |values: &[u32]| {
            Filters::new(values.iter().map(|v| constant(*v)).collect()).action(&Data::default())
        };
        assert_eq!(of(&[]), Action::Allow);
        assert_eq!(of(&[ALLOW, 0x7ffc_0000]), Action::Log);
        assert_eq!(of(&[0x7ffc_0000, 0x7ff0_0001]), Action::Trace);
        assert_eq!(of(&[0x7ff0_0001, 0x7fc0_0000]), Action::UserNotification);
        assert_eq!(of(&[0x7fc0_0000, EPERM, ALLOW]), Action::Errno(1));
        assert_eq!(of(&[EPERM, 0x0005_0026, ALLOW]), Action::Errno(38), "that of the newest");
        assert_eq!(of(&[0x0005_ffff]), Action::Errno(4095));
        assert_eq!(of(&[EPERM, 0x0003_0000]), Action::Trap);
        assert_eq!(of(&[0x0003_0000, 0]), Action::KillThread);
        assert_eq!(of(&[0, KILL]), Action::KillProcess);
        assert_eq!(of(&[0x1234_0000]), Action::KillProcess, "an unknown answer");
        assert!(Action::Log.is_made() && !Action::Errno(0).is_made());
    }

    #[test]
    fn what_the_kernel_refuses_is_refused() {
        let end = op(code::RET_K, ALLOW);
        let refused = |one: Instruction| Filter::new(vec![one, end, end]).is_none();
        assert!(Filter::new(vec![]).is_none());
        assert!(Filter::new(vec![op(code::LD_IMM, 0)]).is_none(), "no end");
        assert!(Filter::new(vec![end; MOST + 1]).is_none() && Filter::new(vec![end; MOST]).is_some());
        for one in [
            op(code::LD_ABS, 64),
            op(code::LD_ABS, 2),
            // Half words and bytes, a load by index, and a remainder.
            op(0x28, 0),
            op(0x30, 0),
            op(0x40, 0),
            op(0x94, 3),
            op(code::ST, 16),
            op(code::DIV_K, 0),
            op(code::LSH_K, 32),
            op(code::JA, 2),
            op(code::JA, u32::MAX),
            jump(code::JEQ_K, 0, 2, 0),
            jump(code::JSET_X, 0, 0, 255),
            op(0xffff, 0),
        ] {
            assert!(refused(one), "{one:?}");
        }
        assert!(!refused(op(code::JA, 1)) && !refused(jump(code::JGT_X, 0, 1, 1)));
    }

    #[test]
    fn an_instruction_of_bytes() {
        let got = Instruction::from_bytes([0x15, 0, 1, 2, 0x3e, 0, 0, 0xc0]);
        assert_eq!(got, jump(code::JEQ_K, X86_64, 1, 2));
    }
}
