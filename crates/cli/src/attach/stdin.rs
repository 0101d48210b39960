// SPDX-License-Identifier: Apache-2.0
//! `hugelift attach --watch --stdin`: processes that are named on standard input while others are watched.
//!
//! A line is the id of a process and, if the writer knows it, the time of its start: field 22 of /proc/PID/stat (proc(5)). A
//! process that has got the id since is then left alone. After a `-` the process is not watched any more.

use hugelift_core::printable::Escape as _;
use hugelift_lift::watch::Given;
use hugelift_linux::io::console::say;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::read;
use std::ffi::OsStr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

/// The longest line: two numbers.
const LONGEST: usize = 64;
/// Bytes that are read in one turn at most.
const TURN: usize = 64 << 10;

/// Standard input, as far as it was read.
pub(super) struct Lines {
    input: OwnedFd,
    /// The beginning of a line.
    rest: Vec<u8>,
    /// A line that was longer is skipped to its end.
    skips: bool,
}

impl Lines {
    /// Reads from standard input.
    ///
    /// # Errors
    /// It is closed.
    pub(super) fn of_stdin() -> std::io::Result<Lines> {
        Ok(Lines::new(std::io::stdin().as_fd().try_clone_to_owned()?))
    }

    fn new(input: OwnedFd) -> Lines {
        Lines { input, rest: Vec::new(), skips: false }
    }

    /// Returns the processes of the lines that have come since the last call; `None` at the end of the input. Does not wait.
    pub(super) fn read(&mut self) -> Option<Vec<Given>> {
        let (mut given, mut bytes) = (Vec::new(), [0; 4096]);
        for _ in 0..TURN / bytes.len() {
            let mut fds = [PollFd::new(self.input.as_fd(), PollFlags::POLLIN)];
            if !poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0) {
                break;
            }
            match read(&self.input, &mut bytes) {
                Ok(0) if given.is_empty() => return None,
                Ok(0) => break,
                Ok(count) => given.extend(bytes[..count].iter().filter_map(|byte| self.take(*byte))),
                Err(Errno::EINTR | Errno::EAGAIN) => break,
                Err(_) => return None,
            }
        }
        Some(given)
    }

    /// Takes a byte, and returns the process of the line that it ends.
    fn take(&mut self, byte: u8) -> Option<Given> {
        if byte != b'\n' {
            self.skips |= self.rest.len() == LONGEST;
            if !self.skips {
                self.rest.push(byte);
            }
            return None;
        }
        let (line, skips) = (std::mem::take(&mut self.rest), std::mem::take(&mut self.skips));
        let given = if skips { None } else { parse(&line) };
        if given.is_none() {
            say(&format!(
                "--stdin: '{}' is not the id of a process, or an id and the time of a start, perhaps after a -",
                OsStr::from_bytes(&line).escaped()
            ));
        }
        given
    }
}

/// Parses `PID` or `PID START`, perhaps after a `-`.
fn parse(line: &[u8]) -> Option<Given> {
    let text = std::str::from_utf8(line).ok()?;
    let (is_taken_back, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let mut words = text.split_ascii_whitespace();
    let pid = words.next()?.parse().ok().filter(|pid| *pid > 0 && i32::try_from(*pid).is_ok())?;
    let start = words.next().map(str::parse).transpose().ok()?;
    words.next().is_none().then_some(Given { pid, start, is_taken_back })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn given(pid: u32, start: Option<u64>) -> Given {
        Given { pid, start, is_taken_back: false }
    }

    #[test]
    fn issue_33_lines_are_read_as_they_come() {
        let (input, mut output) = std::io::pipe().expect("a pipe");
        let mut lines = Lines::new(input.into());
        assert_eq!(lines.read(), Some(Vec::new()), "nothing has come, and it does not wait");
        output.write_all(b"12\n34 56\n7").expect("write");
        assert_eq!(lines.read(), Some(vec![given(12, None), given(34, Some(56))]));
        output.write_all(b"8\n-78 5\n").expect("write");
        let back = Given { is_taken_back: true, ..given(78, Some(5)) };
        assert_eq!(lines.read(), Some(vec![given(78, None), back]));
        drop(output);
        assert_eq!(lines.read(), None);
    }

    #[test]
    fn issue_33_what_is_no_process_is_left_out() {
        let (input, mut output) = std::io::pipe().expect("a pipe");
        let mut lines = Lines::new(input.into());
        output.write_all(b"0\n-\n--1\n4294967295\nx\n1 y\n1 2 3\n\n\xff\xfe\n").expect("write");
        output.write_all(&[b'1'; 3000]).expect("write");
        output.write_all(b"\n9\n").expect("write");
        assert_eq!(lines.read(), Some(vec![given(9, None)]));
    }
}
