// SPDX-License-Identifier: Apache-2.0
//! A program that is started to be counted, and waiting for its end or that of another process.
//!
//! The program has the caller's standard files, signal mask and dispositions. It waits before its
//! execve(2) until the counters are open.

use anyhow::{Context as _, Result, bail};
use hugelift_core::printable::Untrusted;
use hugelift_linux::held_signals::is_ignored;
use hugelift_linux::inherited_signals;
use hugelift_linux::lookup::ExecError;
use hugelift_linux::proc::pidfd::pidfd_open;
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::program;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, pipe2};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Signals that end the counting or are passed on to the program.
const WATCHED: [Signal; 4] = [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGHUP];
/// The interval between checks where the kernel has no pidfd (before Linux 5.3).
const TICK: Duration = Duration::from_millis(20);

/// The signals, which this process blocks and reads from a signalfd(2).
pub struct Signals {
    fd: OwnedFd,
    /// Those that were not blocked before.
    ours: SigSet,
}

impl Signals {
    /// Blocks the signals.
    ///
    /// # Errors
    /// signalfd(2) fails.
    pub fn block() -> io::Result<Signals> {
        let set: SigSet = WATCHED.into_iter().filter(|signal| !is_ignored(*signal)).collect();
        let before = set.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        // SAFETY: signalfd(2): the set is live; the result is a new file.
        let fd = unsafe {
            let fd = libc::signalfd(-1, set.as_ref(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let ours = WATCHED.into_iter().filter(|signal| set.contains(*signal) && !before.contains(*signal));
        Ok(Signals { fd, ours: ours.collect() })
    }

    /// Restores the mask as it was.
    pub fn restore(&self) {
        let _ = self.ours.thread_unblock();
    }

    /// Returns a signal that has arrived, and whether a process has sent it (the terminal sends its
    /// signals to the whole group).
    fn next(&self) -> Option<(i32, bool)> {
        // SAFETY: read(2) of a signalfd fills the plain integers of the struct.
        unsafe {
            let mut info: libc::signalfd_siginfo = std::mem::zeroed();
            let size = size_of::<libc::signalfd_siginfo>();
            let got = libc::read(self.fd.as_raw_fd(), (&raw mut info).cast(), size);
            (got == size as isize).then_some((info.ssi_signo.cast_signed(), info.ssi_code <= 0))
        }
    }
}

/// What ended the wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The process has ended.
    Ended,
    /// The time is up.
    TimeUp,
    /// This process got a signal, by number; the flag says whether a process sent it.
    Signal(i32, bool),
}

/// Waits for the process `pid`, a signal or the deadline.
pub fn wait_for(pid: u32, signals: &Signals, deadline: Option<Instant>) -> Event {
    let pidfd = pidfd_open(pid).ok();
    loop {
        if let Some((number, sent)) = signals.next() {
            return Event::Signal(number, sent);
        }
        if has_ended(pid) {
            return Event::Ended;
        }
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Event::TimeUp;
        }
        let wait = if pidfd.is_some() { left } else { Some(left.map_or(TICK, |l| l.min(TICK))) };
        let mut fds = [
            libc::pollfd { fd: signals.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 },
            // poll(2) ignores negative descriptors.
            libc::pollfd {
                fd: pidfd.as_ref().map_or(-1, AsRawFd::as_raw_fd),
                events: libc::POLLIN,
                revents: 0,
            },
        ];
        // Rounded up, as the last millisecond would be a busy loop.
        let timeout = wait.map_or(-1, |w| i32::try_from(w.as_millis() + 1).unwrap_or(i32::MAX));
        // SAFETY: poll(2): two live structs.
        unsafe { libc::poll(fds.as_mut_ptr(), 2, timeout) };
    }
}

/// Returns whether a process is gone or a zombie.
pub fn has_ended(pid: u32) -> bool {
    Process::new(pid).stat().map_or(true, |stat| stat.has_ended())
}

/// A child that waits until it is to execute the program, and then is the program.
pub struct Workload {
    /// The signals of this process, while the program runs.
    pub signals: Signals,
    /// The program, as the user named it.
    name: Untrusted,
    pid: Pid,
    go: File,
    failed: File,
}

impl Workload {
    /// Blocks the signals of this process, and starts the child, which waits.
    ///
    /// # Errors
    /// signalfd(2), fork(2) or pipe(2) fails.
    pub fn prepare(path: &Path, argv: &[OsString]) -> Result<Workload> {
        let signals = Signals::block().context("signalfd")?;
        Workload::forked(path, argv, signals).context("cannot start a process")
    }

    fn forked(path: &Path, argv: &[OsString], signals: Signals) -> io::Result<Workload> {
        let name = argv[0].as_os_str().into();
        let flags = nix::fcntl::OFlag::O_CLOEXEC;
        let (wait, go) = pipe2(flags)?;
        let (failed, report) = pipe2(flags)?;
        // SAFETY: fork(2): this process has one thread, so the child may call any function.
        match unsafe { fork() }? {
            ForkResult::Parent { child: pid } => {
                Ok(Workload { signals, name, pid, go: go.into(), failed: failed.into() })
            }
            ForkResult::Child => {
                drop((go, failed));
                let _ = inherited_signals::restore();
                let mut byte = [0];
                if File::from(wait).read_exact(&mut byte).is_ok() {
                    let errno = program::exec(path, argv).raw_os_error().unwrap_or(libc::EIO);
                    let _ = File::from(report).write_all(&errno.to_ne_bytes());
                }
                // SAFETY: _exit(2) flushes no buffer of the parent a second time.
                unsafe { libc::_exit(127) }
            }
        }
    }

    /// Returns its id.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw().unsigned_abs()
    }

    /// Lets it execute the program.
    ///
    /// # Errors
    /// execve(2) fails; the child has ended then.
    pub fn start(&mut self) -> Result<(), ExecError> {
        let failed = |source| ExecError { program: self.name.clone(), source };
        self.go.write_all(&[1]).map_err(failed)?;
        let mut errno = [0; 4];
        match self.failed.read_exact(&mut errno) {
            // The execve(2) has closed the other end.
            Err(_) => Ok(()),
            Ok(()) => {
                let _ = waitpid(self.pid, None);
                Err(failed(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))))
            }
        }
    }

    /// Waits for its end, a signal or the deadline. The program has received a signal of the terminal by itself; one that
    /// was sent to this process is passed on.
    pub fn wait(&self, deadline: Option<Instant>) -> Event {
        let event = wait_for(self.pid(), &self.signals, deadline);
        if let Event::Signal(number, true) = event {
            // SAFETY: kill(2): two integers; the child has not been waited for.
            unsafe { libc::kill(self.pid.as_raw(), number) };
        }
        event
    }

    /// Ends as the program does: by the same signal, or by returning its exit status.
    ///
    /// # Errors
    /// waitpid(2) fails.
    pub fn end(self) -> Result<i32> {
        loop {
            match waitpid(self.pid, None) {
                Ok(WaitStatus::Exited(_, status)) => return Ok(status),
                Ok(WaitStatus::Signaled(_, signal, _)) => {
                    die_by(signal as i32);
                    return Ok(128 + signal as i32);
                }
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => bail!("cannot wait for process {}: {}", self.pid, io::Error::from(errno)),
            }
        }
    }
}

/// Ends this process by the signal that ended the program, without a core file.
fn die_by(number: i32) {
    // SAFETY: prctl(2), signal(2), sigprocmask(2), raise(3): integers and a live set.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0);
        libc::signal(number, libc::SIG_DFL);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, number);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        libc::raise(number);
    }
}
