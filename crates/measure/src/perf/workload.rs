// SPDX-License-Identifier: Apache-2.0
//! A program that is started to be watched, and waiting for it or for another process.
//!
//! The program has the caller's standard files, signal mask and dispositions. It is held
//! before its exec until whoever watches is ready.

use hugelift_os::launch::program;
use hugelift_os::proc::pidfd::pidfd_open;
use hugelift_os::proc::procfs::Process;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, pthread_sigmask, signal};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, pipe2};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Signals that end the watching, or are the program's to take.
const WATCHED: [Signal; 4] = [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGHUP];
/// How often to look where the kernel has no pidfd (before Linux 5.3).
const TICK: Duration = Duration::from_millis(20);

/// Signals that this process reads instead of taking.
pub struct Signals {
    fd: OwnedFd,
    before: SigSet,
    child: SigHandler,
}

impl Signals {
    /// Blocks them from now on; and lets a child's end be waited for, whatever the caller left.
    ///
    /// # Errors
    /// signalfd(2)'s.
    pub fn block() -> io::Result<Signals> {
        let set: SigSet = WATCHED.into_iter().collect();
        let mut before = SigSet::empty();
        pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&set), Some(&mut before))?;
        // SAFETY: sigaction(2): no handler is installed.
        let child = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
        // SAFETY: signalfd(2): the set is live; the result is a new file.
        let fd = unsafe {
            let fd = libc::signalfd(-1, set.as_ref(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Signals { fd, before, child })
    }

    /// As the caller had them: for the program.
    fn restore(&self) {
        // SAFETY: sigaction(2): default or ignored, as it was at our own exec.
        let _ = unsafe { signal(Signal::SIGCHLD, self.child) };
        let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&self.before), None);
    }

    /// One that has arrived, and whether a process has sent it (a terminal's goes to the
    /// whole group by itself).
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

/// What ended the waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The process is over.
    Ended,
    /// The time is up.
    TimeUp,
    /// A signal for this process; whether a process sent it.
    Signal(i32, bool),
}

/// Waits for the process `pid`, a signal or the deadline.
pub fn wait_for(pid: u32, signals: &Signals, deadline: Option<Instant>) -> Event {
    let pidfd = pidfd_open(pid).ok();
    loop {
        if let Some((number, sent)) = signals.next() {
            return Event::Signal(number, sent);
        }
        if is_over(pid) {
            return Event::Ended;
        }
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Event::TimeUp;
        }
        let wait = if pidfd.is_some() { left } else { Some(left.map_or(TICK, |l| l.min(TICK))) };
        let mut fds = [
            libc::pollfd { fd: signals.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 },
            // Negative numbers are left out.
            libc::pollfd {
                fd: pidfd.as_ref().map_or(-1, AsRawFd::as_raw_fd),
                events: libc::POLLIN,
                revents: 0,
            },
        ];
        // Rounded up: no busy last millisecond.
        let timeout = wait.map_or(-1, |w| i32::try_from(w.as_millis() + 1).unwrap_or(i32::MAX));
        // SAFETY: poll(2): two live structs.
        unsafe { libc::poll(fds.as_mut_ptr(), 2, timeout) };
    }
}

/// Gone, or a zombie.
fn is_over(pid: u32) -> bool {
    Process::new(pid).stat().map_or(true, |stat| stat.has_ended())
}

/// How a program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// By exit(2) with this status.
    Status(i32),
    /// By this signal.
    Signal(i32),
}

/// A child that becomes the program when told.
pub struct Workload {
    pid: Pid,
    go: File,
    failed: File,
}

impl Workload {
    /// Makes the child. It waits.
    ///
    /// # Errors
    /// fork(2)'s or pipe(2)'s.
    pub fn prepare(path: &Path, argv: &[OsString], signals: &Signals) -> io::Result<Workload> {
        let flags = nix::fcntl::OFlag::O_CLOEXEC;
        let (wait, go) = pipe2(flags)?;
        let (failed, tell) = pipe2(flags)?;
        // SAFETY: fork(2): this process has one thread, so the child may go on as usual.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(Workload { pid: child, go: go.into(), failed: failed.into() }),
            ForkResult::Child => {
                drop((go, failed));
                signals.restore();
                let mut byte = [0];
                if File::from(wait).read_exact(&mut byte).is_ok() {
                    let errno = program::exec(path, argv).raw_os_error().unwrap_or(libc::EIO);
                    let _ = File::from(tell).write_all(&errno.to_ne_bytes());
                }
                // SAFETY: _exit(2): nothing of the parent's is flushed twice.
                unsafe { libc::_exit(127) }
            }
        }
    }

    /// Its id.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw().unsigned_abs()
    }

    /// Lets it become the program.
    ///
    /// # Errors
    /// execve(2)'s; the child is gone then.
    pub fn start(&mut self) -> io::Result<()> {
        self.go.write_all(&[1])?;
        let mut errno = [0; 4];
        match self.failed.read_exact(&mut errno) {
            // The exec has closed the other end.
            Err(_) => Ok(()),
            Ok(()) => {
                let _ = self.wait();
                Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))
            }
        }
    }

    /// Passes a signal on.
    pub fn signal(&self, number: i32) {
        // SAFETY: kill(2): two integers; the child has not been waited for.
        unsafe { libc::kill(self.pid.as_raw(), number) };
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// waitpid(2)'s.
    pub fn wait(&mut self) -> io::Result<End> {
        loop {
            match waitpid(self.pid, None) {
                Ok(WaitStatus::Exited(_, status)) => return Ok(End::Status(status)),
                Ok(WaitStatus::Signaled(_, signal, _)) => return Ok(End::Signal(signal as i32)),
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// Ends this process by the signal that the program ended by, without a core of its own.
pub fn die_by(number: i32) {
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
