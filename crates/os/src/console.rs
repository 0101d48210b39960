// SPDX-License-Identifier: Apache-2.0
//! All that hugelift writes to stdout and stderr goes through here, and so through
//! [`hugelift_core::printable`]: nothing in it acts on a terminal.
//!
//! Lines on stderr never hurt the program that is about to start: each is one write, and a reader
//! who has gone raises no SIGPIPE.

use hugelift_core::printable::{printable, printable_coloured, printable_lines, text_to_parse};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};
use std::io::Write;
use std::os::fd::RawFd;

/// Writes text to stdout. It is no error that the reader has seen enough.
///
/// # Errors
/// A line that says that stdout cannot be written.
pub fn print(text: &str) -> Result<(), String> {
    write_out(&printable_lines(text))
}

/// As [`print`], for text in which the program has put colours.
///
/// # Errors
/// As [`print`].
pub fn print_coloured(text: &str) -> Result<(), String> {
    write_out(&printable_coloured(text))
}

fn write_out(text: &str) -> Result<(), String> {
    #[allow(clippy::disallowed_methods, reason = "this is the one place that writes to it")]
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write to standard output: {error}"))
        }
        _ => Ok(()),
    }
}

/// Writes text of several lines to stderr.
///
/// # Errors
/// write(2) fails.
pub fn print_to_stderr(text: &str) -> std::io::Result<()> {
    #[allow(clippy::disallowed_methods, reason = "the text is escaped here")]
    std::io::stderr().write_all(printable_lines(text).as_bytes())
}

/// Standard error for a library that writes its own lines there.
pub struct EscapedStderr;

impl Write for EscapedStderr {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        print_to_stderr(&text_to_parse(bytes)).map(|()| bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Writes `hugelift: line` to stderr, as one line. Whether anybody reads it is not our business.
pub fn say(line: &str) {
    say_plain(&format!("hugelift: {line}"));
}

/// As [`say`], without the name in front.
pub fn say_plain(line: &str) {
    let text = printable(line) + "\n";
    let pipe = SigSet::from(Signal::SIGPIPE);
    let mut before = SigSet::empty();
    let blocked = pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&pipe), Some(&mut before)).is_ok();
    #[allow(clippy::disallowed_methods, reason = "the line is escaped")]
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
