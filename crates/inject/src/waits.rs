// SPDX-License-Identifier: Apache-2.0
//! System calls in which a thread waits, and what a stop does to them (signal(7), "Interruption of system calls
//! and library functions by stop signals"). Most are continued by the kernel. Some end with EINTR: they can be
//! made again, but a relative timeout would begin anew. Others return what they have moved so far.

use crate::arch::Call;
use crate::ptrace::{Stopped, Tid};
use crate::written_back::WrittenBack;
use hugelift_core::addr::Addr;
use hugelift_linux::proc::pidfd::pidfd_open;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// How a system call waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// The kernel continues it by itself, or it can be made again.
    Unnoticed,
    /// The kernel continues it by itself, if it can write down what is left of it.
    WrittenBack(WrittenBack),
    /// With a relative timeout that would begin anew.
    Timed,
    /// With a relative timeout that is its fourth argument, in milliseconds.
    InRegister(Duration),
    /// With the timeout `SO_RCVTIMEO`, if its descriptor is a socket that has one.
    OnSocket,
    /// It may have moved some bytes already, and would return their number. Or the effect of a stop is unknown.
    CutShort,
}

fn path_of(pid: i32, tid: Tid) -> String {
    format!("/proc/{pid}/task/{tid}/syscall")
}

/// Returns the system call in which a thread sleeps; `None` if it runs, or if that cannot be read.
pub(crate) fn call_of(pid: i32, tid: Tid) -> Option<Call> {
    parse(&std::fs::read_to_string(path_of(pid, tid)).ok()?)
}

/// Returns the first argument of the last system call of a stopped thread, where the kernel keeps it.
pub(crate) fn last_argument(pid: i32, stopped: &Stopped) -> Option<u64> {
    // The kernel shows a call only if it has a number. Which one does not matter.
    if !stopped.set_syscall(libc::SYS_getpid as i32).ok()? {
        return None;
    }
    let call = call_of(pid, stopped.tid());
    stopped.set_syscall(-1).ok()?;
    call.map(|call| call.args[0])
}

/// Parses a line such as `232 0x5 0x7ffd... 0x40 0x64 0x0 0x0 0x7ffd... 0x7f12...`: number, six arguments,
/// stack pointer, program counter. `None` for `running` and for a thread outside of system calls.
fn parse(text: &str) -> Option<Call> {
    let mut words = text.split_whitespace();
    let number = words.next()?.parse().ok().filter(|number| *number >= 0)?;
    let mut hex = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let mut args = [0; 6];
    for slot in &mut args {
        *slot = hex()?;
    }
    Some(Call { number, args, sp: Addr(hex()?), pc: Addr(hex()?) })
}

/// Returns how a call with these arguments waits.
pub(crate) fn wait(number: i64, args: &[u64; 6]) -> Wait {
    const IORING_ENTER_EXT_ARG: u64 = 1 << 3;
    let timed = |is_timed: bool| if is_timed { Wait::Timed } else { Wait::Unnoticed };
    let in_register = |millis: i32| match u64::try_from(millis) {
        Ok(millis @ 1..) => Wait::InRegister(Duration::from_millis(millis)),
        _ => Wait::Unnoticed,
    };
    let receive = |flags: u64| match flags & libc::MSG_WAITALL as u64 {
        0 => Wait::OnSocket,
        _ => Wait::CutShort,
    };
    if let Some(rest) = WrittenBack::of(number, args) {
        return Wait::WrittenBack(rest);
    }
    #[cfg(target_arch = "x86_64")]
    match number {
        libc::SYS_epoll_wait => return in_register(args[3] as i32),
        libc::SYS_poll | libc::SYS_select | libc::SYS_pause => return Wait::Unnoticed,
        _ => {}
    }
    match number {
        libc::SYS_epoll_pwait => in_register(args[3] as i32),
        libc::SYS_epoll_pwait2 | libc::SYS_semtimedop => timed(args[3] != 0),
        libc::SYS_rt_sigtimedwait => timed(args[2] != 0),
        libc::SYS_io_getevents => timed(args[4] != 0),
        libc::SYS_io_uring_enter if args[1] == 0 => timed(args[3] & IORING_ENTER_EXT_ARG != 0),
        libc::SYS_read | libc::SYS_readv | libc::SYS_accept | libc::SYS_accept4 => Wait::OnSocket,
        libc::SYS_recvfrom => receive(args[3]),
        libc::SYS_recvmsg => receive(args[2]),
        libc::SYS_futex
        | libc::SYS_nanosleep
        | libc::SYS_clock_nanosleep
        | libc::SYS_ppoll
        | libc::SYS_pselect6
        | libc::SYS_semop
        | libc::SYS_rt_sigsuspend
        | libc::SYS_wait4
        | libc::SYS_waitid
        | libc::SYS_restart_syscall
        | libc::SYS_msgrcv
        | libc::SYS_flock => Wait::Unnoticed,
        _ => Wait::CutShort,
    }
}

/// Returns whether the fourth argument of a call is its timeout.
pub(crate) fn has_timeout_in_register(number: i64) -> bool {
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_epoll_wait {
        return true;
    }
    number == libc::SYS_epoll_pwait
}

/// Returns whether a call that has ended with EINTR has done nothing, so that it can be made again.
pub(crate) fn can_be_made_again(number: i64) -> bool {
    is_ended_by_stops(number) || is_poll(number)
}

/// Returns whether the kernel continues a call by itself unless it cannot write its timeout back ([`WrittenBack`]).
fn is_poll(number: i64) -> bool {
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_select {
        return true;
    }
    [libc::SYS_ppoll, libc::SYS_pselect6].contains(&number)
}

