// SPDX-License-Identifier: Apache-2.0
//! What the target does when the process has changed since the plan. The lift itself is tested by
//! `crates/cli/tests/lift/by_itself`, with the programs `crates/cli/tests/victims/by_itself*.c`.

use super::*;
use hugelift_linux::proc::procfs::Process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const MB2: u64 = 2 << 20;

/// Maps `len` bytes of anonymous memory with `prot`, filled with `byte`, aligned to 2 MB. Inaccessible memory lies
/// around it, so that the kernel joins it with no neighbour. It lies where no other thread's mapping goes, not even into a hole
/// that a test makes in it.
fn memory(len: u64, prot: Prot, byte: u8) -> Range {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 37);
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
    let at = NEXT.fetch_add(len + 3 * MB2, Ordering::Relaxed);
    let whole = syscall(libc::SYS_mmap, [at, len + 3 * MB2, 0, flags, u64::MAX, 0]) as u64;
    assert_eq!(whole, at);
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

/// Returns whether a fault says that something else is mapped by now, and that no call was made.
fn is_stale(fault: &Fault) -> bool {
    matches!(fault, Fault::Kept(why) if why.starts_with("another mapping is there now"))
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
    assert!(is_stale(&fault), "{fault}");
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
    assert!(is_stale(&fault), "{fault}");
    assert_eq!(byte_at(old.start), 4);
    // Nothing of the kind was ever planned here.
    let fault = own.mremap(copy, Addr(1 << 40)).unwrap_err();
    assert!(is_stale(&fault), "{fault}");
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
    own.unmap(gone).unwrap();
    assert!(matches!(own.copy(gone, to.start), Err(Fault::Call { .. })));
}

#[test]
fn a_file_is_never_mapped_over_a_span() {
    let mut own = Own::new(&[], Vec::new());
    let span = memory(MB2, Prot::R, 5);
    for source in [Source::Private(FileHandle(0), 0), Source::Anonymous] {
        let over = own.mmap(span, Prot::R, source, Place::Over);
        assert!(matches!(over, Err(Fault::Lost(_))));
        assert_eq!(byte_at(span.start), 5);
    }
}

/// Nobody may check afterwards whether the span is still there: its addresses may be another's by then.
#[test]
fn a_move_that_was_not_made_keeps_the_bytes() {
    let (old, gone) = (memory(MB2, Prot::R, 1), memory(MB2, Prot::R, 2));
    let mut own = Own::new(&Process::OWN.maps().unwrap(), Vec::new());
    own.unmap(gone).unwrap();
    let fault = own.mremap(gone, old.start).unwrap_err();
    assert!(matches!(fault, Fault::Kept(_)), "{fault}");
    // The kernel itself refuses this one: a move onto itself.
    let fault = own.mremap(old, old.start).unwrap_err();
    assert!(matches!(fault, Fault::Kept(_)), "{fault}");
    assert_eq!(byte_at(old.start), 1);
}

