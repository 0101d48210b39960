// SPDX-License-Identifier: Apache-2.0
//! Makes the requests of ptrace(2) that the helper needs. A tracee that runs and one that is stopped are
//! different types; only the stopped one has registers.
//!
//! The tracee's death is an error of its own, [`Error::Vanished`], not an errno.

use crate::arch::Regs;
use crate::deadline;
use hugelift_core::addr::Addr;
use std::io;
use std::time::{Duration, Instant};

/// A thread of another process.
pub type Tid = i32;

const SEIZE: u32 = 0x4206;
const INTERRUPT: u32 = 0x4207;
const LISTEN: u32 = 0x4208;
const GETREGSET: u32 = 0x4204;
const SETREGSET: u32 = 0x4205;
const GETSIGMASK: u32 = 0x420a;
const SETSIGMASK: u32 = 0x420b;
const GETSIGINFO: u32 = 0x4202;
const POKEDATA: u32 = 5;
const CONT: u32 = 7;
const PEEKSIGINFO: u32 = 0x4209;
const GET_RSEQ_CONFIGURATION: u32 = 0x420f;
const GET_SYSCALL_USER_DISPATCH_CONFIG: u32 = 0x4211;
const SECCOMP_GET_FILTER: u32 = 0x420c;
const DETACH: u32 = 17;
const SYSCALL: u32 = 24;
const NT_PRSTATUS: usize = 1;
const EVENT_EXEC: i32 = 4;
const EVENT_STOP: i32 = 128;
/// Marks system-call stops and reports execve(2). `EXITKILL` is not set, as a program outlives its tracer.
const OPTIONS: usize = 0x01 | 0x10;

/// Why an operation on a tracee failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The tracee was killed, or has exited.
    #[error("process {0} vanished")]
    Vanished(Tid),
    /// The kernel refused.
    #[error("{what} of process {tid}: {source}")]
    Os {
        /// The operation.
        what: &'static str,
        /// The tracee.
        tid: Tid,
        /// errno(3).
        source: io::Error,
    },
    /// The tracee did not stop before the tracer's deadline.
    #[error("thread {0} did not stop in time; see its STAT in 'ps -L'")]
    Late(Tid),
    /// Code that it ran for the tracer has raised a signal. It is stopped, and the signal is not delivered.
    #[error(
        "thread {tid} could not make a system call for hugelift: that raised signal {signal} (kill -l {signal})"
    )]
    Raised {
        /// The tracee.
        tid: Tid,
        /// The signal.
        signal: i32,
    },
    /// Its threads could not all be found before the tracer's deadline.
    #[error("threads of process {0} come and go faster than they can be stopped")]
    TooMany(Tid),
    /// The tracee stopped in a way that the caller does not expect.
    #[error("process {tid} stopped with unexpected status {status:#x}")]
    Unexpected {
        /// The tracee.
        tid: Tid,
        /// The status from wait4(2).
        status: i32,
    },
}

/// A tracee that runs.
#[derive(Debug)]
pub struct Running {
    tid: Tid,
}

/// A tracee that is stopped, and stays so until [`Stopped::resume`] or the tracer's end.
#[derive(Debug)]
pub struct Stopped {
    tid: Tid,
}

/// Why a tracee stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// Entry to or exit from a system call.
    Syscall,
    /// A signal is about to be delivered.
    Signal(i32),
    /// execve(2) has succeeded.
    Exec,
    /// [`Running::interrupt`] or SIGCONT.
    Trap,
    /// The process is stopped by this signal (SIGSTOP, SIGTSTP...).
    Group(i32),
}

/// How a tracee is resumed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resume {
    /// Until the next event.
    Cont,
    /// Until the next entry to or exit from a system call.
    Syscall,
    /// It stays stopped until SIGCONT, as it would without a tracer.
    Listen,
}

fn call(what: &'static str, request: u32, tid: Tid, addr: usize, data: usize) -> Result<i64, Error> {
    hugelift_linux::faultpoint::pass(tid);
    // SAFETY: ptrace(2): addr and data point to what the request needs, as the callers in this file
    // show. A request writes only to memory that its caller owns: the mask, the array at `data`, or the
    // buffer of the iovec there.
    let rc = unsafe {
        libc::syscall(libc::SYS_ptrace, libc::c_long::from(request), libc::c_long::from(tid), addr, data)
    };
    if rc != -1 {
        return Ok(rc);
    }
    let source = io::Error::last_os_error();
    match source.raw_os_error() {
        Some(libc::ESRCH) => {
            if request != SEIZE {
                reap(tid);
            }
            Err(Error::Vanished(tid))
        }
        _ => Err(Error::Os { what, tid, source }),
    }
}

