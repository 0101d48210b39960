// SPDX-License-Identifier: Apache-2.0
//! The code is run: threads jump into it with registers and flags of their own, and come out of it.

use super::*;
use nix::sys::signal::{SigSet, Signal};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Carry, parity, adjust, zero, sign, direction and overflow.
const FLAGS: u64 = 0xcd5;

std::arch::global_asm!(
    // hugelift_test_enter(code, after, flags): jumps to `code` with these flags. When it comes back, stores its
    // registers and flags in `after`.
    ".globl hugelift_test_enter",
    ".globl hugelift_test_back",
    "hugelift_test_enter:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov r12, rsi",
    "mov r13, rdi",
    "mov eax, 39", // getpid: what the tracer would load
    "push rdx",
    "popfq",
    "jmp r13",
    "hugelift_test_back:",
    "mov [r12], rax",
    "mov [r12 + 8], rcx",
    "mov [r12 + 16], rdx",
    "mov [r12 + 24], rsi",
    "mov [r12 + 32], rdi",
    "mov [r12 + 40], r8",
    "mov [r12 + 48], r9",
    "mov [r12 + 56], r10",
    "mov [r12 + 64], r11",
    "pushfq",
    "pop qword ptr [r12 + 72]",
    "cld",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
);

unsafe extern "C" {
    fn hugelift_test_enter(code: u64, after: *mut [u64; 10], flags: u64);
    static hugelift_test_back: u8;
}

/// Registers that no other test has, and that lead back.
fn own(seed: u64) -> Regs {
    let of = |n: u64| 0x1111_2222_3333_0000 + (seed << 8) + n;
    let [rax, rcx, rdx, rsi, rdi] = [of(0), of(1), of(2), of(3), of(4)];
    let [r8, r9, r10, r11] = [of(5), of(6), of(7), of(8)];
    let rip = (&raw const hugelift_test_back) as u64;
    Regs { rax, rcx, rdx, rsi, rdi, r8, r9, r10, r11, rip, ..Regs::default() }
}

/// Maps code, first to write to it and then to run it, and returns its address.
fn map(code: &[u8]) -> u64 {
    assert!(code.len() <= SLOT_BYTES);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new page, which is written to and then protected; nothing else knows it.
    unsafe {
        let page = libc::mmap(ptr::null_mut(), 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        ptr::copy_nonoverlapping(code.as_ptr(), page.cast(), code.len());
        assert_eq!(libc::mprotect(page, 4096, libc::PROT_READ | libc::PROT_EXEC), 0);
        page as u64
    }
}

/// Runs code for a thread with these registers, which is to block SIGUSR2 afterwards. Asserts that it gets all of
/// its own.
fn run(code: &[u8], skipped: u64, regs: &Regs, flags: u64) {
    let (at, mut after) = (map(code) + skipped, [0; 10]);
    // SAFETY: the code jumps to `hugelift_test_back`, and changes no register that is not stored there.
    unsafe { hugelift_test_enter(at, &raw mut after, flags) };
    let Regs { rax, rcx, rdx, rsi, rdi, r8, r9, r10, r11, .. } = *regs;
    assert_eq!(after[..9], [rax, rcx, rdx, rsi, rdi, r8, r9, r10, r11]);
    assert_eq!(after[9] & FLAGS, flags & FLAGS, "{flags:#x}");
    let blocked = SigSet::thread_get_mask().unwrap();
    assert!(blocked.contains(Signal::SIGUSR2) && !blocked.contains(Signal::SIGUSR1));
}

/// The signal mask: SIGUSR2 alone.
fn mask() -> u64 {
    1 << (Signal::SIGUSR2 as u32 - 1)
}

/// Some flags, all and none.
const SOME: [u64; 4] = [0x202, 0x202 | FLAGS, 0x202 | 0x41, 0x202 | 0x894];

#[test]
fn a_lent_thread_gets_its_own_back() {
    for (seed, flags) in (0..).zip(SOME) {
        let regs = own(seed);
        let code = lent_stub(Addr(0), &regs, mask()).unwrap();
        assert!(code.len() <= LENT_STUB_BYTES);
        run(&code, 0, &regs, flags);
    }
}

/// They wait until the leader sets the word, with the call of the tracer and without.
#[test]
fn threads_wait_for_the_word() {
    for skipped in [0, super::super::SYSCALL_BYTES] {
        let (word, back) = (AtomicU32::new(0), AtomicU32::new(0));
        let at = Addr(word.as_ptr() as u64);
        std::thread::scope(|scope| {
            for (seed, flags) in (1..).zip(SOME) {
                let back = &back;
                scope.spawn(move || {
                    let regs = own(seed);
                    run(&waiting_stub(at, &regs, mask()).unwrap(), 0, &regs, flags);
                    back.fetch_add(1, Ordering::SeqCst);
                });
            }
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(back.load(Ordering::SeqCst), 0, "the word is 0");
            let regs = own(9);
            run(&leading_stub(at, &regs, mask()).unwrap(), skipped, &regs, SOME[1]);
            assert_eq!(word.load(Ordering::SeqCst), 1);
        });
        assert_eq!(back.load(Ordering::SeqCst), SOME.len() as u32);
        // A thread that comes later does not wait.
        let regs = own(10);
        run(&waiting_stub(at, &regs, mask()).unwrap(), 0, &regs, SOME[2]);
    }
}

/// A wake-up without the word is none.
#[test]
fn a_wake_up_alone_changes_nothing() {
    let word = AtomicU32::new(0);
    let at = Addr(word.as_ptr() as u64);
    let back = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let regs = own(3);
            run(&waiting_stub(at, &regs, mask()).unwrap(), 0, &regs, SOME[3]);
            back.store(1, Ordering::SeqCst);
        });
        let wake = || {
            // SAFETY: futex(2) with FUTEX_WAKE touches no memory.
            unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), FUTEX_WAKE, i32::MAX, 0, 0, 0) }
        };
        let woken = (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            wake() == 1
        });
        assert!(woken, "it waits by futex(2)");
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(back.load(Ordering::SeqCst), 0);
        word.store(1, Ordering::SeqCst);
        wake();
    });
    assert_eq!(back.load(Ordering::SeqCst), 1);
}
