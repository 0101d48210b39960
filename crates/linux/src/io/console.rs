// SPDX-License-Identifier: Apache-2.0
//! Everything that hugelift writes to stdout and stderr goes through here, and so through
//! [`hugelift_core::printable`]: no text can control the terminal.
//!
//! A line on stderr does no harm to the program that is about to start: each is one write(2), and raises no
//! SIGPIPE if the reader has closed the pipe.

use hugelift_core::printable::{printable, printable_coloured, printable_lines, text_to_parse};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};
use std::io::Write;
use std::os::fd::RawFd;

/// Why a result was not printed.
#[derive(Debug, thiserror::Error)]
pub enum PrintError {
    /// write(2) to stdout failed.
    #[error("cannot write to standard output: {0}")]
    Stdout(std::io::Error),
    /// write(2) to stderr failed.
    #[error("cannot write the result: {0}")]
    Stderr(std::io::Error),
}

/// Writes text to stdout. A reader that has closed the pipe is not an error: it has read enough.
///
/// # Errors
/// [`PrintError`].
pub fn print(text: &str) -> Result<(), PrintError> {
    write_out(&printable_lines(text))
}

/// Writes as [`print()`] does, for text in which hugelift itself has put colours.
///
/// # Errors
/// See [`print()`].
pub fn print_coloured(text: &str) -> Result<(), PrintError> {
    write_out(&printable_coloured(text))
}

fn write_out(text: &str) -> Result<(), PrintError> {
    #[allow(clippy::disallowed_methods, reason = "this is the one place that writes to it")]
    let mut out = std::io::stdout().lock();
    or_closed(out.write_all(text.as_bytes()).and_then(|()| out.flush())).map_err(PrintError::Stdout)
}

/// Writes a result to stderr, as [`print()`] does to stdout.
///
/// # Errors
/// See [`print()`].
pub fn print_to_stderr(text: &str) -> Result<(), PrintError> {
    or_closed(write_escaped_to_stderr(text)).map_err(PrintError::Stderr)
}

fn or_closed(written: std::io::Result<()>) -> std::io::Result<()> {
    match written {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

fn write_escaped_to_stderr(text: &str) -> std::io::Result<()> {
    #[allow(clippy::disallowed_methods, reason = "the text is escaped here")]
    std::io::stderr().write_all(printable_lines(text).as_bytes())
}

/// Standard error for a library that writes its lines there by itself.
pub struct EscapedStderr;

impl Write for EscapedStderr {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        write_escaped_to_stderr(&text_to_parse(bytes)).map(|()| bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Writes `hugelift: line` to stderr, as one line. Failures are ignored.
pub fn say(line: &str) {
    say_plain(&format!("hugelift: {line}"));
}

/// Writes as [`say`] does, without the name in front.
pub fn say_plain(line: &str) {
    let text = printable(line) + "\n";
    let _ = unhurt(|| write_in_time(text.as_bytes()));
}

/// Runs `write` so that no signal of a write(2) ends this process: SIGPIPE, for a pipe without a reader, and
/// SIGXFSZ, for a file at the limit of `ulimit -f`, are blocked meanwhile and then removed. The result of
/// `write` has the error.
pub fn unhurt<T>(write: impl FnOnce() -> T) -> T {
    let ours = [Signal::SIGPIPE, Signal::SIGXFSZ];
    let set: SigSet = ours.into_iter().collect();
    let mut before = SigSet::empty();
    let blocked = pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&set), Some(&mut before)).is_ok();
    // A signal that the caller has blocked may be pending already; that one is kept for the program.
    let fresh: SigSet = ours.into_iter().filter(|signal| !before.contains(*signal)).collect();
    let result = write();
    if blocked {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: sigtimedwait(2): the set and the time live through the call; takes one of the signals
        // that our write has just raised, as long as there is one.
        while unsafe { libc::sigtimedwait(fresh.as_ref(), std::ptr::null_mut(), &raw const now) } > 0 {}
        // Not SIG_SETMASK: a C library leaves its own signals out of what it has read as the mask, which musl has one
        // more of, and the program inherits this mask.
        let _ = pthread_sigmask(SigmaskHow::SIG_UNBLOCK, Some(&fresh), None);
    }
    result
}

/// How long a line waits until the reader has made room for it.
const PATIENCE_MILLIS: libc::c_int = 1000;

/// Writes `bytes` to stderr. It waits only [`PATIENCE_MILLIS`] for a full pipe or a stopped terminal: the
/// program must not wait for the reader of hugelift's lines.
fn write_in_time(bytes: &[u8]) -> std::io::Result<()> {
    // A pipe that poll(2) calls writable takes this much at once.
    for piece in bytes.chunks(libc::PIPE_BUF) {
        let mut poll = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
        // SAFETY: poll(2) of one descriptor; the structure lives through the call.
        if unsafe { libc::poll(&raw mut poll, 1, PATIENCE_MILLIS) } == 0 {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        #[allow(clippy::disallowed_methods, reason = "the line is escaped")]
        std::io::stderr().write_all(piece)?;
    }
    Ok(())
}

/// Opens /dev/null, until exec, in place of a stdin, stdout or stderr that the caller has closed, so that no
/// file of ours gets its number.
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
