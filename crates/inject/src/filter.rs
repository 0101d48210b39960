// SPDX-License-Identifier: Apache-2.0
//! The seccomp filters of a thread that is to be borrowed, and what they answer to the calls of a lift.
//!
//! Two checks keep a filter from ending a process. Before a thread makes its first call, its filters must
//! allow the calls without which nothing can be undone (`NEEDED`). Then each call is run through the filters
//! with its own number and arguments before it is made. A call that they would refuse is not made, and counts
//! as failed.

use crate::arch;
use crate::calls::FILE_COPY;
use crate::frame::Call;
use crate::ptrace::{Error, Stopped};
use hugelift_core::addr::Addr;
use hugelift_core::seccomp::{Action, Data, Filter, Filters, Instruction};
use hugelift_linux::proc::memory::MADV_COLLAPSE;
use hugelift_linux::proc::procfs::Process;
use nix::errno::Errno;
use std::fmt;
use std::rc::Rc;

/// A system call that is not made, because of a filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The call's name.
    pub call: &'static str,
    /// What the filter answers.
    pub action: Action,
}

impl Refusal {
    /// Returns what counts as the result of the call that was not made: the filter's errno, else `EPERM`.
    pub fn result(self) -> i64 {
        match self.action {
            Action::Errno(errno @ 1..) => -i64::from(errno),
            _ => i64::from(-libc::EPERM),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { call, action } = self;
        match action {
            Action::KillProcess => write!(f, "kills the process for {call}(2)"),
            Action::KillThread => write!(f, "kills the thread for {call}(2)"),
            Action::Trap => write!(f, "answers {call}(2) with the signal SIGSYS"),
            Action::Errno(0) => write!(f, "answers {call}(2) with 0 in place of making it"),
            Action::Errno(errno) => match Errno::from_raw((*errno).into()) {
                Errno::UnknownErrno => write!(f, "answers {call}(2) with errno {errno}"),
                known => write!(f, "answers {call}(2) with {known:?}"),
            },
            Action::UserNotification => {
                write!(f, "leaves {call}(2) to another process (SECCOMP_RET_USER_NOTIF)")
            }
            Action::Trace => write!(f, "leaves {call}(2) to a tracer (SECCOMP_RET_TRACE)"),
            Action::Log | Action::Allow => write!(f, "allows {call}(2)"),
        }
    }
}

/// Why a thread under seccomp is not borrowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forbids {
    /// A filter refuses a call.
    Call(Refusal),
    /// It is in strict mode.
    Strict,
    /// It has a filter that cannot be read.
    Unread(Unread),
}

impl fmt::Display for Forbids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Forbids::Call(refusal) => write!(f, "its seccomp filter {refusal}"),
            Forbids::Strict => {
                f.write_str("it is in the strict mode of seccomp(2), which kills it for any call of a lift")
            }
            Forbids::Unread(why) => write!(
                f,
                "it is under a seccomp filter, which may kill it for the system calls of a lift (mmap, mremap, \
                 mprotect, munmap, madvise, socket, connect, recvmsg, close), and {why}; '--seccomp try' makes \
                 them nevertheless"
            ),
        }
    }
}

/// Why a filter cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unread {
    /// A right is missing.
    Right,
    /// This process is under seccomp.
    OwnFilter,
    /// The kernel has no `CONFIG_CHECKPOINT_RESTORE`.
    Kernel,
    /// It is no filter of classic BPF.
    Form,
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unread::Right => "only root can read the filter (CAP_SYS_ADMIN in the initial user namespace)",
            Unread::OwnFilter => "hugelift cannot read the filter, as hugelift itself is under seccomp",
            Unread::Kernel => "this kernel does not show the filter (CONFIG_CHECKPOINT_RESTORE)",
            Unread::Form => "hugelift does not understand the filter",
        })
    }
}

/// What is known of the filters of a thread before it is stopped.
#[derive(Clone, Debug)]
pub enum Known {
    /// It had none. If it has some when it is stopped, they are read.
    None,
    /// They are not asked.
    NotAsked,
    /// It has filters, which can be read when it is stopped.
    Unread,
    /// It had these.
    Read(Rc<Filters>),
}