/// Returns whether a stop ends a call with EINTR, and it has done nothing then.
pub(crate) fn is_ended_by_stops(number: i64) -> bool {
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_epoll_wait {
        return true;
    }
    [
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_semop,
        libc::SYS_semtimedop,
        libc::SYS_rt_sigtimedwait,
        libc::SYS_io_getevents,
        libc::SYS_io_uring_enter,
        libc::SYS_read,
        libc::SYS_readv,
        libc::SYS_recvfrom,
        libc::SYS_recvmsg,
        libc::SYS_accept,
        libc::SYS_accept4,
    ]
    .contains(&number)
}

/// Returns what the call of a stopped thread returns when its timeout has run out, if it waits with a timeout:
/// a value, or a negative errno.
pub(crate) fn timed_out(pid: i32, tid: Tid) -> Option<i64> {
    let Call { number, args, .. } = call_of(pid, tid)?;
    let again = -i64::from(libc::EAGAIN);
    let result = match number {
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 | libc::SYS_io_getevents => 0,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => 0,
        libc::SYS_io_uring_enter => -i64::from(libc::ETIME),
        _ => again,
    };
    match wait(number, &args) {
        Wait::Timed | Wait::InRegister(_) => Some(result),
        Wait::WrittenBack(rest) if rest.is_timeout() => Some(0),
        Wait::OnSocket if has_timeout(pid, args[0] as i32) => Some(result),
        _ => None,
    }
}

/// Returns whether descriptor `fd` of a process is a socket with a timeout for receiving. Without an answer it
/// might be.
pub(crate) fn has_timeout(pid: i32, fd: i32) -> bool {
    let link = std::fs::read_link(format!("/proc/{pid}/fd/{fd}"));
    if link.is_ok_and(|link| !link.as_os_str().as_encoded_bytes().starts_with(b"socket:")) {
        return false;
    }
    timeout_of(pid, fd).is_none_or(|time| time.tv_sec != 0 || time.tv_usec != 0)
}

/// Returns the timeout for receiving of a socket of another process.
fn timeout_of(pid: i32, fd: i32) -> Option<libc::timeval> {
    let process = pidfd_open(pid.cast_unsigned()).ok()?;
    // SAFETY: pidfd_getfd(2) takes numbers only.
    let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) };
    let copy = i32::try_from(copy).ok().filter(|copy| *copy >= 0)?;
    // SAFETY: the descriptor was just made, and nothing else owns it.
    let copy = unsafe { OwnedFd::from_raw_fd(copy) };
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut length = size_of_val(&time) as libc::socklen_t;
    // SAFETY: getsockopt(2) writes at most `length` bytes to a live structure.
    let got = unsafe {
        libc::getsockopt(
            copy.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw mut time).cast(),
            &raw mut length,
        )
    };
    (got == 0).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn lines_of_the_kernel() {
        let call = parse("232 0x5 0x7ffd0 0x40 0x64 0x0 0x0 0x7ffd1 0x7f12\n").expect("a call");
        let args = [5, 0x7ffd0, 0x40, 0x64, 0, 0];
        assert_eq!(call, Call { number: 232, args, sp: Addr(0x7ffd1), pc: Addr(0x7f12) });
        for other in [
            "running\n",
            "-1 0x7ffd1 0x7f12\n",
            "",
            "232 0x5\n",
            "232 5 6 7 8 9 10\n",
            "232 0x5 0x6 0x7 0x8 0x9 0xa",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn which_calls_have_a_timeout() {
        let with = |index: usize, value: u64| {
            let mut args = [0; 6];
            args[index] = value;
            args
        };
        let minus_one = u64::from(u32::MAX);
        for (number, args, expected) in [
            (libc::SYS_epoll_pwait, with(3, 100), Wait::InRegister(Duration::from_millis(100))),
            (libc::SYS_epoll_pwait, with(3, minus_one), Wait::Unnoticed),
            (libc::SYS_epoll_pwait, with(3, 0), Wait::Unnoticed),
            (libc::SYS_semtimedop, with(3, 0x7000), Wait::Timed),
            (libc::SYS_semop, with(3, 0), Wait::Unnoticed),
            (libc::SYS_rt_sigtimedwait, with(2, 0), Wait::Unnoticed),
            (libc::SYS_rt_sigtimedwait, with(2, 0x7000), Wait::Timed),
            (libc::SYS_io_uring_enter, with(3, 1), Wait::Unnoticed),
            (libc::SYS_io_uring_enter, with(3, 9), Wait::Timed),
            (libc::SYS_nanosleep, with(0, 0x7000), Wait::Unnoticed),
            (libc::SYS_ppoll, with(0, 0x7000), Wait::Unnoticed),
            (libc::SYS_recvfrom, with(0, 3), Wait::OnSocket),
            (libc::SYS_recvfrom, with(3, libc::MSG_WAITALL as u64), Wait::CutShort),
            (libc::SYS_io_uring_enter, with(1, 1), Wait::CutShort),
            (libc::SYS_write, with(0, 3), Wait::CutShort),
            (libc::SYS_close, with(0, 3), Wait::CutShort),
        ] {
            assert_eq!(wait(number, &args), expected, "{number} {args:?}");
        }
    }

    #[test]
    fn a_socket_with_a_timeout() {
        let own = std::process::id().cast_signed();
        let (one, two) = UnixStream::pair().unwrap();
        one.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
        assert!(has_timeout(own, one.as_raw_fd()) && !has_timeout(own, two.as_raw_fd()));
        assert!(!has_timeout(own, std::fs::File::open("/dev/null").unwrap().as_raw_fd()));
        assert!(has_timeout(own, 1 << 20), "no answer");
    }
}
