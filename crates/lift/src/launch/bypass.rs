// SPDX-License-Identifier: Apache-2.0
//! The reasons for which a program is started as without hugelift.

use hugelift_core::printable::Untrusted;
use hugelift_inject::ptrace;
use hugelift_linux::proc::procfs::ProcError;
use std::io;

/// A reason to start a program without hugelift. Its message says what was found, and names a command that
/// helps, if there is one.
#[derive(Debug, thiserror::Error)]
pub enum Bypass {
    /// The kernel gives the program other rights than the caller's, but not under a tracer.
    #[error("{path} is {what}: such a program must not be traced (a copy without that bit can be lifted)")]
    Privileged {
        /// The program, or the interpreter of the script.
        path: Untrusted,
        /// `set-uid`, `set-gid`, `given file capabilities`, or `started with AT_SECURE`.
        what: &'static str,
    },
    /// The program is built for another word size.
    #[error("{path} is a 32-bit program: only 64-bit ones are lifted")]
    Class32 {
        /// The program.
        path: Untrusted,
    },
    /// ptrace(2) was refused.
    #[error("tracing is not permitted here ({source}): {hint}")]
    NotTraceable {
        /// The kernel's answer.
        source: io::Error,
        /// What forbids it, as far as is visible.
        hint: String,
    },
    /// The kernel protects the process because its file may be executed but not read.
    #[error("its file may be executed but not read by this user; chmod a+r, or run as root")]
    Unreadable,
    /// A file of /proc could not be read.
    #[error(transparent)]
    Proc(ProcError),
    /// A system call that the launcher or helper needs failed.
    #[error("{what}: {source}; see 'ulimit -a' and the limits of its cgroup")]
    Resources {
        /// The call.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A seccomp filter is on that may kill the program for what hugelift does.
    #[error(
        "a seccomp filter is on, and nothing shows that it lets a process fork; \
         'hugelift run --seccomp try' tries it, and the filter may kill the program for that"
    )]
    Filtered,
    /// A seccomp filter is on, and a child that tried the calls of a lift did not survive them.
    #[error(
        "a seccomp filter is on that does not allow the system calls of a lift; \
         systemd: SystemCallFilter=, containers: the option seccomp of --security-opt"
    )]
    FilterKills,
    /// /proc shows another pid namespace.
    #[error(
        "/proc shows another pid namespace: 'mount -t proc proc /proc' in this one, \
         or 'unshare --fork --pid --mount-proc'"
    )]
    ForeignProc,
    /// It cannot be found out whether the kernel gives the program other rights than the caller's.
    #[error("cannot find out whether {path} is set-uid or has file capabilities: {source}")]
    Unknown {
        /// The program, or the interpreter of the script.
        path: Untrusted,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The helper did not answer in time.
    #[error("its helper did not answer within {seconds} s")]
    HelperLate {
        /// How long the launcher waited.
        seconds: u64,
    },
    /// The helper could not be forked, or ended without an answer.
    #[error("its helper could not be forked, or ended, before the program started")]
    HelperDied,
    /// The caller has used `unshare --pid` without forking: the helper would be its pid 1.
    #[error("its children go to another pid namespace: use 'unshare --fork --pid'")]
    ForeignPidNamespace,
    /// No executable mapping has zero padding for the code cave.
    #[error("neither the vdso nor any code of the program has 128 bytes of zero padding at its end")]
    NoCodeCave,
    /// A constructor of the program has put it under a seccomp filter.
    #[error("a constructor of its own has installed a seccomp filter, which might kill it for the lift")]
    Confined,
    /// A constructor of the program has its system calls dispatched to itself.
    #[error(
        "a constructor of its own has its system calls dispatched to itself (prctl(PR_SET_SYSCALL_USER_DISPATCH)): \
         hugelift can make none in it"
    )]
    Dispatches,
    /// The auxiliary vector is not where the kernel puts it.
    #[error("AT_ENTRY was not found on its stack, so it cannot be stopped at its entry point")]
    NoEntry,
    /// ptrace(2) failed after it had worked.
    #[error(transparent)]
    Ptrace(ptrace::Error),
}

impl Bypass {
    /// Returns whether the reason is printed only with `-v`: in a container there is always a filter, and a
    /// line at each start would say nothing new.
    pub fn is_usual(&self) -> bool {
        matches!(self, Bypass::Filtered | Bypass::FilterKills)
    }
}

impl From<ProcError> for Bypass {
    fn from(error: ProcError) -> Bypass {
        match error {
            // It is a tracee of the same user, so its file must be unreadable.
            ProcError::Denied { .. } => Bypass::Unreadable,
            other => Bypass::Proc(other),
        }
    }
}

impl From<ptrace::Error> for Bypass {
    fn from(error: ptrace::Error) -> Bypass {
        match error {
            ptrace::Error::Os { source, .. }
                if matches!(source.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::EIO)) =>
            {
                let hint = hugelift_linux::machine::yama::hint(&source);
                Bypass::NotTraceable { source, hint }
            }
            other => Bypass::Ptrace(other),
        }
    }
}

/// Whether the program starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It starts.
    Start,
    /// It does not start: it exits with this status.
    Refuse(i32),
}
