// SPDX-License-Identifier: Apache-2.0
//! Memory to which the kernel writes how long an interrupted wait still lasts.
//!
//! The kernel continues such a wait after a stop only if it could write there:
//!
//! | call | writes to | if it cannot |
//! |---|---|---|
//! | ppoll, pselect6, select | the timeout itself | EINTR (fs/select.c, `poll_select_finish`) |
//! | nanosleep, clock_nanosleep with a relative time | the second structure, if there is one | EFAULT (kernel/time/hrtimer.c, `nanosleep_copyout`) |
//!
//! A personality with STICKY_TIMEOUTS keeps the kernel from writing to a timeout, with the same EINTR. Of the other calls
//! with a timeout none writes it back before it returns: semtimedop, rt_sigtimedwait, epoll_pwait2, io_pgetevents,
//! recvmmsg, mq_timedreceive, mq_timedsend, futex, futex_waitv.

use crate::arch::Call;
use crate::ptrace::Tid;
use hugelift_core::addr::{Addr, Range};
use hugelift_linux::proc::procfs::Process;

/// Bytes of `struct timespec` and `struct timeval`.
const BYTES: u64 = 16;

/// The smallest page that a system has: within one, the protection is the same.
const PAGE: u64 = 4096;

/// What the kernel writes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WrittenBack {
    at: Addr,
    /// It is a timeout, and not what a sleep has left.
    is_timeout: bool,
}

impl WrittenBack {
    /// Returns what a call with these arguments has the kernel write back, if anything.
    pub(crate) fn of(number: i64, args: &[u64; 6]) -> Option<WrittenBack> {
        #[cfg(target_arch = "x86_64")]
        if number == libc::SYS_select {
            return WrittenBack::at(args[4], true);
        }
        match number {
            libc::SYS_ppoll => WrittenBack::at(args[2], true),
            libc::SYS_pselect6 => WrittenBack::at(args[4], true),
            libc::SYS_nanosleep => WrittenBack::at(args[1], false),
            libc::SYS_clock_nanosleep if args[1] & libc::TIMER_ABSTIME as u64 == 0 => {
                WrittenBack::at(args[3], false)
            }
            _ => None,
        }
    }

    fn at(address: u64, is_timeout: bool) -> Option<WrittenBack> {
        (address != 0).then_some(WrittenBack { at: Addr(address), is_timeout })
    }

    /// Returns whether it is a timeout.
    pub(crate) fn is_timeout(self) -> bool {
        self.is_timeout
    }

    /// Returns whether the kernel can write it for a thread that waits in `call`.
    pub(crate) fn can_be_written(self, pid: i32, tid: Tid, call: &Call) -> bool {
        !(self.is_timeout && keeps_timeouts(pid, tid)) && (self.is_near(call.sp) || self.is_writable(pid))
    }

    /// Returns whether it lies where the thread has its stack, as with most callers: to read all mappings takes longer.
    fn is_near(self, sp: Addr) -> bool {
        self.at.0 / PAGE == sp.0 / PAGE && (self.at.0 + BYTES - 1) / PAGE == sp.0 / PAGE
    }

    fn is_writable(self, pid: i32) -> bool {
        let Some(range) = Range::sized(self.at, BYTES) else { return false };
        let all = Process::of(pid).maps().unwrap_or_default();
        all.iter().any(|mapping| mapping.prot.write && mapping.range.covers(range))
    }
}

/// Returns whether the kernel leaves the timeouts of a thread as they are (personality(2)); false if that cannot be read.
fn keeps_timeouts(pid: i32, tid: Tid) -> bool {
    const STICKY_TIMEOUTS: u32 = 0x0400_0000;
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/personality")).ok();
    let bits = text.and_then(|text| u32::from_str_radix(text.trim(), 16).ok());
    bits.is_some_and(|bits| bits & STICKY_TIMEOUTS != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(index: usize, value: u64) -> [u64; 6] {
        let mut args = [0; 6];
        args[index] = value;
        args
    }

    #[test]
    fn which_calls_write_back() {
        for (number, args, expected) in [
            (libc::SYS_ppoll, with(2, 0x7000), WrittenBack::at(0x7000, true)),
            (libc::SYS_ppoll, with(3, 0x7000), None),
            (libc::SYS_pselect6, with(4, 0x7000), WrittenBack::at(0x7000, true)),
            (libc::SYS_nanosleep, with(1, 0x7000), WrittenBack::at(0x7000, false)),
            (libc::SYS_nanosleep, with(0, 0x7000), None),
            (libc::SYS_clock_nanosleep, with(3, 0x7000), WrittenBack::at(0x7000, false)),
            (libc::SYS_clock_nanosleep, [1, 1, 0x7000, 0x7000, 0, 0], None),
            (libc::SYS_rt_sigtimedwait, with(2, 0x7000), None),
        ] {
            assert_eq!(WrittenBack::of(number, &args), expected, "{number} {args:?}");
        }
    }

    #[test]
    fn what_can_be_written() {
        static FIXED: [u64; 2] = [1, 1];
        let pid = std::process::id().cast_signed();
        let changed = Box::new([1u64; 2]);
        let is_writable = |at: *const u64| WrittenBack::at(at as u64, true).unwrap().is_writable(pid);
        assert!(is_writable(changed.as_ptr()) && !is_writable(FIXED.as_ptr()));
        let sp = Addr(0x7fff_0000_1800);
        let is_near = |at: u64| WrittenBack::at(at, true).unwrap().is_near(sp);
        assert!(is_near(sp.0 + 64) && is_near(0x7fff_0000_1ff0) && is_near(0x7fff_0000_1000));
        assert!(!is_near(0x7fff_0000_1ff8) && !is_near(0x7fff_0000_2000) && !is_near(0x7fff_0000_0ff8));
        assert!(!keeps_timeouts(pid, pid));
    }
}
