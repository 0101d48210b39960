// SPDX-License-Identifier: Apache-2.0
//! Starts a child that makes the calls of a lift: a filter that kills for one kills the child, not the
//! launcher.
//!
//! The launcher waits for the child by `CLONE_VFORK`, and reads the result from shared memory. So it makes
//! no call after the fork that the child has not survived.

use crate::launch::fork_twice;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// The report of the child.
struct Progress {
    /// wait4(2) is allowed.
    waits: AtomicBool,
    /// The child has made all calls, and those that a lift cannot do without have worked.
    survived: AtomicBool,
}

/// How long the child may take: a seccomp supervisor may never answer a call.
const SECONDS: i64 = 2;
const PAGE: usize = 64 << 10;

/// Returns whether a process under these filters survives the calls of the launcher and the calls that a lift makes in
/// the target.
pub(super) fn is_survived() -> bool {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: mmap(2) at an address of the kernel's choice touches nothing of ours.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE, prot, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: zeros are a valid `Progress`; the mapping is large enough, aligned, and lives until
    // munmap(2) below. Parent and child change it by atomic operations alone.
    let progress = unsafe { &*page.cast::<Progress>() };
    // Its end sends no signal. SAFETY: clone(2) without `CLONE_VM` and with no stack behaves as fork(2);
    // this process has one thread.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_VFORK, 0, 0, 0, 0) };
    if child == 0 {
        act(progress);
        // SAFETY: _exit(2) ends the process without running what the launcher has registered.
        unsafe { libc::_exit(0) };
    }
    if child > 0 && progress.waits.load(Ordering::Relaxed) {
        let child = Pid::from_raw(child as libc::pid_t);
        while waitpid(child, Some(WaitPidFlag::__WALL)) == Err(Errno::EINTR) {}
    }
    let survived = child > 0 && progress.survived.load(Ordering::Relaxed);
    // SAFETY: the mapping of above, which is not used any more.
    unsafe { libc::munmap(page, PAGE) };
    survived
}

/// Makes a system call whose arguments do no harm; returns the value or a negative errno.
fn call(number: libc::c_long, arguments: [usize; 6]) -> i64 {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the callers pass numbers that refer to nothing (descriptor -1, a length of 0), and addresses
    // of their own memory.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => -i64::from(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
        value => value,
    }
}

/// Makes the calls in the child.
fn act(progress: &Progress) {
    if !limit_time() {
        return;
    }
    // There is no child to wait for: that answer shows that the call is allowed.
    let none = call(libc::SYS_wait4, [usize::MAX, 0, libc::WNOHANG as usize, 0, 0, 0]);
    if none != -i64::from(libc::ECHILD) {
        return;
    }
    progress.waits.store(true, Ordering::Relaxed);
    if launchers_calls() && programs_calls() && returns_from_signals() {
        progress.survived.store(true, Ordering::Relaxed);
    }
}

/// Makes the kernel end this process if it takes too long.
fn limit_time() -> bool {
    let timer = libc::itimerval {
        it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 },
        it_value: libc::timeval { tv_sec: SECONDS, tv_usec: 0 },
    };
    // SAFETY: signal(2) installs no handler.
    let is_fatal = unsafe { libc::signal(libc::SIGALRM, libc::SIG_DFL) != libc::SIG_ERR };
    let is_unblocked = || sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&SigSet::all()), None).is_ok();
    let timer = (&raw const timer) as usize;
    is_fatal
        && is_unblocked()
        && call(libc::SYS_setitimer, [libc::ITIMER_REAL as usize, timer, 0, 0, 0, 0]) == 0
}

