// SPDX-License-Identifier: Apache-2.0
//! A command under valgrind's lackey, whose trace comes through a pipe.
//!
//! The pipe holds 64 kB, some thousand accesses. So the program is never far ahead of the reader, and its mappings can be read
//! while they are in use.

use super::count::Counting;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::pipe2;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long the reader waits before it asks again whether the program has ended. Children may hold the pipe open.
const TICK_MILLIS: u16 = 50;

/// How long the reader lets the pipe fill after it has emptied it. Valgrind writes each line by itself; to be woken by each would
/// take longer than to read it.
const PAUSE: Duration = Duration::from_micros(500);

/// After so many pauses without a line the program is waiting for something, and the reader waits for the next line.
const PAUSES: u32 = 20;

/// The pipe of a trace.
pub struct Pipe {
    /// The end that is read. Reading from it does not wait.
    pub from: File,
    /// The end for valgrind, which a child inherits.
    pub to: OwnedFd,
}

impl Pipe {
    /// Makes a pipe.
    ///
    /// # Errors
    /// pipe2(2), fcntl(2)
    pub fn new() -> io::Result<Pipe> {
        let (from, to) = pipe2(OFlag::O_CLOEXEC)?;
        fcntl(&from, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        fcntl(&to, FcntlArg::F_SETFD(FdFlag::empty()))?;
        Ok(Pipe { from: from.into(), to })
    }

    /// Returns the words of a command line that runs `program` with these arguments under valgrind, with the trace in this pipe.
    /// Settings of the user and of the current folder do not count. Children are not traced.
    pub fn command(&self, valgrind: &Path, program: &Path, arguments: &[OsString]) -> Vec<OsString> {
        let log = format!("--log-fd={}", self.to.as_raw_fd());
        let options = [
            "--command-line-only=yes",
            "--tool=lackey",
            "--basic-counts=no",
            "--trace-mem=yes",
            "--child-silent-after-fork=yes",
            "--trace-children=no",
            "-q",
            &log,
            "--",
        ];
        let mut words: Vec<OsString> = vec![valgrind.into()];
        words.extend(options.map(OsString::from));
        words.push(program.into());
        words.extend_from_slice(arguments);
        words
    }
}

/// Reads the trace until the program has ended, and calls `done` once: as soon as the window is over, or at the end. What follows
/// the window is read too, and dropped: the program must not wait for a reader.
///
/// # Errors
/// read(2), poll(2)
pub fn follow(
    mut from: File,
    has_ended: &AtomicBool,
    mut counting: Counting,
    done: impl FnOnce(&mut Counting),
) -> io::Result<()> {
    let mut done = Some(done);
    let mut buffer = vec![0; 64 << 10];
    let mut pauses = 0;
    loop {
        // Asked before the read: what a program has written is in the pipe when it has ended.
        let is_last = has_ended.load(Ordering::Acquire);
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => {
                pauses = 0;
                let goes_on = done.is_none() || counting.feed(&buffer[..length]);
                if !goes_on && let Some(done) = done.take() {
                    done(&mut counting);
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if is_last {
                    break;
                }
                if pauses < PAUSES {
                    pauses += 1;
                    std::thread::sleep(PAUSE);
                    continue;
                }
                let mut wanted = [PollFd::new(from.as_fd(), PollFlags::POLLIN)];
                match poll(&mut wanted, PollTimeout::from(TICK_MILLIS)) {
                    Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            Err(error) => return Err(error),
        }
    }
    if let Some(done) = done {
        done(&mut counting);
    }
    Ok(())
}

/// Reads a recorded trace until it or the window ends.
///
/// # Errors
/// read(2)
pub fn read(mut from: impl Read, counting: &mut Counting) -> io::Result<()> {
    let mut buffer = vec![0; 256 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) if counting.feed(&buffer[..length]) => {}
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walks::code::Code;
    use crate::walks::count::Options;
    use crate::walks::table::CPUS;
    use std::io::Write;

    fn counting(window: Option<u64>) -> Counting {
        Counting::new(Options { cpus: vec![&CPUS[0]], adjacent: false, skip: 0, window }, Code::all())
    }

    #[test]
    fn the_trace_ends_with_the_program_though_a_child_holds_the_pipe() {
        let pipe = Pipe::new().unwrap();
        let mut to = File::from(pipe.to.try_clone().unwrap());
        to.write_all(b"I  400000,4\nI  401000,4\nI  4").unwrap();
        let mut instructions = 0;
        let ended = AtomicBool::new(true);
        let done = |counting: &mut Counting| instructions = counting.finish().unwrap().instructions;
        follow(pipe.from, &ended, counting(None), done).unwrap();
        assert_eq!(instructions, 2);
    }

    #[test]
    fn the_window_is_reported_while_the_program_runs() {
        let pipe = Pipe::new().unwrap();
        let mut to = File::from(pipe.to);
        let (tell, told) = std::sync::mpsc::channel();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let ended = &ended;
            let from = pipe.from;
            scope.spawn(move || {
                let done = |c: &mut Counting| tell.send(c.finish().unwrap().instructions).unwrap();
                follow(from, ended, counting(Some(2)), done).unwrap();
            });
            to.write_all(b"I  400000,4\nI  401000,4\nI  402000,4\n").unwrap();
            assert_eq!(told.recv().unwrap(), 2);
            // What follows is taken: more than the pipe holds.
            for _ in 0..100_000 {
                to.write_all(b"I  402000,4\n").unwrap();
            }
            drop(to);
        });
        assert!(told.recv().is_err());
    }

    #[test]
    fn a_recorded_trace() {
        let mut counted = counting(Some(1));
        read(&b"I  400000,4\nI  401000,4\n"[..], &mut counted).unwrap();
        assert_eq!(counted.finish().unwrap().instructions, 1);
    }

    #[test]
    fn the_command_line() {
        let pipe = Pipe::new().unwrap();
        let words = pipe.command(Path::new("/bin/valgrind"), Path::new("/bin/true"), &["-x".into()]);
        assert!(
            words.ends_with(&["--", "/bin/true", "-x"].map(OsString::from)) && words[0] == "/bin/valgrind"
        );
    }
}