#[test]
fn what_a_failed_move_has_unmapped_is_restored() {
    let (old, copy) = (memory(2 * MB2, Prot::R, 1), memory(2 * MB2, Prot::R, 1));
    let own = Own::new(&Process::OWN.maps().unwrap(), Vec::new());
    let mappings = own.planned.all_at(old).unwrap();
    let pid = own.pid;
    assert!(restored(pid, copy, old, &mappings), "nothing is lacking");
    let second = Range::sized(Addr(old.start.0 + MB2), MB2).unwrap();
    assert_eq!(syscall(libc::SYS_munmap, [old.start.0, 2 * MB2, 0, 0, 0, 0]), 0);
    assert!(restored(pid, copy, old, &mappings));
    assert_eq!((byte_at(old.start), byte_at(second.start)), (1, 1));
    let prot = |at: Addr| Process::OWN.maps().unwrap().iter().find(|m| m.range.contains(at)).map(|m| m.prot);
    assert_eq!(prot(second.start), Some(Prot::R));
    // Another mapping that has taken the addresses stays as it is, and the loss is reported.
    assert_eq!(syscall(libc::SYS_munmap, [old.start.0, 2 * MB2, 0, 0, 0, 0]), 0);
    let (prot, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    let args = [second.start.0, MB2, prot as u64, flags as u64, u64::MAX, 0];
    assert_eq!(syscall(libc::SYS_mmap, args) as u64, second.start.0);
    assert_eq!(syscall(libc::SYS_munmap, [copy.start.0, 2 * MB2, 0, 0, 0, 0]), 0);
    assert!(!restored(pid, copy, old, &mappings));
}

/// What has become writable since the plan may be written to at any moment, by whoever made it so.
#[test]
fn memory_that_has_become_writable_is_not_replaced() {
    let (old, copy) = (memory(MB2, Prot::R, 1), memory(MB2, Prot::R, 1));
    let mut own = Own::new(&Process::OWN.maps().unwrap(), Vec::new());
    own.protect(old, Prot::RW).unwrap();
    let fault = own.mremap(copy, old.start).unwrap_err();
    assert!(is_stale(&fault), "{fault}");
    // SAFETY: a write to the writable mapping made above.
    unsafe { (old.start.0 as *mut u8).write_volatile(7) };
    own.protect(old, Prot::R).unwrap();
    own.mremap(copy, old.start).unwrap();
}

/// Only what was mapped by this target, and has not moved since, is unmapped.
#[test]
fn only_what_is_ours_is_released() {
    let theirs = memory(MB2, Prot::RW, 1);
    let mut own = Own::new(&Process::OWN.maps().unwrap(), Vec::new());
    own.release(theirs).unwrap();
    assert_eq!(byte_at(theirs.start), 1);
    // A place that was just free.
    let place = memory(MB2, Prot::RW, 0);
    own.unmap(place).unwrap();
    own.mmap(place, Prot::RW, Source::Anonymous, Place::Free).unwrap();
    assert_eq!(own.scratch().all(), [place]);
    own.release(place).unwrap();
    assert!(own.scratch().all().is_empty() && !is_mapped(place.start));
}

fn is_mapped(at: Addr) -> bool {
    Process::OWN.maps().unwrap().iter().any(|m| m.range.contains(at))
}

/// Held by the test that unloads an object, or counts how many were.
static UNLOADS: Mutex<()> = Mutex::new(());

/// Opens and closes a shared object that nothing else uses.
fn unload_something() {
    // A library that another test has open as well would stay.
    let _one = UNLOADS.lock().unwrap_or_else(PoisonError::into_inner);
    let seen = loaded::unloads();
    for name in [c"libBrokenLocale.so.1", c"libnss_compat.so.2", c"libthread_db.so.1"] {
        // SAFETY: these libraries have no initial functions that matter, and nothing of them is used.
        unsafe {
            let object = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
            if !object.is_null() {
                libc::dlclose(object);
            }
        }
    }
    assert_ne!(loaded::unloads(), seen, "no library could be unloaded");
}

/// dlclose(3) and another mapping of the same size may come between the check of the bytes and the move.
#[test]
fn an_object_that_is_unloaded_after_the_check_makes_it_check_again() {
    for unloaded in [0, 1, CHECKS_OUTSIDE] {
        let (old, copy) = (memory(MB2, Prot::R, 1), memory(MB2, Prot::R, 2));
        let mut own = Own::new(&Process::OWN.maps().unwrap(), Vec::new());
        let mut checks = 0;
        let check = || {
            checks += 1;
            if checks <= unloaded {
                unload_something();
            }
            Ok::<(), Infallible>(())
        };
        own.move_checked(copy, old, check).map_err(|why| why.fault("", old, |never| match never {})).unwrap();
        assert!(checks > unloaded, "{checks} {unloaded}");
        assert_eq!(byte_at(old.start), 2);
    }
}

/// A fork goes on after a second, so the loader's lock may not be held for longer.
#[test]
fn a_check_that_takes_long_is_not_made_under_the_lock() {
    let (old, copy) = (memory(MB2, Prot::R, 1), memory(MB2, Prot::R, 2));
    let mut own = Own::new(&Process::OWN.maps().unwrap(), Vec::new());
    let mut checks = 0;
    let check = || {
        checks += 1;
        unload_something();
        if checks == CHECKS_OUTSIDE {
            std::thread::sleep(LONGEST_INSIDE + Duration::from_millis(1));
        }
        Ok::<(), Infallible>(())
    };
    let made = own.move_checked(copy, old, check);
    assert!(matches!(made, Err(NotMade::Unheld)), "{made:?}");
    assert_eq!((checks, byte_at(old.start), byte_at(copy.start)), (CHECKS_OUTSIDE, 1, 2));
}

#[test]
fn a_file_that_differs_is_not_put_back() {
    let (old, other) = (memory(MB2, Prot::R, 1), memory(MB2, Prot::R, 1));
    let mut own = Own::new(&Process::OWN.maps().unwrap(), Vec::new());
    let at = Addr(other.start.0 + MB2 - 3);
    syscall(libc::SYS_mprotect, [other.start.0, MB2, prot_bits(Prot::RW), 0, 0, 0]);
    // SAFETY: a write to the mapping made above, which is writable now.
    unsafe { (at.0 as *mut u8).write_volatile(9) };
    let differs = own.put_back(other, old);
    let expected = Addr(old.start.0 + MB2 - 3);
    assert!(matches!(differs, Err(NotPutBack::Differs(at)) if at == expected), "{differs:?}");
    assert_eq!((byte_at(old.start), byte_at(at)), (1, 9));
    own.put_back(memory(MB2, Prot::R, 1), old).unwrap();
}

#[test]
fn the_loader_is_held_for_the_time_of_a_call() {
    assert_eq!(loaded::hold(|_| 7), Some(7));
    // A panic inside comes out again, and the lock is free afterwards. This one calls no hook: the hook prints a backtrace,
    // which takes seconds on a busy machine, and no other test gets the lock meanwhile.
    let panicked = std::panic::catch_unwind(|| loaded::hold(|_| std::panic::resume_unwind(Box::new(()))));
    assert!(panicked.is_err());
    let _one = UNLOADS.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(loaded::hold(|unloads| unloads), loaded::unloads());
}
