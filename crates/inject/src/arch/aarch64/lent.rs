// SPDX-License-Identifier: Apache-2.0
//! A borrowed thread on AArch64: the code that gives it back, and how its system call goes on.
//!
//! The kernel prepares the restart of an interrupted call before the stop at which it delivers signals
//! (arch/arm64/kernel/signal.c, `do_signal`): at the stop the program counter is at the `svc` again and x0 is
//! the call's first argument; or x0 is -EINTR and the first argument is lost. The number of the call is
//! forgotten. What the kernel does if a signal arrives, it keeps to itself. So that it decides once more, the
//! thread gets the result that the call had ([`CallEnd`]) at the end of another call.

use super::regs::{Regs, SYSCALL_BYTES};
use crate::arch::aarch64_stub::{self as stub, SVC};
pub use crate::arch::aarch64_stub::{LENT_STUB_BYTES, reaches};
use crate::arch::interrupted::{Anew, Call, CallEnd, Interrupted, Surroundings};
use hugelift_core::addr::Addr;

/// Registers at a ptrace stop do not show the call that it has interrupted.
pub const SHOWS_CALLS: bool = false;
/// Whether [`undecided`] leaves it to the kernel, when a thread goes on, how its call does.
pub const DECIDES_LATE: bool = false;

/// Returns nothing: the kernel decides before the stop. [`CallEnd`] has it decide once more.
pub fn undecided(_regs: &Regs, _again: &Regs) -> Option<Regs> {
    None
}

/// `NT_ARM_SYSTEM_CALL`
pub const SYSCALL_REGSET: Option<usize> = Some(0x404);

/// Regsets of registers that a system call clears: the SVE registers beyond the floating-point registers (`NT_ARM_SVE`), and
/// the registers of SME's streaming mode (`NT_ARM_SSVE`).
pub const LOST_IN_CALLS: [usize; 2] = [0x405, 0x40b];

/// Returns whether the registers of a regset that begins like this (`struct user_sve_header`) are in use: the
/// flag is `SVE_PT_REGS_SVE`.
pub fn is_lost(header: &[u8; 16]) -> bool {
    u16::from_le_bytes([header[12], header[13]]) & 1 != 0
}

/// Returns code, without a stack, that makes one system call in a thread which was stopped anywhere, and
/// then gives the thread back (see [`stub::stub`]). `regs` are the thread's own. The tracer loads the call's
/// number and arguments and enters at the first byte. `None` if `cave` is too far from the thread's code.
pub fn lent_stub(cave: Addr, regs: &Regs, mask: u64) -> Option<Vec<u8>> {
    let x = &regs.x;
    let own = [x[0], x[1], x[2], x[3], x[4], x[5], x[8]];
    reaches(cave, regs.pc()).then(|| stub::stub(cave, regs.pc(), own, mask))
}

/// Bytes of a slot for the code of a thread that waits for others; there is no such code here.
pub const SLOT_BYTES: usize = 256;

/// Returns `None`: no jump leads back from a mapping of its own to everywhere.
pub fn waiting_stub(_word: Addr, _regs: &Regs, _mask: u64) -> Option<Vec<u8>> {
    None
}

/// Returns `None`, as [`waiting_stub`] does.
pub fn leading_stub(_word: Addr, _regs: &Regs, _mask: u64) -> Option<Vec<u8>> {
    None
}

const EINTR: i64 = 4;
const ERESTARTSYS: i64 = 512;
const ERESTARTNOHAND: i64 = 514;

/// What an interrupted call returns inside the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Code {
    /// `ERESTARTSYS`: a handler without SA_RESTART ends it with EINTR.
    Sys,
    /// `ERESTARTNOHAND`: each handler does.
    NoHandler,
    /// `ERESTART_RESTARTBLOCK`: so too; without a handler it is continued by restart_syscall(2).
    Block,
}