/// Waits for a tracee that dies. An execve(2) of another thread goes on only when each thread that it has
/// killed was waited for by its tracer, and until then PTRACE_SEIZE of any other thread blocks.
fn reap(tid: Tid) {
    const TRIES: u32 = 100;
    let mut status = 0;
    for _ in 0..TRIES {
        // SAFETY: wait4(2): status is a live i32, rusage may be null.
        let rc = unsafe { libc::wait4(tid, &mut status, libc::__WALL | libc::WNOHANG, std::ptr::null_mut()) };
        // The leader's zombie is released by the execve(2) itself: then there is no such child.
        if rc != 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
}

/// Starts to trace `tid` without stopping it.
///
/// # Errors
/// EPERM where yama, seccomp, a missing capability or another tracer forbids it.
pub fn seize(tid: Tid) -> Result<Running, Error> {
    deadline::while_seizing(|| call("PTRACE_SEIZE", SEIZE, tid, 0, OPTIONS))?;
    Ok(Running { tid })
}

impl Running {
    /// Returns the thread's id.
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Makes the tracee stop with [`Stop::Trap`]; [`Running::wait`] waits for the stop.
    pub fn interrupt(&self) -> Result<(), Error> {
        call("PTRACE_INTERRUPT", INTERRUPT, self.tid, 0, 0).map(drop)
    }

    /// Waits for the next stop.
    ///
    /// # Errors
    /// [`Error::Vanished`] if the tracee has ended, [`Error::Late`] if the helper's deadline is over.
    pub fn wait(self) -> Result<(Stopped, Stop), Error> {
        let tid = self.tid;
        let mut status = 0;
        loop {
            // SAFETY: wait4(2): status is a live i32, rusage may be null.
            let rc = unsafe { libc::wait4(tid, &mut status, libc::__WALL, std::ptr::null_mut()) };
            if rc == tid {
                break;
            }
            let source = io::Error::last_os_error();
            match source.raw_os_error() {
                Some(libc::EINTR) if deadline::is_over() => return Err(Error::Late(tid)),
                Some(libc::EINTR) => {}
                Some(libc::ECHILD) => return Err(Error::Vanished(tid)),
                _ => return Err(Error::Os { what: "wait4", tid, source }),
            }
        }
        decode(tid, status)
    }
}

/// Stops a tracee that runs, and detaches from it.
///
/// # Errors
/// See [`Running::wait`].
pub fn let_go(tid: Tid) -> Result<(), Error> {
    let running = Running { tid };
    running.interrupt()?;
    let (stopped, stop) = running.wait()?;
    stopped.detach(if let Stop::Signal(signal) = stop { signal } else { 0 })
}

impl Running {
    /// Does the same for a tracee that will stop within microseconds. Asks again and again for 150 us before it
    /// sleeps: to be woken takes about 20 us, of which the program would wait for each. Whoever else wants the CPU
    /// gets it.
    ///
    /// # Errors
    /// As for [`Running::wait`].
    pub fn wait_shortly(self) -> Result<(Stopped, Stop), Error> {
        self.wait_asking(SOON)
    }

    /// Does the same, and asks for `time` before it sleeps.
    ///
    /// # Errors
    /// As for [`Running::wait`].
    pub fn wait_asking(self, time: Duration) -> Result<(Stopped, Stop), Error> {
        let began = Instant::now();
        loop {
            let mut status = 0;
            let flags = libc::__WALL | libc::WNOHANG;
            // SAFETY: wait4(2): status is a live i32, rusage may be null.
            let rc = unsafe { libc::wait4(self.tid, &mut status, flags, std::ptr::null_mut()) };
            if rc == self.tid {
                return decode(self.tid, status);
            }
            if rc != 0 || began.elapsed() >= time {
                return self.wait();
            }
            std::thread::yield_now();
        }
    }
}

/// How long [`Running::wait_shortly`] asks before it sleeps.
const SOON: Duration = Duration::from_micros(150);

/// Returns what a status of wait4(2) says of a tracee.
fn decode(tid: Tid, status: i32) -> Result<(Stopped, Stop), Error> {
    if !libc::WIFSTOPPED(status) {
        return Err(Error::Vanished(tid));
    }
    let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
    let stop = match (event, signal) {
        (EVENT_EXEC, _) => Stop::Exec,
        (EVENT_STOP, libc::SIGTRAP) => Stop::Trap,
        (EVENT_STOP, signal) => Stop::Group(signal),
        (0, s) if s == libc::SIGTRAP | 0x80 => Stop::Syscall,
        (0, signal) => Stop::Signal(signal),
        _ => return Err(Error::Unexpected { tid, status }),
    };
    Ok((Stopped { tid }, stop))
}

/// Returns what has become of a tracee that was running; `None` if it still is.
///
/// # Errors
/// [`Error::Vanished`] if it has ended.
pub fn poll(tid: Tid) -> Option<Result<(Stopped, Stop), Error>> {
    let mut status = 0;
    // SAFETY: wait4(2): status is a live i32, rusage may be null.
    let rc = unsafe { libc::wait4(tid, &mut status, libc::__WALL | libc::WNOHANG, std::ptr::null_mut()) };
    match rc {
        0 => None,
        _ if rc == tid => Some(decode(tid, status)),
        // There is no such tracee.
        _ => Some(Err(Error::Vanished(tid))),
    }
}

impl Stopped {
    /// Returns the thread's id.
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Resumes the tracee, and delivers `signal` (0 for none).
    pub fn resume(self, how: Resume, signal: i32) -> Result<Running, Error> {
        let (what, request) = match how {
            Resume::Cont => ("PTRACE_CONT", CONT),
            Resume::Syscall => ("PTRACE_SYSCALL", SYSCALL),
            Resume::Listen => ("PTRACE_LISTEN", LISTEN),
        };
        call(what, request, self.tid, 0, signal as usize)?;
        Ok(Running { tid: self.tid })
    }

    /// Resumes the tracee until it is about to return to its program, where it stops with [`Stop::Trap`]. Delivers
    /// `signal` before (0 for none): it then stops at the first instruction of the handler.
    pub fn resume_to_trap(self, signal: i32) -> Result<Running, Error> {
        call("PTRACE_INTERRUPT", INTERRUPT, self.tid, 0, 0)?;
        self.resume(Resume::Cont, signal)
    }

    /// Lets the tracee run to its next stop. After an error it may run still.
    ///
    /// # Errors
    /// See [`Running::wait`].
    pub fn run(&mut self, how: Resume, signal: i32) -> Result<Stop, Error> {
        let (_, stop) = Stopped { tid: self.tid }.resume(how, signal)?.wait()?;
        Ok(stop)
    }

    /// Does the same, and asks for the stop for `time` before it sleeps.
    ///
    /// # Errors
    /// See [`Running::wait`].
    pub fn run_asking(&mut self, how: Resume, signal: i32, time: Duration) -> Result<Stop, Error> {
        let (_, stop) = Stopped { tid: self.tid }.resume(how, signal)?.wait_asking(time)?;
        Ok(stop)
    }

    /// Does what [`Stopped::run_to_trap`] does, and asks for the stop for `time` before it sleeps.
    ///
    /// # Errors
    /// See [`Running::wait`].
    pub fn run_to_trap_asking(&mut self, time: Duration) -> Result<Stop, Error> {
        let (_, stop) = Stopped { tid: self.tid }.resume_to_trap(0)?.wait_asking(time)?;
        Ok(stop)
    }

    /// Lets the tracee run until it is about to return to its program ([`Stopped::resume_to_trap`]), or to
    /// another stop. After an error it may run still.
    ///
    /// # Errors
    /// See [`Running::wait`].
    pub fn run_to_trap(&mut self) -> Result<Stop, Error> {
        let (_, stop) = Stopped { tid: self.tid }.resume_to_trap(0)?.wait()?;
        Ok(stop)
    }

    /// Detaches from the tracee, and delivers `signal` (0 for none).
    pub fn detach(self, signal: i32) -> Result<(), Error> {
        call("PTRACE_DETACH", DETACH, self.tid, 0, signal as usize).map(drop)
    }

    /// Returns the general registers; `None` for a 32-bit process.
    pub fn regs(&self) -> Result<Option<Regs>, Error> {
        let mut regs = Regs::default();
        let mut iov = libc::iovec { iov_base: (&raw mut regs).cast(), iov_len: size_of::<Regs>() };
        call("PTRACE_GETREGSET", GETREGSET, self.tid, NT_PRSTATUS, (&raw mut iov) as usize)?;
        Ok((iov.iov_len == size_of::<Regs>()).then_some(regs))
    }

    /// Sets the general registers.
    pub fn set_regs(&self, regs: &Regs) -> Result<(), Error> {
        let mut copy = *regs;
        let mut iov = libc::iovec { iov_base: (&raw mut copy).cast(), iov_len: size_of::<Regs>() };
        call("PTRACE_SETREGSET", SETREGSET, self.tid, NT_PRSTATUS, (&raw mut iov) as usize).map(drop)
    }

    /// Sets the number of the system call alone ([`crate::arch::SYSCALL_REGSET`]); -1 is none. Returns false
    /// where there is no such regset.
    pub fn set_syscall(&self, number: i32) -> Result<bool, Error> {
        let Some(regset) = crate::arch::SYSCALL_REGSET else { return Ok(false) };
        let mut number = number;
        let mut iov = libc::iovec { iov_base: (&raw mut number).cast(), iov_len: size_of::<i32>() };
        call("PTRACE_SETREGSET", SETREGSET, self.tid, regset, (&raw mut iov) as usize).map(|_| true)
    }

    /// Returns whether registers are in use that a system call clears ([`crate::arch::LOST_IN_CALLS`]).
    pub fn would_lose_registers(&self) -> bool {
        crate::arch::LOST_IN_CALLS.iter().any(|regset| {
            let mut header = [0; 16];
            let mut iov = libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len: header.len() };
            let got = call("PTRACE_GETREGSET", GETREGSET, self.tid, *regset, (&raw mut iov) as usize);
            got.is_ok() && iov.iov_len == header.len() && crate::arch::is_lost(&header)
        })
    }

    /// Returns the floating-point state as the regset [`crate::arch::FP_REGSET`]; empty if the machine has
    /// none.
    pub fn fp_regs(&self) -> Vec<u8> {
        let mut bytes = vec![0; 16 << 10];
        let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let regset = crate::arch::FP_REGSET;
        match call("PTRACE_GETREGSET", GETREGSET, self.tid, regset, (&raw mut iov) as usize) {
            Ok(_) => bytes.truncate(iov.iov_len),
            Err(_) => bytes.clear(),
        }
        bytes
    }

    /// Returns the signals that the thread blocks, one bit each (signal 1 is bit 0).
    pub fn signal_mask(&self) -> Result<u64, Error> {
        let mut mask = 0u64;
        call("PTRACE_GETSIGMASK", GETSIGMASK, self.tid, size_of::<u64>(), (&raw mut mask) as usize)?;
        Ok(mask)
    }

    /// Sets the signals that the thread blocks.
    pub fn set_signal_mask(&self, mask: u64) -> Result<(), Error> {
        let mut mask = mask;
        call("PTRACE_SETSIGMASK", SETSIGMASK, self.tid, size_of::<u64>(), (&raw mut mask) as usize).map(drop)
    }

    /// Returns the address of the thread's `struct rseq`; `None` if it has registered none, or before Linux
    /// 5.13.
    pub fn rseq_area(&self) -> Option<Addr> {
        // struct ptrace_rseq_configuration (linux/ptrace.h): address, size, signature, flags, padding.
        let mut words = [0u64; 3];
        let size = size_of_val(&words);
        let what = "PTRACE_GET_RSEQ_CONFIGURATION";
        call(what, GET_RSEQ_CONFIGURATION, self.tid, size, words.as_mut_ptr() as usize).ok()?;
        (words[0] != 0).then_some(Addr(words[0]))
    }

    /// Returns whether the system calls of the thread are dispatched to itself (PR_SET_SYSCALL_USER_DISPATCH); `None` if
    /// the kernel does not tell: before Linux 6.4, or where it dispatches none.
    ///
    /// # Errors
    /// The tracee has ended.
    pub fn dispatches_calls(&self) -> Result<Option<bool>, Error> {
        /// `PR_SYS_DISPATCH_OFF` (linux/prctl.h)
        const OFF: u64 = 0;
        const WHAT: &str = "PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG";
        if hugelift_linux::faultpoint::lacks(WHAT) {
            return Ok(None);
        }
        // struct ptrace_sud_config (linux/ptrace.h): mode, selector, offset, length.
        let mut words = [OFF; 4];
        let (size, at) = (size_of_val(&words), words.as_mut_ptr() as usize);
        match call(WHAT, GET_SYSCALL_USER_DISPATCH_CONFIG, self.tid, size, at) {
            Ok(_) => Ok(Some(words[0] != OFF)),
            Err(Error::Os { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the instructions of its seccomp filter with this index, 8 bytes each; `None` if it has fewer
    /// filters. The oldest has index 0, so that a filter keeps its index when others are added.
    ///
    /// # Errors
    /// EACCES without CAP_SYS_ADMIN in the initial user namespace, or if this process is under seccomp; EIO
    /// if the kernel has no CONFIG_CHECKPOINT_RESTORE; EINVAL if seccomp is not in the mode of filters.
    pub fn seccomp_filter(&self, index: usize) -> Result<Option<Vec<u8>>, Error> {
        // BPF_MAXINSNS: no filter is longer.
        const MOST: usize = 4096;
        let mut bytes = vec![0; MOST * 8];
        let what = "PTRACE_SECCOMP_GET_FILTER";
        match call(what, SECCOMP_GET_FILTER, self.tid, index, bytes.as_mut_ptr() as usize) {
            Ok(count) => {
                bytes.truncate(usize::try_from(count).unwrap_or(0) * 8);
                Ok(Some(bytes))
            }
            Err(Error::Os { source, .. }) if source.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns whether it has exactly this many seccomp filters. A thread's filters are never removed.
    pub fn has_seccomp_filters(&self, count: usize) -> bool {
        let what = "PTRACE_SECCOMP_GET_FILTER";
        // Without a buffer the kernel returns the length of the filter alone.
        match call(what, SECCOMP_GET_FILTER, self.tid, count, 0) {
            Err(Error::Os { source, .. }) => source.raw_os_error() == Some(libc::ENOENT),
            _ => false,
        }
    }

    /// Returns whether a SIGCONT is pending for this thread, not for its process.
    pub fn has_sigcont_pending(&self) -> Result<bool, Error> {
        /// `struct ptrace_peeksiginfo_args` (sys/ptrace.h)
        #[repr(C)]
        struct Args {
            off: u64,
            flags: u32,
            nr: i32,
        }
        const AT_ONCE: usize = 16;
        // siginfo_t is 128 bytes, the signal's number its first word.
        let mut infos = [[0i32; 32]; AT_ONCE];
        let mut off = 0;
        loop {
            let args = Args { off, flags: 0, nr: AT_ONCE as i32 };
            let data = infos.as_mut_ptr() as usize;
            let count = call("PTRACE_PEEKSIGINFO", PEEKSIGINFO, self.tid, (&raw const args) as usize, data)?;
            let count = usize::try_from(count).unwrap_or(0);
            if infos[..count.min(AT_ONCE)].iter().any(|info| info[0] == libc::SIGCONT) {
                return Ok(true);
            }
            if count < AT_ONCE {
                return Ok(false);
            }
            off += count as u64;
        }
    }

    /// Returns the sender of the signal that is about to be delivered: `si_code` and `si_pid`
    /// (sigaction(2)).
    pub fn signal_origin(&self) -> Result<(i32, i32), Error> {
        let mut info = [0i32; 32];
        call("PTRACE_GETSIGINFO", GETSIGINFO, self.tid, 0, info.as_mut_ptr() as usize)?;
        Ok((info[2], info[4]))
    }

    /// Writes `bytes` (a multiple of 8) at `addr`, whatever the protection there. The protection stays: the
    /// kernel replaces the page by a private copy.
    pub fn poke(&self, addr: Addr, bytes: &[u8]) -> Result<(), Error> {
        hugelift_linux::faultpoint::pass(self.tid);
        // /proc/PID/mem does the same as POKEDATA in one call, unless the kernel is set to refuse it
        // (proc_mem.force_override).
        if hugelift_linux::proc::memory::force(self.tid, addr, bytes).is_ok() {
            return Ok(());
        }
        self.poke_words(addr, bytes)
    }

    /// Does the same word by word.
    pub fn poke_words(&self, addr: Addr, bytes: &[u8]) -> Result<(), Error> {
        for (word, at) in bytes.chunks_exact(8).zip((addr.0..).step_by(8)) {
            let mut value = [0; 8];
            value.copy_from_slice(word);
            call("PTRACE_POKEDATA", POKEDATA, self.tid, at as usize, u64::from_ne_bytes(value) as usize)?;
        }
        Ok(())
    }
}