/// Returns why this process cannot read filters, as far as that shows before a thread is stopped for it.
pub fn may_read() -> Result<(), Unread> {
    const CAP_SYS_ADMIN: u32 = 21; // linux/capability.h
    // A kernel or a /proc that does not tell leaves it to the attempt.
    let Ok(own) = Process::OWN.status() else { return Ok(()) };
    if own.seccomp.is_some_and(|mode| mode != 0) {
        return Err(Unread::OwnFilter);
    }
    match own.capabilities {
        Some(bits) if bits >> CAP_SYS_ADMIN & 1 == 0 => Err(Unread::Right),
        _ => Ok(()),
    }
}

/// Returns the filters of a stopped thread if they allow the calls of every lift, made at `at`.
///
/// # Errors
/// The inner error says why they do not; the outer one is that the thread has ended.
pub fn read(
    stopped: &Stopped,
    known: Known,
    at: Addr,
) -> Result<Result<Option<Rc<Filters>>, Forbids>, Error> {
    let filters = match known {
        Known::NotAsked => return Ok(Ok(None)),
        Known::None if !is_filtered(stopped) => return Ok(Ok(None)),
        Known::Read(filters) if stopped.has_seccomp_filters(filters.count()) => return Ok(Ok(Some(filters))),
        // It may have installed one after it was read and before it stopped.
        Known::None | Known::Unread | Known::Read(_) => match read_all(stopped) {
            Ok(Some(filters)) => filters,
            Ok(None) => return Ok(Err(Forbids::Unread(Unread::Form))),
            Err(error) => return unread(error).map(|why| Err(Forbids::Unread(why))),
        },
    };
    let refused = NEEDED.iter().find_map(|(number, args)| check(&filters, at, *number, args).err());
    Ok(match refused {
        Some(refusal) => Err(Forbids::Call(refusal)),
        None => Ok(Some(Rc::new(filters))),
    })
}

/// Returns whether the kernel can continue an interrupted call of the thread (restart_syscall(2)), as far as is
/// known: after the stop it makes that call, which the filters see.
pub fn may_continue(forbids: &Forbids) -> bool {
    match forbids {
        Forbids::Call(refusal) => refusal.call != name(libc::SYS_restart_syscall),
        Forbids::Strict | Forbids::Unread(_) => false,
    }
}

/// Returns whether a stopped thread is under seccomp.
fn is_filtered(stopped: &Stopped) -> bool {
    let status = Process::of(stopped.tid()).status();
    status.is_ok_and(|status| status.seccomp.is_some_and(|mode| mode != 0))
}

/// Returns all filters of a stopped thread, the oldest first; `None` if one is not classic BPF.
fn read_all(stopped: &Stopped) -> Result<Option<Filters>, Error> {
    let mut all = Vec::new();
    while let Some(bytes) = stopped.seccomp_filter(all.len())? {
        let (instructions, _) = bytes.as_chunks::<{ Instruction::BYTES }>();
        let program = instructions.iter().map(|bytes| Instruction::from_bytes(*bytes)).collect();
        let Some(filter) = Filter::new(program) else { return Ok(None) };
        all.push(filter);
    }
    Ok(Some(Filters::new(all)))
}

/// Returns why the kernel has shown no filter.
fn unread(error: Error) -> Result<Unread, Error> {
    match &error {
        Error::Os { source, .. } => match source.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => Ok(Unread::Right),
            Some(libc::EIO) => Ok(Unread::Kernel),
            Some(libc::EINVAL | libc::EMEDIUMTYPE) => Ok(Unread::Form),
            _ => Err(error),
        },
        _ => Err(error),
    }
}

/// Checks a call that a thread with these filters would make at `at`.
///
/// # Errors
/// The call would not be made.
pub fn check(filters: &Filters, at: Addr, number: i64, args: &[u64; 6]) -> Result<(), Refusal> {
    let pc = at.0.wrapping_add(arch::SYSCALL_BYTES);
    let data = Data { number: number as i32, arch: arch::AUDIT_ARCH, pc, args: *args };
    match filters.action(&data) {
        action if action.is_made() => Ok(()),
        action => Err(Refusal { call: name(number), action }),
    }
}