/// Makes the calls by which a process becomes a launcher. One that is refused does not matter: the launcher
/// then gives up.
fn launchers_calls() -> bool {
    const NONE: usize = usize::MAX;
    let empty = c"".as_ptr() as usize;
    let prctl = |option: i32, argument| call(libc::SYS_prctl, [option as usize, argument, 0, 0, 0, 0]);
    let mut word = [0u64; 2];
    let words = (&raw mut word) as usize;
    for (number, arguments) in [
        (libc::SYS_fcntl, [NONE, libc::F_GETFD as usize, 0, 0, 0, 0]),
        (libc::SYS_statx, [NONE, empty, 0, 0, words, 0]),
        (libc::SYS_newfstatat, [NONE, empty, words, 0, 0, 0]),
        (libc::SYS_fstat, [NONE, words, 0, 0, 0, 0]),
        (libc::SYS_statfs, [empty, words, 0, 0, 0, 0]),
        (libc::SYS_getxattr, [empty, empty, 0, 0, 0, 0]),
        (libc::SYS_readlinkat, [NONE, empty, words, 8, 0, 0]),
        (libc::SYS_faccessat, [NONE, empty, 0, 0, 0, 0]),
        (libc::SYS_getpid, [0; 6]),
        (libc::SYS_geteuid, [0; 6]),
        (libc::SYS_getegid, [0; 6]),
        (libc::SYS_getuid, [0; 6]),
        (libc::SYS_getgid, [0; 6]),
        (libc::SYS_socketpair, [NONE, 0, 0, words, 0, 0]),
        (libc::SYS_sendto, [NONE, 0, 0, 0, 0, 0]),
        (libc::SYS_write, [NONE, 0, 0, 0, 0, 0]),
        (libc::SYS_rt_sigpending, [words, 8, 0, 0, 0, 0]),
        (libc::SYS_waitid, [NONE, 0, 0, 0, 0, 0]),
        (libc::SYS_ppoll, [0, 0, words, 0, 0, 0]),
        (libc::SYS_clock_nanosleep, [0, 0, words, 0, 0, 0]),
        (libc::SYS_lseek, [NONE, 0, 0, 0, 0, 0]),
    ] {
        call(number, arguments);
    }
    #[cfg(target_arch = "x86_64")]
    for (number, arguments) in [
        // musl's open(3).
        (libc::SYS_open, [empty, 0, 0, 0, 0, 0]),
        (libc::SYS_poll, [0, 0, 0, 0, 0, 0]),
        (libc::SYS_readlink, [empty, words, 8, 0, 0, 0]),
        (libc::SYS_access, [empty, 0, 0, 0, 0, 0]),
        (libc::SYS_stat, [empty, words, 0, 0, 0, 0]),
    ] {
        call(number, arguments);
    }
    // The standard library takes seeds from it, knows these errors, and ends the process for others.
    let seeds = call(libc::SYS_getrandom, [words, 8, libc::GRND_NONBLOCK as usize, 0, 0, 0]);
    let known = [libc::ENOSYS, libc::EPERM, libc::EAGAIN].map(|errno| -i64::from(errno));
    if seeds < 0 && !known.contains(&seeds) {
        return false;
    }
    prctl(libc::PR_GET_NO_NEW_PRIVS, 0);
    prctl(libc::PR_GET_CHILD_SUBREAPER, words);
    prctl(libc::PR_SET_PTRACER, 0);
    // kill(2) of this process and the forks must work.
    let own = call(libc::SYS_getpid, [0; 6]) as usize;
    call(libc::SYS_kill, [own, 0, 0, 0, 0, 0]) == 0
        && fork_twice(&mut || {}).is_ok_and(|helper| helper.is_some())
}

/// Makes the calls that a lift makes in the target. A refused step is undone, so the calls for undoing must work.
fn programs_calls() -> bool {
    const NONE: usize = usize::MAX;
    let (read, write) = (libc::PROT_READ as usize, libc::PROT_WRITE as usize);
    let private = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    let map = |bytes| call(libc::SYS_mmap, [0, bytes, read | write, private, NONE, 0]);
    let Ok(scratch) = usize::try_from(map(2 * PAGE)) else { return false };
    let (upper, mut word) = (scratch + PAGE, [0u64; 2]);
    let words = (&raw mut word) as usize;
    for advice in [libc::MADV_HUGEPAGE, 22, 23, hugelift_linux::proc::memory::MADV_COLLAPSE] {
        call(libc::SYS_madvise, [scratch, PAGE, advice as usize, 0, 0, 0]);
    }
    let moves = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
    let mm_map_size = libc::PR_SET_MM_MAP_SIZE as usize;
    for (number, arguments) in [
        (libc::SYS_mprotect, [scratch, PAGE, read, 0, 0, 0]),
        (libc::SYS_mprotect, [scratch, PAGE, read | libc::PROT_EXEC as usize, 0, 0, 0]),
        (libc::SYS_mremap, [scratch, PAGE, PAGE, moves, upper, 0]),
        (libc::SYS_mbind, [upper, PAGE, 0, 0, 0, 0]),
        (libc::SYS_memfd_create, [0, NONE, 0, 0, 0, 0]),
        (libc::SYS_ftruncate, [NONE, 0, 0, 0, 0, 0]),
        (libc::SYS_openat, [NONE, c"".as_ptr() as usize, 0, 0, 0, 0]),
        (libc::SYS_fstat, [NONE, words, 0, 0, 0, 0]),
        (libc::SYS_close, [NONE, 0, 0, 0, 0, 0]),
        (libc::SYS_process_vm_writev, [0, 0, 0, 0, 0, 0]),
        (libc::SYS_prctl, [libc::PR_SET_MM as usize, mm_map_size, words, 0, 0, 0]),
    ] {
        call(number, arguments);
    }
    let own = call(libc::SYS_getpid, [0; 6]) as usize;
    // An empty set and no time: the call returns EAGAIN at once.
    let empty = [0u64; 3];
    let (set, at_once) = ((&raw const empty) as usize, (&raw const empty[1]) as usize);
    call(libc::SYS_munmap, [scratch, 2 * PAGE, 0, 0, 0, 0]) == 0
        && call(libc::SYS_tgkill, [own, own, 0, 0, 0, 0]) == 0
        && call(libc::SYS_rt_sigtimedwait, [set, 0, at_once, 8, 0, 0]) == -i64::from(libc::EAGAIN)
}

extern "C" fn nothing(_signal: libc::c_int) {}

/// Makes rt_sigreturn(2), by which a target returns to its program: a process that cannot return from a
/// signal handler does not return from this function.
fn returns_from_signals() -> bool {
    // SAFETY: signal(2) with a handler that does nothing; raise(3) for this process alone.
    unsafe {
        let handler = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
        libc::signal(libc::SIGURG, handler) != libc::SIG_ERR && libc::raise(libc::SIGURG) == 0
    }
}
