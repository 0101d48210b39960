// SPDX-License-Identifier: Apache-2.0
//! Lines on stderr that never hurt the program about to start: one write each, and no
//! SIGPIPE where nobody reads.

use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};
use std::io::Write;
use std::os::fd::RawFd;

/// Writes `hugelift: line` to stderr. Whether anybody reads it is not our business.
pub fn say(line: &str) {
    say_plain(&format!("hugelift: {line}"));
}

/// As [`say`], without the name in front.
pub fn say_plain(line: &str) {
    let text = format!("{line}\n");
    let pipe = SigSet::from(Signal::SIGPIPE);
    let mut before = SigSet::empty();
    let blocked = pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&pipe), Some(&mut before)).is_ok();
    let result = std::io::stderr().write_all(text.as_bytes());
    if !blocked {
        return;
    }
    if result.is_err_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe) && !before.contains(Signal::SIGPIPE)
    {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: sigtimedwait(2): the set and the time live through the call; takes the
        // SIGPIPE that our write has just raised.
        unsafe { libc::sigtimedwait(pipe.as_ref(), std::ptr::null_mut(), &raw const now) };
    }
    let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
}

/// Where the caller has closed stdin, stdout or stderr, puts /dev/null there until exec,
/// so that no file of ours gets its number.
pub fn guard_standard_files() {
    for fd in 0..3 as RawFd {
        // SAFETY: fcntl(2) and open(2) with a literal path; open takes the lowest free
        // number, which is `fd`, as those below are taken.
        unsafe {
            if libc::fcntl(fd, libc::F_GETFD) == -1 {
                libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            }
        }
    }
}
