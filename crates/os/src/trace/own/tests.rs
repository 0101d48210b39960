// SPDX-License-Identifier: Apache-2.0
//! What the target does when the process has changed since the plan. The lift itself is tested by the programs
//! in `crates/library/tests`.

use super::*;
use crate::proc::procfs::Process;

const MB2: u64 = 2 << 20;

/// Maps `len` bytes of anonymous memory with `prot`, filled with `byte`, aligned to 2 MB. Inaccessible memory lies
/// around it, so that the kernel joins it with no neighbour.
fn memory(len: u64, prot: Prot, byte: u8) -> Range {
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let whole = syscall(libc::SYS_mmap, [0, len + 3 * MB2, 0, flags, u64::MAX, 0]) as u64;
    let start = (whole + 1).next_multiple_of(MB2);
    syscall(libc::SYS_mprotect, [start, len, prot_bits(Prot::RW), 0, 0, 0]);
    // SAFETY: the bytes lie in the mapping made above, which is writable.
    unsafe { std::ptr::write_bytes(start as *mut u8, byte, len as usize) };
    let range = Range::sized(Addr(start), len).unwrap();
    syscall(libc::SYS_mprotect, [start, len, prot_bits(prot), 0, 0, 0]);
    range
}

fn byte_at(addr: Addr) -> u8 {
    // SAFETY: the tests read only what they have mapped.
    unsafe { (addr.0 as *const u8).read_volatile() }
}

#[test]
fn a_copy_replaces_what_was_planned() {
    let (old, copy) = (memory(MB2, Prot::R, 1), memory(MB2, Prot::R, 2));
    let mut own = Own::new(&Process::OWN.maps().unwrap(), Vec::new());
    own.mremap(copy, old.start).unwrap();
    assert_eq!(byte_at(old.start), 2);
    // It is no longer what the plan knows.
    let again = memory(MB2, Prot::R, 3);
    let fault = own.mremap(again, old.start).unwrap_err();
    assert!(matches!(fault, Fault::Call { errno: libc::ESTALE, .. }), "{fault}");
    assert_eq!(byte_at(old.start), 2);
}

#[test]
fn what_was_mapped_since_the_plan_is_not_replaced() {
    let old = memory(MB2, Prot::R, 1);
    let mut own = Own::new(&Process::OWN.maps().unwrap(), Vec::new());
    // Another mapping takes the addresses, with another protection.
    let other = memory(MB2, Prot::RW, 4);
    let (number, args) = mremap_call(other, old.start);
    assert_eq!(syscall(number, args) as u64, old.start.0);
    let copy = memory(MB2, Prot::R, 2);
    let fault = own.mremap(copy, old.start).unwrap_err();
    assert!(matches!(fault, Fault::Call { errno: libc::ESTALE, .. }), "{fault}");
    assert_eq!(byte_at(old.start), 4);
    // Nothing of the kind was ever planned here.
    let fault = own.mremap(copy, Addr(1 << 40)).unwrap_err();
    assert!(matches!(fault, Fault::Call { errno: libc::ESTALE, .. }), "{fault}");
}

#[test]
fn data_that_was_written_since_the_copy_is_copied_again() {
    let (old, copy) = (memory(MB2, Prot::RW, 1), memory(MB2, Prot::RW, 1));
    let mut own = Own::new(&Process::OWN.maps().unwrap(), Vec::new());
    // SAFETY: a write to the writable mapping made above.
    unsafe { (old.start.0 as *mut u8).write_volatile(7) };
    own.mremap(copy, old.start).unwrap();
    assert_eq!(byte_at(old.start), 7);
}

#[test]
fn memory_that_is_gone_is_an_error_of_the_copy() {
    let (gone, to) = (memory(MB2, Prot::R, 1), memory(MB2, Prot::RW, 0));
    let mut own = Own::new(&Process::OWN.maps().unwrap(), Vec::new());
    own.munmap(gone).unwrap();
    assert!(matches!(own.copy(gone, to.start), Err(Fault::Call { .. })));
}

#[test]
fn a_file_is_never_mapped_over_a_span() {
    let mut own = Own::new(&[], Vec::new());
    let span = memory(MB2, Prot::R, 5);
    let over = own.mmap(span, Prot::R, Source::Private(FileHandle(0), 0), Place::Over);
    assert!(matches!(over, Err(Fault::Lost(_))));
    assert_eq!(byte_at(span.start), 5);
}

#[test]
fn the_loader_is_held_for_the_time_of_a_call() {
    assert_eq!(loaded::hold(|_| 7), Some(7));
    // A panic inside comes out again, and the lock is free afterwards.
    let panicked = std::panic::catch_unwind(|| loaded::hold(|_| panic!("on purpose")));
    assert!(panicked.is_err());
    assert_eq!(loaded::hold(|unloads| unloads), Some(loaded::unloads()));
}
