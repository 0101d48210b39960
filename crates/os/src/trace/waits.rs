// SPDX-License-Identifier: Apache-2.0
//! System calls in which a thread waits, and which a stop ends although no signal arrives (signal(7),
//! "Interruption of system calls and library functions by stop signals"). Such a call can be made again, but
//! its relative timeout would begin anew.

//!
//! A timeout that has just run out is as bad: the thread is about to return, and a stop makes of that an EINTR
//! too. Such a thread counts as running, as one that computes. The two differ in the CPU time that they take.

use crate::proc::pidfd::pidfd_open;
use crate::proc::procfs::Process;
use crate::trace::lent::NotLent;
use crate::trace::ptrace::Tid;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// CPU time in nanoseconds after which a thread has surely left the system call in which it woke up.
const LEAVES_WITHIN: u64 = 50_000;

/// What was seen of the threads of a process, to find those whose stop would not be noticed.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Threads that ran when they were looked at last.
    running: BTreeMap<Tid, Ran>,
}

/// How long a thread has run, and how often it went to sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ran {
    nanos: u64,
    sleeps: u64,
}

impl Watch {
    /// Returns nothing if a stop of thread `tid` would end no wait whose timeout would then begin anew
    /// (`/proc/PID/task/TID/syscall`, proc_pid_syscall(5)).
    ///
    /// # Errors
    /// [`NotLent::Timed`], [`NotLent::Woken`]
    pub fn may_stop(&mut self, pid: i32, tid: Tid) -> Result<(), NotLent> {
        let path = format!("/proc/{pid}/task/{tid}/syscall");
        let Ok(text) = std::fs::read_to_string(path) else { return Ok(()) };
        let Some((number, args)) = parse(&text) else { return self.may_stop_running(pid, tid) };
        self.running.remove(&tid);
        let is_timed = match wait(number, &args) {
            Wait::Other => false,
            Wait::Timed => true,
            Wait::OnSocket(timeout) => has_timeout(pid, args[0] as i32, timeout),
        };
        if is_timed { Err(NotLent::Timed(tid, number)) } else { Ok(()) }
    }

    /// Returns nothing if a thread that runs has run for some time since an earlier look, without a sleep.
    fn may_stop_running(&mut self, pid: i32, tid: Tid) -> Result<(), NotLent> {
        // A kernel that does not count (CONFIG_SCHED_INFO) leaves no way to find out.
        let Some(now) = ran(pid, tid) else { return Ok(()) };
        match self.running.get(&tid) {
            Some(then) if then.sleeps == now.sleeps => {
                if now.nanos.saturating_sub(then.nanos) < LEAVES_WITHIN {
                    return Err(NotLent::Woken(tid));
                }
                Ok(())
            }
            _ => {
                self.running.insert(tid, now);
                Err(NotLent::Woken(tid))
            }
        }
    }
}

/// Reads how long a thread has run (`/proc/PID/task/TID/schedstat`) and how often it went to sleep.
fn ran(pid: i32, tid: Tid) -> Option<Ran> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
    let nanos = text.split_whitespace().next()?.parse().ok()?;
    let sleeps = Process::new(pid.cast_unsigned()).status_of_thread(tid).ok()?.sleeps?;
    Some(Ran { nanos, sleeps })
}

/// How a system call waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wait {
    /// Without a timeout, or the kernel continues it by itself.
    Other,
    /// With a relative timeout that would begin anew.
    Timed,
    /// With this timeout of its socket, if its descriptor is one: `SO_RCVTIMEO` or `SO_SNDTIMEO`.
    OnSocket(libc::c_int),
}

/// Parses a line such as `232 0x5 0x7ffd... 0x40 0x64 0x0 0x0 0x7ffd... 0x7f12...`: number, six arguments,
/// stack pointer, program counter. `None` for `running` and for a thread outside of system calls.
fn parse(text: &str) -> Option<(i64, [u64; 6])> {
    let mut words = text.split_whitespace();
    let number = words.next()?.parse().ok().filter(|number| *number >= 0)?;
    let mut args = [0; 6];
    for slot in &mut args {
        *slot = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    }
    Some((number, args))
}

/// Returns how a call with these arguments waits.
fn wait(number: i64, args: &[u64; 6]) -> Wait {
    const IORING_ENTER_EXT_ARG: u64 = 1 << 3;
    let timed = |is_timed: bool| if is_timed { Wait::Timed } else { Wait::Other };
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_epoll_wait {
        return timed(args[3] as i32 > 0);
    }
    match number {
        libc::SYS_epoll_pwait => timed(args[3] as i32 > 0),
        libc::SYS_epoll_pwait2 | libc::SYS_semtimedop => timed(args[3] != 0),
        libc::SYS_rt_sigtimedwait => timed(args[2] != 0),
        libc::SYS_io_getevents => timed(args[4] != 0),
        libc::SYS_io_uring_enter => timed(args[3] & IORING_ENTER_EXT_ARG != 0),
        libc::SYS_read
        | libc::SYS_readv
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_recvmmsg
        | libc::SYS_accept
        | libc::SYS_accept4 => Wait::OnSocket(libc::SO_RCVTIMEO),
        libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_sendto
        | libc::SYS_sendmsg
        | libc::SYS_sendmmsg
        | libc::SYS_sendfile
        | libc::SYS_connect => Wait::OnSocket(libc::SO_SNDTIMEO),
        _ => Wait::Other,
    }
}