/// Ways to make text and read-only data huge, each with calls of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// An anonymous copy of code.
    CopyOfCode,
    /// An anonymous copy of read-only data.
    CopyOfData,
    /// A file of the store, which is passed to the process.
    File,
    /// An anonymous copy of data that the threads write to, beside [`Way::CopyOfData`].
    CopyOfWritten,
}

impl Way {
    /// Checks the calls of this way. Addresses, lengths and descriptors are examples; all other arguments have the values that
    /// the calls will have.
    ///
    /// # Errors
    /// The first call that the filters refuse.
    pub fn check(self, filters: &Filters) -> Result<(), Refusal> {
        let calls = match self {
            Way::CopyOfCode
                if ANEW.iter().all(|(n, args)| check(filters, Addr(EXAMPLE), *n, args).is_ok()) =>
            {
                &COPY[1..]
            }
            Way::CopyOfCode => COPY,
            Way::CopyOfData => &COPY[1..],
            Way::File => FILE,
            Way::CopyOfWritten => WRITTEN,
        };
        calls.iter().try_for_each(|(number, args)| check(filters, Addr(EXAMPLE), *number, args))
    }
}

/// An address, a length and a descriptor where the real ones are not known yet.
const EXAMPLE: u64 = 0x7000_0000_0000;
const LEN: u64 = 2 << 20;
const FD: u64 = 9;

const READ: u64 = libc::PROT_READ as u64;
const WRITE: u64 = libc::PROT_WRITE as u64;
const EXEC: u64 = libc::PROT_EXEC as u64;
const ANONYMOUS: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
const FIXED: u64 = libc::MAP_FIXED as u64;
const NO_REPLACE: u64 = libc::MAP_FIXED_NOREPLACE as u64;
const FILE_FLAGS: u64 = FILE_COPY as u64 | NO_REPLACE;
const MOVES: u64 = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
const SOCKET: u64 = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as u64;
const RECEIVE: u64 = (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) as u64;

const FUTEX_WAIT: u64 = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as u64;
const FUTEX_WAKE: u64 = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as u64;

/// Calls of every lift and of restore. The first is made by the kernel after a stop, with whatever the registers
/// hold; the next two are made if the tracer dies.
const NEEDED: &[Call] = &[
    (libc::SYS_restart_syscall, [0; 6]),
    (libc::SYS_getpid, [0; 6]),
    (libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as u64, EXAMPLE, 0, 8, 0, 0]),
    (libc::SYS_mremap, [EXAMPLE, LEN, LEN, MOVES, EXAMPLE - LEN, 0]),
    (libc::SYS_munmap, [EXAMPLE, LEN, 0, 0, 0, 0]),
    (libc::SYS_madvise, [EXAMPLE, LEN, libc::MADV_DOFORK as u64, 0, 0, 0]),
];

/// Calls of an anonymous copy; the first makes it executable.
const COPY: &[Call] = &[
    (libc::SYS_mprotect, [EXAMPLE, LEN, READ | EXEC, 0, 0, 0]),
    (libc::SYS_mprotect, [EXAMPLE, LEN, READ, 0, 0, 0]),
    (libc::SYS_mmap, [EXAMPLE, LEN, READ | WRITE, ANONYMOUS | NO_REPLACE, u64::MAX, 0]),
    (libc::SYS_madvise, [EXAMPLE, LEN, libc::MADV_HUGEPAGE as u64, 0, 0, 0]),
    (libc::SYS_madvise, [EXAMPLE, LEN, libc::MADV_DONTFORK as u64, 0, 0, 0]),
    (libc::SYS_madvise, [EXAMPLE, LEN, MADV_COLLAPSE as u64, 0, 0, 0]),
];

/// Calls of a copy that is mapped as code at once, where none may become code.
const ANEW: &[Call] = &[(libc::SYS_mmap, [EXAMPLE, LEN, READ | EXEC, ANONYMOUS | FIXED, u64::MAX, 0])];

