// SPDX-License-Identifier: Apache-2.0
//! The code that a borrowed thread runs on AArch64.

use hugelift_core::addr::Addr;

/// `svc #0`: the system call of number x8, with arguments in x0 to x5; its result in x0.
pub const SVC: u32 = 0xd400_0001;
/// The words of code in [`stub`], and the values that it loads.
const WORDS: usize = 16;
const VALUES: usize = 7;

/// Bytes that [`stub`] takes.
pub const LENT_STUB_BYTES: usize = 4 * WORDS + 8 * (VALUES + 1);

/// Returns whether a `b` in a cave at this address reaches `pc`: its distance has 26 bits, in words.
pub fn reaches(cave: Addr, pc: Addr) -> bool {
    const MOST: u64 = 1 << 27;
    pc.0.is_multiple_of(4) && cave.0.abs_diff(pc.0) < MOST - LENT_STUB_BYTES as u64
}

/// Returns the word for `b` from one address to another one within its reach.
pub fn jump(from: Addr, to: Addr) -> u32 {
    let words = (to.0.wrapping_sub(from.0) >> 2) as u32;
    0x1400_0000 | words & 0x03ff_ffff
}

/// Returns code that makes the call that the tracer has loaded, sets the signal mask, loads x0 to x5 and x8 with
/// the thread's own values, and jumps to `pc`.
///
/// `svc` changes x0 only, and keeps the flags and the floating-point registers, so all other registers still
/// hold the thread's values. No register is free for the address of a far jump.
#[rustfmt::skip]
pub fn stub(cave: Addr, pc: Addr, own: [u64; VALUES], mask: u64) -> Vec<u8> {
    const MASK: usize = VALUES;
    // The distance from one word of the code to a value, in words.
    let ahead = |at: usize, value: usize| (WORDS + 2 * value - at) as u32;
    let load = |at: usize, register: u32, value: usize| 0x5800_0000 | ahead(at, value) << 5 | register;
    let words: [u32; WORDS] = [
        SVC,                           // svc #0         number in x8; arguments in x0 to x5
        0xd280_10e8,                   // mov x8, #135   rt_sigprocmask
        0xd280_0040,                   // mov x0, #2     SIG_SETMASK
        0x1000_0001 | ahead(3, MASK) << 5, // adr x1, mask
        0xd280_0002,                   // mov x2, #0     no old mask
        0xd280_0103,                   // mov x3, #8     size of the mask
        SVC,                           // svc #0
        load(7, 0, 0),                 // ldr x0, value  the thread's own
        load(8, 1, 1),
        load(9, 2, 2),
        load(10, 3, 3),
        load(11, 4, 4),
        load(12, 5, 5),
        load(13, 8, 6),
        jump(Addr(cave.0 + 4 * 14), pc), // b pc         where the thread was
        0,                             //                aligns the values
    ];
    let values = own.iter().chain([&mask]).flat_map(|value| value.to_le_bytes());
    words.iter().flat_map(|word| word.to_le_bytes()).chain(values).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a few instructions do: an interpreter of those that the stub may use.
    struct Cpu {
        x: [u64; 31],
        pc: u64,
        /// x8 and x0 to x3 at each `svc`.
        calls: Vec<[u64; 5]>,
    }

    impl Cpu {
        /// Runs the code until it leaves it.
        fn run(&mut self, code: &[u8], at: u64) {
            let bytes = |address: u64, len: usize| {
                let start = usize::try_from(address - at).expect("in the code");
                &code[start..start + len]
            };
            let inside = at..at + code.len() as u64;
            let mut steps = 0;
            while inside.contains(&self.pc) {
                steps += 1;
                assert!(steps < 100, "the code does not end");
                let word = u32::from_le_bytes(bytes(self.pc, 4).try_into().unwrap());
                let register = (word & 31) as usize;
                // imm19 and imm26, with their signs.
                let near = (i64::from((word << 8) as i32 >> 13)) << 2;
                let far = (i64::from((word << 6) as i32 >> 6)) << 2;
                let mut next = self.pc + 4;
                match word {
                    SVC => {
                        self.calls.push([self.x[8], self.x[0], self.x[1], self.x[2], self.x[3]]);
                        self.x[0] = 0xdead;
                    }
                    w if w >> 21 == 0xd280_0000 >> 21 => self.x[register] = u64::from(w >> 5 & 0xffff),
                    w if w >> 24 == 0x58 => {
                        let from = self.pc.wrapping_add_signed(near);
                        assert_eq!(from % 8, 0, "an unaligned value");
                        self.x[register] = u64::from_le_bytes(bytes(from, 8).try_into().unwrap());
                    }
                    w if w >> 24 == 0x10 => self.x[register] = self.pc.wrapping_add_signed(near),
                    w if w >> 26 == 0b00_0101 => next = self.pc.wrapping_add_signed(far),
                    w => panic!("{w:#x} at {:#x}", self.pc),
                }
                self.pc = next;
            }
        }
    }

    #[test]
    fn every_register_is_the_threads_own_at_the_end() {
        let cave = Addr(0x7f_0000_0f00);
        let mine = |n: usize| 0x1111_2222_3333_0000 + n as u64;
        let far = (1u64 << 27) - LENT_STUB_BYTES as u64 - 4;
        for pc in [cave.0 + 0x1_0000, cave.0 - 4, cave.0 - far, cave.0 + far, cave.0 + 256] {
            assert!(reaches(cave, Addr(pc)), "{pc:#x}");
            let own = [mine(0), mine(1), mine(2), mine(3), mine(4), mine(5), mine(8)];
            let mask = 0xfedc_ba98_7654_3210;
            let code = stub(cave, Addr(pc), own, mask);
            assert_eq!(code.len(), LENT_STUB_BYTES);
            let mut cpu = Cpu { x: std::array::from_fn(mine), pc: cave.0, calls: Vec::new() };
            // The tracer has loaded a call.
            let call = [222, 1, 2, 3, 4];
            [cpu.x[8], cpu.x[0], cpu.x[1], cpu.x[2], cpu.x[3]] = call;
            (cpu.x[4], cpu.x[5]) = (5, 6);
            cpu.run(&code, cave.0);
            assert_eq!(cpu.pc, pc);
            assert_eq!(cpu.x, std::array::from_fn(mine));
            let [first, second] = cpu.calls[..] else { panic!("{:?}", cpu.calls) };
            assert_eq!(first, call);
            // rt_sigprocmask(SIG_SETMASK, mask, NULL, 8)
            let at = usize::try_from(second[2] - cave.0).unwrap();
            assert_eq!(second, [135, 2, cave.0 + at as u64, 0, 8]);
            assert_eq!(code[at..at + 8], u64::to_le_bytes(mask));
        }
    }

    #[test]
    fn a_near_jump_has_a_limit() {
        let cave = Addr(0x7f_0000_0f00);
        for (pc, is_near) in [
            (cave.0 + (1 << 27), false),
            (cave.0 - (1 << 27), false),
            (cave.0 + (1 << 26), true),
            (cave.0 + 2, false),
            (0x40_0000, false),
        ] {
            assert_eq!(reaches(cave, Addr(pc)), is_near, "{pc:#x}");
        }
    }

    #[test]
    fn a_jump_goes_both_ways() {
        assert_eq!(jump(Addr(0x1000), Addr(0x1010)), 0x1400_0004);
        assert_eq!(jump(Addr(0x1010), Addr(0x1000)), 0x17ff_fffc);
    }
}
