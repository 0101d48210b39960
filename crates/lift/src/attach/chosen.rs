// SPDX-License-Identifier: Apache-2.0
//! A process that was chosen, and its name in messages.

use hugelift_core::printable::Untrusted;
use hugelift_linux::proc::procfs::Process;

/// A process in messages: the name of its program and its id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name(pub(super) Untrusted, u32);

impl Name {
    /// Reads the name of a process; the name is empty if there is no such process.
    pub fn of(pid: u32) -> Name {
        let comm = Process::new(pid).stat().map(|stat| stat.comm);
        Name(comm.unwrap_or_else(|_| Untrusted::from("")), pid)
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.as_os_str().is_empty() {
            true => write!(f, "process {}", self.1),
            false => write!(f, "{} (process {})", self.0, self.1),
        }
    }
}

/// A process that was chosen, and is still the same if it was started at that moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chosen {
    /// Its id.
    pub pid: u32,
    /// When it was started, in clock ticks since boot; `None` if that is not known, and not checked.
    pub start: Option<u64>,
}

impl Chosen {
    /// Chooses the process that has this id now.
    pub fn now(pid: u32) -> Chosen {
        Chosen { pid, start: Process::new(pid).stat().ok().map(|stat| stat.start) }
    }

    /// Returns how the process is reached: its first thread may have ended, and then the kernel shows its memory by the
    /// others alone.
    ///
    /// # Errors
    /// It has ended since it was chosen.
    pub(super) fn reached(self) -> Result<Chosen, String> {
        let pid = Process::new(self.pid).with_memory().pid();
        if pid == self.pid {
            return Ok(self);
        }
        self.check()?;
        Ok(Chosen::now(pid))
    }

    /// Checks that no other process has the id by now.
    ///
    /// # Errors
    /// One line that says so.
    pub fn check(self) -> Result<(), String> {
        match self.start == Chosen::now(self.pid).start || self.start.is_none() {
            true => Ok(()),
            false => Err("it has ended, and another process may have its id".into()),
        }
    }
}