/// Calls that receive and map a file.
const FILE: &[Call] = &[
    (libc::SYS_socket, [libc::AF_UNIX as u64, SOCKET, 0, 0, 0, 0]),
    (libc::SYS_connect, [FD, EXAMPLE, 44, 0, 0, 0]),
    (libc::SYS_recvmsg, [FD, EXAMPLE, RECEIVE, 0, 0, 0]),
    (libc::SYS_close, [FD, 0, 0, 0, 0, 0]),
    (libc::SYS_mmap, [0, 4096, READ | WRITE, ANONYMOUS, u64::MAX, 0]),
    (libc::SYS_mmap, [EXAMPLE, LEN, READ | EXEC, FILE_FLAGS, FD, 0]),
    (libc::SYS_mmap, [EXAMPLE, LEN, READ, FILE_FLAGS, FD, 0]),
];

/// Calls that map code and a word, and the calls by which threads wait for the word.
const WRITTEN: &[Call] = &[
    (libc::SYS_mmap, [0, 4096, READ | EXEC, ANONYMOUS, u64::MAX, 0]),
    (libc::SYS_mprotect, [EXAMPLE, 4096, READ | WRITE, 0, 0, 0]),
    (libc::SYS_futex, [EXAMPLE, FUTEX_WAIT, 0, 0, 0, 0]),
    (libc::SYS_futex, [EXAMPLE, FUTEX_WAKE, i32::MAX as u64, 0, 0, 0]),
];

/// Returns the name of a call that a borrowed thread makes.
fn name(number: i64) -> &'static str {
    match number {
        libc::SYS_getpid => "getpid",
        libc::SYS_rt_sigprocmask => "rt_sigprocmask",
        libc::SYS_restart_syscall => "restart_syscall",
        libc::SYS_mmap => "mmap",
        libc::SYS_munmap => "munmap",
        libc::SYS_mremap => "mremap",
        libc::SYS_mprotect => "mprotect",
        libc::SYS_madvise => "madvise",
        libc::SYS_mbind => "mbind",
        libc::SYS_memfd_create => "memfd_create",
        libc::SYS_ftruncate => "ftruncate",
        libc::SYS_socket => "socket",
        libc::SYS_connect => "connect",
        libc::SYS_recvmsg => "recvmsg",
        libc::SYS_close => "close",
        libc::SYS_futex => "futex",
        libc::SYS_prctl => "prctl",
        _ => "syscall",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A filter that gives one call another answer than the rest.
    fn answers(number: i64, action: u32) -> Filters {
        let one = |code, jt, jf, k| Instruction { code, jt, jf, k };
        let program = vec![
            one(0x20, 0, 0, 0),
            one(0x15, 0, 1, number as u32),
            one(0x06, 0, 0, action),
            one(0x06, 0, 0, 0x7fff_0000),
        ];
        Filters::new(vec![Filter::new(program).unwrap()])
    }

    #[test]
    fn each_way_names_the_call_that_it_lacks() {
        let socket = answers(libc::SYS_socket, 0x0005_0001);
        assert_eq!(Way::CopyOfCode.check(&socket), Ok(()));
        let refusal = Way::File.check(&socket).unwrap_err();
        assert_eq!(refusal.to_string(), "answers socket(2) with EPERM");
        assert_eq!(refusal.result(), -1);
        let mprotect = answers(libc::SYS_mprotect, 0x8000_0000);
        assert_eq!(Way::File.check(&mprotect), Ok(()));
        let refusal = Way::CopyOfData.check(&mprotect).unwrap_err();
        assert_eq!(refusal.to_string(), "kills the process for mprotect(2)");
        assert_eq!(refusal.result(), -1);
        let futex = answers(libc::SYS_futex, 0x8000_0000);
        assert_eq!(Way::CopyOfData.check(&futex), Ok(()));
        let refusal = Way::CopyOfWritten.check(&futex).unwrap_err();
        assert_eq!(refusal.to_string(), "kills the process for futex(2)");
        assert_eq!(Refusal { call: "x", action: Action::Errno(38) }.result(), -38);
    }

    #[test]
    fn every_call_has_a_name() {
        for (number, _) in NEEDED.iter().chain(COPY).chain(FILE).chain(WRITTEN) {
            assert_ne!(name(*number), "syscall");
        }
    }
}