/// Returns what a call with these arguments returns inside the kernel if a stop interrupts it. `None` if it does
/// not wait, or if that is not known.
fn code_of(number: i64, args: &[u64]) -> Option<Code> {
    const FUTEX_OPERATION: u64 = 0x7f;
    const FUTEX_WAIT: u64 = 0;
    const FUTEX_WAIT_BITSET: u64 = 9;
    const TIMER_ABSTIME: u64 = 1;
    match number {
        libc::SYS_nanosleep => Some(Code::Block),
        libc::SYS_clock_nanosleep if args[1] & TIMER_ABSTIME != 0 => Some(Code::NoHandler),
        libc::SYS_clock_nanosleep => Some(Code::Block),
        libc::SYS_futex => match (args[1] & FUTEX_OPERATION, args[3]) {
            (FUTEX_WAIT | FUTEX_WAIT_BITSET, 0) => Some(Code::Sys),
            (FUTEX_WAIT | FUTEX_WAIT_BITSET, _) => Some(Code::Block),
            _ => None,
        },
        libc::SYS_ppoll
        | libc::SYS_pselect6
        | libc::SYS_rt_sigsuspend
        | libc::SYS_restart_syscall
        | libc::SYS_msgrcv => Some(Code::NoHandler),
        libc::SYS_wait4
        | libc::SYS_waitid
        | libc::SYS_flock
        | libc::SYS_read
        | libc::SYS_readv
        | libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_accept
        | libc::SYS_accept4
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_sendto
        | libc::SYS_sendmsg => Some(Code::Sys),
        _ => None,
    }
}

/// Returns the call that is made with these registers, as the kernel reads its number.
fn number_of(regs: &Regs) -> i64 {
    i64::from(regs.x[8] as i32)
}

/// Returns what lets the kernel decide once more on the call of a thread whose program counter is at its `svc`.
fn call_end(regs: &Regs, code: i64) -> CallEnd {
    let mut end = *regs;
    end.pc = regs.pc.wrapping_add(SYSCALL_BYTES);
    end.x[0] = -code as u64;
    CallEnd { argument: regs.x[0], regs: end }
}

fn is_svc(around: &impl Surroundings, at: u64) -> bool {
    around.instruction(Addr(at)) == Some(SVC.to_le_bytes())
}

/// Returns how a thread with `regs` at a ptrace stop goes on (see above).
///
/// A thread at a `svc` is in that call or about to make it. If the call may end with EINTR, it is right in both cases to end it
/// so. It is not right to continue it: a call that was not yet made must be entered first.
pub fn interrupted(regs: &Regs, around: &impl Surroundings) -> Interrupted {
    let number = number_of(regs);
    if is_svc(around, regs.pc) {
        return match code_of(number, &regs.x) {
            Some(Code::Block) => Interrupted::Enters,
            Some(Code::Sys) => Interrupted::Restarts(*regs, Some(call_end(regs, ERESTARTSYS))),
            Some(Code::NoHandler) => Interrupted::Restarts(*regs, Some(call_end(regs, ERESTARTNOHAND))),
            None => Interrupted::No(*regs),
        };
    }
    let svc = regs.pc.wrapping_sub(SYSCALL_BYTES);
    if regs.result() != -EINTR || !is_svc(around, svc) {
        return Interrupted::No(*regs);
    }
    let mut args = [0; 6];
    args.copy_from_slice(&regs.x[..6]);
    let Some(first) = around.first_argument(&Call { number, args, sp: regs.sp(), pc: regs.pc() }) else {
        return Interrupted::No(*regs);
    };
    let mut again = *regs;
    (again.pc, again.x[0]) = (svc, first);
    Interrupted::Eintr(number, again, Some(call_end(&again, ERESTARTNOHAND)))
}

/// Returns how a thread goes on that has entered the call for which [`interrupted`] returned
/// [`Interrupted::Enters`], and was stopped in it: restart_syscall(2) continues it, or it has just begun.
pub fn entered(regs: &Regs, around: &impl Surroundings) -> Interrupted {
    match interrupted(regs, around) {
        Interrupted::Enters => Interrupted::Restarts(*regs, Some(call_end(regs, ERESTARTNOHAND))),
        other => other,
    }
}

/// Returns how a thread at a ptrace stop in a call that the kernel would continue by restart_syscall(2) makes
/// the call itself again: by a jump to it, as the kernel changes the call only if the program counter is still
/// there. `None` if it would not, or without a cave within reach.
pub fn made_anew(regs: &Regs, around: &impl Surroundings, cave: Option<Addr>) -> Option<Anew> {
    let is_continued = is_svc(around, regs.pc) && code_of(number_of(regs), &regs.x) == Some(Code::Block);
    let cave = cave.filter(|cave| is_continued && reaches(*cave, regs.pc()))?;
    Some(Anew { regs: regs.at(cave, regs.sp()), code: stub::jump(cave, regs.pc()).to_le_bytes().to_vec() })
}

/// Returns registers with which an interrupted call returns `result`; `None` here: such a call is made again.
pub fn returning(_: &Regs, _: i64) -> Option<Regs> {
    None
}
