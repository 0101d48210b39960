// SPDX-License-Identifier: Apache-2.0
//! Ends a wait of the helper that takes too long.
//!
//! wait4(2) has no time limit. A timer that sends SIGALRM interrupts it, and the caller then checks
//! whether the time is over (`is_over`). The timer fires repeatedly, as a signal just before the wait
//! begins would not interrupt it.

use nix::errno::Errno;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

static OVER: AtomicBool = AtomicBool::new(false);
/// PTRACE_SEIZE is being called.
static SEIZES: AtomicBool = AtomicBool::new(false);

/// The interval at which a wait is interrupted once its time is over.
const INTERVAL: Duration = Duration::from_millis(100);

extern "C" fn expire(_signal: libc::c_int) {
    OVER.store(true, Ordering::Relaxed);
    if SEIZES.load(Ordering::Relaxed) {
        reap_tracees();
    }
}

/// Makes a call of PTRACE_SEIZE. While it waits, tracees that have ended are waited for.
///
/// A thread that calls execve(2) holds a lock that PTRACE_SEIZE needs, and ends all other threads of its process. It goes
/// on when the tracer of each has waited for its end. A tracer that waits for the lock would never do so: the process
/// would hang, and hugelift with it (kernel/ptrace.c, `ptrace_attach`; fs/exec.c, `de_thread`).
pub(crate) fn while_seizing<T>(call: impl FnOnce() -> T) -> T {
    SEIZES.store(true, Ordering::Relaxed);
    let made = call();
    SEIZES.store(false, Ordering::Relaxed);
    made
}

/// Waits for each tracee of the calling thread that has ended. The kernel then begins PTRACE_SEIZE anew.
fn reap_tracees() {
    const FLAGS: i32 = libc::WEXITED | libc::WNOHANG | libc::__WALL | libc::__WNOTHREAD;
    let errno = Errno::last_raw();
    // The kernel reports also stops of tracees (kernel/exit.c, `wait_task_stopped`), which must not be taken from who waits
    // for them: they are only read. Where execve(2) has ended all others, none of them is stopped any more.
    while let Some((tid, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED)) =
        wait_id(libc::P_ALL, 0, FLAGS | libc::WNOWAIT)
    {
        if wait_id(libc::P_PID, tid.cast_unsigned(), FLAGS).is_none() {
            break;
        }
    }
    Errno::set_raw(errno);
}

/// Calls waitid(2), and returns the thread that it is about, and what has become of it.
fn wait_id(kind: libc::idtype_t, id: u32, flags: i32) -> Option<(i32, i32)> {
    // SAFETY: a siginfo_t is plain numbers.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: waitid(2) writes to a live siginfo_t. It may be called by a handler (signal-safety(7)).
    let made = unsafe { libc::waitid(kind, id, &raw mut info, flags) };
    // SAFETY: waitid(2) has set this field; zero is the number of nobody.
    let tid = unsafe { info.si_pid() };
    (made == 0 && tid != 0).then_some((tid, info.si_code))
}

/// A time limit for all waits of the calling process. Dropping it removes the limit.
pub struct Deadline(());

impl Deadline {
    /// Sets the first limit, and a handler for SIGALRM, which all other threads of this process must block.
    ///
    /// # Errors
    /// sigaction(2), sigprocmask(2), setitimer(2): a seccomp filter may refuse them.
    pub fn within(limit: Duration) -> io::Result<Deadline> {
        // Without SA_RESTART, so that the wait returns.
        let action = SigAction::new(SigHandler::Handler(expire), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler stores to an atomic, and makes calls that signal-safety(7) allows.
        unsafe { sigaction(Signal::SIGALRM, &action) }?;
        SigSet::from(Signal::SIGALRM).thread_unblock()?;
        let deadline = Deadline(());
        deadline.renew(limit)?;
        Ok(deadline)
    }

    /// Sets another limit, counted from now.
    ///
    /// # Errors
    /// setitimer(2)
    pub fn renew(&self, limit: Duration) -> io::Result<()> {
        OVER.store(false, Ordering::Relaxed);
        set_timer(limit, INTERVAL.min(limit))
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        let _ = set_timer(Duration::ZERO, Duration::ZERO);
        OVER.store(false, Ordering::Relaxed);
    }
}

/// Returns whether the time of the current limit is over.
pub(crate) fn is_over() -> bool {
    OVER.load(Ordering::Relaxed)
}

/// Sets the timer that sends SIGALRM: first after `first`, then each `then`; zeros stop it.
fn set_timer(first: Duration, then: Duration) -> io::Result<()> {
    let time =
        |d: Duration| libc::timeval { tv_sec: d.as_secs().cast_signed(), tv_usec: d.subsec_micros().into() };
    let timer = libc::itimerval { it_value: time(first), it_interval: time(then) };
    // SAFETY: setitimer(2) reads a live structure; a null pointer asks for no old value. Made as a
    // system call because C libraries differ in the type of its first argument.
    match unsafe {
        libc::syscall(libc::SYS_setitimer, libc::ITIMER_REAL, &raw const timer, ptr::null::<libc::c_void>())
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