/// Returns whether descriptor `fd` of a process is a socket with that timeout. Without an answer it might
/// be.
fn has_timeout(pid: i32, fd: i32, which: libc::c_int) -> bool {
    let link = std::fs::read_link(format!("/proc/{pid}/fd/{fd}"));
    if link.is_ok_and(|link| !link.as_os_str().as_encoded_bytes().starts_with(b"socket:")) {
        return false;
    }
    timeout_of(pid, fd, which).is_none_or(|time| time.tv_sec != 0 || time.tv_usec != 0)
}

/// Returns a timeout of a socket of another process.
fn timeout_of(pid: i32, fd: i32, which: libc::c_int) -> Option<libc::timeval> {
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
        libc::getsockopt(copy.as_raw_fd(), libc::SOL_SOCKET, which, (&raw mut time).cast(), &raw mut length)
    };
    (got == 0).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[test]
    fn lines_of_the_kernel() {
        let (number, args) = parse("232 0x5 0x7ffd0 0x40 0x64 0x0 0x0 0x7ffd1 0x7f12\n").expect("a call");
        assert_eq!((number, args), (232, [5, 0x7ffd0, 0x40, 0x64, 0, 0]));
        for other in ["running\n", "-1 0x7ffd1 0x7f12\n", "", "232 0x5\n", "232 5 6 7 8 9 10\n"] {
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
            (libc::SYS_epoll_pwait, with(3, 100), Wait::Timed),
            (libc::SYS_epoll_pwait, with(3, minus_one), Wait::Other),
            (libc::SYS_epoll_pwait, with(3, 0), Wait::Other),
            (libc::SYS_semtimedop, with(3, 0x7000), Wait::Timed),
            (libc::SYS_semop, with(3, 0), Wait::Other),
            (libc::SYS_rt_sigtimedwait, with(2, 0), Wait::Other),
            (libc::SYS_rt_sigtimedwait, with(2, 0x7000), Wait::Timed),
            (libc::SYS_io_uring_enter, with(3, 1), Wait::Other),
            (libc::SYS_io_uring_enter, with(3, 9), Wait::Timed),
            (libc::SYS_nanosleep, with(0, 0x7000), Wait::Other),
            (libc::SYS_recvfrom, with(0, 3), Wait::OnSocket(libc::SO_RCVTIMEO)),
        ] {
            assert_eq!(wait(number, &args), expected, "{number} {args:?}");
        }
    }

    #[test]
    fn a_running_thread_must_have_run_since() {
        let (own, tid) = (std::process::id().cast_signed(), nix::unistd::gettid().as_raw());
        let mut watch = Watch::default();
        if ran(own, tid).is_none() {
            return println!("SKIP: this kernel has no /proc/PID/schedstat");
        }
        assert!(matches!(watch.may_stop_running(own, tid), Err(NotLent::Woken(_))), "the first look");
        let long_ago = Ran { nanos: 0, ..ran(own, tid).unwrap() };
        watch.running.insert(tid, long_ago);
        assert!(watch.may_stop_running(own, tid).is_ok(), "it has run, and not slept");
        watch.running.insert(tid, Ran { sleeps: long_ago.sleeps + 1, ..long_ago });
        assert!(matches!(watch.may_stop_running(own, tid), Err(NotLent::Woken(_))), "it has slept");
        let just_now = Ran { nanos: u64::MAX, ..long_ago };
        watch.running.insert(tid, just_now);
        assert!(matches!(watch.may_stop_running(own, tid), Err(NotLent::Woken(_))), "it has not run");
    }

    #[test]
    fn a_socket_with_a_timeout() {
        let own = std::process::id().cast_signed();
        let (one, two) = UnixStream::pair().unwrap();
        one.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
        let has = |socket: &UnixStream, which| has_timeout(own, socket.as_raw_fd(), which);
        assert!(has(&one, libc::SO_RCVTIMEO) && !has(&one, libc::SO_SNDTIMEO));
        assert!(!has(&two, libc::SO_RCVTIMEO));
        assert!(!has_timeout(own, std::fs::File::open("/dev/null").unwrap().as_raw_fd(), libc::SO_RCVTIMEO));
        assert!(has_timeout(own, 1 << 20, libc::SO_RCVTIMEO), "no answer");
    }
}
