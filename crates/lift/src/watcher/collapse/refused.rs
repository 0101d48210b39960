// SPDX-License-Identifier: Apache-2.0
//! Why nothing of a process can be collapsed, and what helps.

use hugelift_core::printable::quoted;
use hugelift_linux::proc::procfs::ProcError;
use std::fmt;
use std::io;

/// Why nothing of a process can be collapsed.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The kernel has no transparent huge pages.
    #[error("this kernel has no transparent huge pages")]
    NoPages,
    /// The process has forbidden itself transparent huge pages.
    #[error(
        "transparent huge pages are off for it (prctl PR_SET_THP_DISABLE; THP_enabled is 0 in /proc/{0}/status), \
         so the kernel does not collapse its memory"
    )]
    SwitchedOff(u32),
    /// A right is missing.
    #[error("process_madvise(MADV_COLLAPSE) of process {pid}: {error}; {}", Help(error))]
    Denied {
        /// The process.
        pid: u32,
        /// EPERM or EACCES; none of these if the first thread of the process has ended.
        error: io::Error,
    },
    /// The kernel does not collapse pages of another process.
    #[error("process_madvise(MADV_COLLAPSE): {0}; it takes Linux 6.1")]
    TooOld(io::Error),
    /// The process has ended.
    #[error("there is no process {0} (any more)")]
    Vanished(u32),
    /// The mappings or pages of the process cannot be read.
    #[error(transparent)]
    Unreadable(#[from] ProcError),
    /// The pages of the process cannot be read.
    #[error("/proc/{pid}/pagemap: {error}")]
    NoPagemap {
        /// The process.
        pid: u32,
        /// open(2), read(2) or ioctl(2).
        error: io::Error,
    },
}

/// What helps against an error of process_madvise(2).
struct Help<'a>(&'a io::Error);

impl fmt::Display for Help<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.raw_os_error() == Some(libc::EACCES) {
            return f.write_str("run hugelift as the user of that process or as root (sudo)");
        }
        if self.0.raw_os_error().is_none() {
            return f.write_str("hugelift attach borrows another thread of it");
        }
        f.write_str("it takes CAP_SYS_NICE: ")?;
        if nix::unistd::geteuid().is_root() {
            return f.write_str("root has no such right in this container (docker run --cap-add SYS_NICE)");
        }
        f.write_str("run hugelift as root (sudo)")?;
        match std::env::current_exe() {
            Ok(path) => {
                write!(f, ", or give it the right: sudo setcap cap_sys_nice+ep {}", quoted(path.as_os_str()))
            }
            Err(_) => Ok(()),
        }
    }
}
