// SPDX-License-Identifier: Apache-2.0
//! A cycle of jumps: the code at each place counts down and jumps to the next place.
//!
//! The memory is writable while the code is written, and executable while it runs: never both.

use super::chain::{LINE, Layout};
use crate::memory::Mapping;
use std::io;

/// Bytes that a jump reaches. A direct jump on x86-64 has a signed 32-bit offset; on AArch64 the address is
/// in a register.
pub const REACH: u64 = if cfg!(target_arch = "x86_64") { 2 << 30 } else { u64::MAX };

/// Writes the code of the cycle, then makes the memory executable and no longer writable.
///
/// # Errors
/// Those of mprotect(2): a security policy may forbid generated code.
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

/// Runs `jumps` places from `from` on. Returns the last place.
///
/// # Safety
/// `from` is a place of a cycle that [`link`] wrote, in memory that is still mapped and executable.
pub unsafe fn run(from: *mut u8, jumps: u64) -> *mut u8 {
    // SAFETY: a stub follows the C calling convention: its argument is the count, it changes no
    // callee-saved register and not the stack, and it returns the address of the last stub.
    let code = unsafe { std::mem::transmute::<*mut u8, extern "C" fn(u64) -> *mut u8>(from) };
    // A count of 0 would wrap around.
    code(jumps.max(1))
}

/// Returns the code at address `at`. The count is in `rdi`; the last place is returned in `rax`.
#[cfg(target_arch = "x86_64")]
fn stub(at: u64, next: u64) -> Vec<u8> {
    // Offsets are relative to the end of their instruction.
    let relative = |end: u64, to: u64| (to.wrapping_sub(at + end) as i32).to_le_bytes();
    let mut code = vec![0x48, 0xff, 0xcf]; // dec rdi: one place less to go
    code.extend([0x74, 0x05]); // jz +5: over the jmp, when this was the last place
    code.push(0xe9); // jmp next
    code.extend(relative(10, next));
    code.extend([0x48, 0x8d, 0x05]); // lea rax, [rip + offset]: the address of this place
    code.extend(relative(17, at));
    code.push(0xc3); // ret
    code
}

/// Returns the code of a place. The count is in `x0`, where the last place is returned.
#[cfg(target_arch = "aarch64")]
fn stub(_at: u64, next: u64) -> Vec<u8> {
    let mut code: Vec<u32> = vec![0xf100_0400]; // subs x0, x0, #1: one place less to go
    code.push(0x5400_0000 | 6 << 5); // b.eq +6 instructions: to the adr, when this was the last place
    // movz and three movk: the address of the next place, 16 bits at a time, to x16
    for (i, opcode) in [0xd280_0000u32, 0xf280_0000, 0xf280_0000, 0xf280_0000].into_iter().enumerate() {
        let half = (next >> (16 * i)) as u32 & 0xffff;
        code.push(opcode | (i as u32) << 21 | half << 5 | 16);
    }
    code.push(0xd61f_0000 | 16 << 5); // br x16
    // adr x0, -28 bytes: the address of this place. The instruction holds the lower two bits of the offset
    // apart from the other nineteen.
    let back = (-28i32) as u32;
    code.push(0x1000_0000 | (back & 3) << 29 | (back >> 2 & 0x7_ffff) << 5);
    code.push(0xd65f_03c0); // ret
    code.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Does nothing: on x86-64 instruction caches are coherent with data caches.
#[cfg(target_arch = "x86_64")]
unsafe fn make_visible(_place: *mut u8) {}

/// Cleans the data cache line and invalidates the instruction cache line (Arm ARM, B2.4.4). The mprotect(2)
/// that follows makes the CPU fetch the code again.
///
/// # Safety
/// `place` is mapped and readable.
#[cfg(target_arch = "aarch64")]
unsafe fn make_visible(place: *mut u8) {
    // SAFETY: `place` is mapped, as the caller has promised; these instructions change no memory and no
    // register.
    unsafe {
        std::arch::asm!(
            "dc cvau, {place}", // clean the data cache line to the point of unification
            "dsb ish",          // wait until that is done on all CPUs
            "ic ivau, {place}", // invalidate the instruction cache line
            "dsb ish",          // wait until that is done
            "isb",              // drop instructions that were fetched before
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
    use hugelift_linux::proc::procfs::Process;

    #[test]
    fn jumps_lead_where_the_cycle_does() {
        let memory = Mapping::populated(Pages::Small, (64 * STRIDE) as u64).unwrap();
        for layout in [Layout::Spread, Layout::Packed] {
            let next = cycle(64, &mut fastrand::Rng::with_seed(3));
            link(&memory, layout, &next).unwrap();
            let place = |i: usize| memory.start().wrapping_add(layout.offset(i));
            // The last of n places is n - 1 jumps away.
            // SAFETY: places that were just linked.
            let (none, one, all) = unsafe { (run(place(0), 1), run(place(0), 2), run(place(0), 65)) };
            assert_eq!((none, one, all), (place(0), place(next[0] as usize), place(0)));
        }
        let maps = Process::OWN.maps().unwrap();
        assert!(maps.iter().all(|m| !m.prot.is_wx()), "writable and executable: {maps:?}");
    }
}
