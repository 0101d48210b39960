// SPDX-License-Identifier: Apache-2.0
//! A cycle of jumps: at each place a few instructions that count down and jump to the next.
//!
//! Code is written while its memory is writable, and run while it is executable: never both.

use super::chain::{LINE, Layout};
use crate::memory::Mapping;
use std::io;

/// Bytes that a jump reaches: a direct one on x86-64 32 bits with a sign; on AArch64 its address is
/// in a register.
pub const REACH: u64 = if cfg!(target_arch = "x86_64") { 2 << 30 } else { u64::MAX };

/// Writes the cycle and makes the memory executable, and no longer writable.
///
/// # Errors
/// mprotect(2): a security policy may forbid generated code.
///
/// # Panics
/// The mapping is shorter than the places need, or longer than a jump reaches.
pub fn link(memory: &Mapping, layout: Layout, next: &[u32]) -> io::Result<()> {
    let bytes = layout.bytes(next.len());
    assert!(bytes <= memory.len() && bytes as u64 <= REACH, "{bytes} bytes of code in {}", memory.len());
    memory.protect(libc::PROT_READ | libc::PROT_WRITE)?;
    for (i, &to) in next.iter().enumerate() {
        let (from, to) = (layout.offset(i), layout.offset(to as usize));
        let stub = stub(memory.start() as u64 + from as u64, memory.start() as u64 + to as u64);
        // SAFETY: the place is inside the mapping, as asserted above, which is writable now; a stub
        // is no longer than a line.
        unsafe {
            let place = memory.start().add(from);
            place.copy_from_nonoverlapping(stub.as_ptr(), stub.len());
            make_visible(place);
        }
    }
    memory.protect(libc::PROT_READ | libc::PROT_EXEC)
}

/// Makes `jumps` jumps from the place `from` on. Returns the place that it has come to.
///
/// # Safety
/// `from` is a place of a cycle that [`link`] wrote, in memory that is still mapped and executable.
pub unsafe fn run(from: *mut u8, jumps: u64) -> *mut u8 {
    // SAFETY: a stub follows the C calling convention: the count is its argument, it changes no
    // other register that must be kept and no stack, and returns the address of the last stub.
    let code = unsafe { std::mem::transmute::<*mut u8, extern "C" fn(u64) -> *mut u8>(from) };
    // A count of 0 would go on until it is 0 again.
    code(jumps.max(1))
}

/// `dec rdi; jz end; jmp next; end: lea rax, [start]; ret`
#[cfg(target_arch = "x86_64")]
fn stub(at: u64, next: u64) -> Vec<u8> {
    let relative = |end: u64, to: u64| (to.wrapping_sub(at + end) as i32).to_le_bytes();
    let mut code = vec![0x48, 0xff, 0xcf, 0x74, 0x05, 0xe9];
    code.extend(relative(10, next));
    code.extend([0x48, 0x8d, 0x05]);
    code.extend(relative(17, at));
    code.push(0xc3);
    code
}

/// `subs x0, x0, #1; b.eq end; mov x16, next (four instructions); br x16; end: adr x0, start; ret`
#[cfg(target_arch = "aarch64")]
fn stub(_at: u64, next: u64) -> Vec<u8> {
    let mut code: Vec<u32> = vec![0xf100_0400, 0x5400_0000 | 6 << 5];
    for (i, opcode) in [0xd280_0000u32, 0xf280_0000, 0xf280_0000, 0xf280_0000].into_iter().enumerate() {
        let half = (next >> (16 * i)) as u32 & 0xffff;
        code.push(opcode | (i as u32) << 21 | half << 5 | 16);
    }
    code.push(0xd61f_0000 | 16 << 5);
    // 28 bytes back: the offset's lower two bits and the other nineteen are apart.
    let back = (-28i32) as u32;
    code.push(0x1000_0000 | (back & 3) << 29 | (back >> 2 & 0x7_ffff) << 5);
    code.push(0xd65f_03c0);
    code.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Caches of instructions follow those of data by themselves.
#[cfg(target_arch = "x86_64")]
unsafe fn make_visible(_place: *mut u8) {}

/// Writes the data cache back and drops what the instruction cache may hold (Arm ARM, B2.4.4). The
/// mprotect(2) that follows makes the CPU fetch anew.
///
/// # Safety
/// `place` is mapped and readable.
#[cfg(target_arch = "aarch64")]
unsafe fn make_visible(place: *mut u8) {
    // SAFETY: the caller's promise; these instructions change no memory and no register.
    unsafe {
        std::arch::asm!(
            "dc cvau, {place}", "dsb ish", "ic ivau, {place}", "dsb ish", "isb",
            place = in(reg) place, options(nostack, preserves_flags)
        );
    }
}

const _: () = assert!(LINE >= 36);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Pages;
    use crate::tlb::chain::{STRIDE, cycle};
    use hugelift_measure::random::Random;
    use hugelift_os::proc::procfs::Process;

    #[test]
    fn jumps_lead_where_the_cycle_does() {
        let memory = Mapping::populated(Pages::Small, (64 * STRIDE) as u64).unwrap();
        for layout in [Layout::Spread, Layout::Packed] {
            let next = cycle(64, &mut Random::seeded(3));
            link(&memory, layout, &next).unwrap();
            let place = |i: usize| memory.start().wrapping_add(layout.offset(i));
            // The last of `n` counted places is n - 1 jumps away.
            // SAFETY: places that were just linked.
            let (none, one, all) = unsafe { (run(place(0), 1), run(place(0), 2), run(place(0), 65)) };
            assert_eq!((none, one, all), (place(0), place(next[0] as usize), place(0)));
        }
        let maps = Process::OWN.maps().unwrap();
        assert!(maps.iter().all(|m| !m.prot.is_wx()), "writable and executable: {maps:?}");
    }
}
