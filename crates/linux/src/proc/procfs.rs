// SPDX-License-Identifier: Apache-2.0
//! `/proc/PID`: what the kernel shows of a process, and its memory.
//!
//! The helper reads these files between exec and the program's first instruction, so each file is read
//! whole, with one open and as few reads as the kernel allows.

pub use crate::proc::status::Status;

use crate::io::open;
use crate::io::read::read_whole;
use crate::proc::status::parse_status;
use crate::proc::unchanged::parse_unchanged;
use hugelift_core::addr::{Addr, Range};
use hugelift_core::maps::{FileId, Mapping, MapsError, parse_maps};
use hugelift_core::printable::Untrusted;
use hugelift_core::proc_stat::{Identity, Stat, parse_last_cpu, parse_stat};
use hugelift_core::smaps::{Usage, parse_smaps};
use nix::errno::Errno;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Up to this many times the threads are listed again, if the list has fewer than there are.
const LISTINGS: u32 = 8;

/// A process by its `/proc` entry: the calling one, or another one by its id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process(Option<u32>);

/// Says what helps where the kernel refuses to show a process (ptrace(2), "Ptrace access mode checking").
pub fn help_with_access() -> &'static str {
    match nix::unistd::geteuid().is_root() {
        true => {
            "root may not read a process that has capabilities which hugelift lacks (compare CapPrm in its status and \
             in /proc/self/status), or that a security module protects"
        }
        false => "run hugelift as that user or as root (sudo)",
    }
}

/// The error for a program that is on a file system which shows nothing of it, as FUSE without `allow_other` does to root.
#[derive(Debug, thiserror::Error)]
#[error(
    "it is on a file system that lets only its own user in (FUSE without allow_other); run hugelift as that user"
)]
struct NotLetIn;

/// Says what helps where the executable of a process could not be found out ([`Process::executable`]).
pub fn help_with_executable(error: &io::Error) -> Option<&'static str> {
    let says_so = error.get_ref().is_some_and(|inner| inner.is::<NotLetIn>());
    (!says_so).then(help_with_access)
}

/// Why something of a process could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProcError {
    /// There is no proc(5) file system.
    #[error("cannot read {path}: /proc is not mounted (mount -t proc proc /proc)")]
    NotMounted {
        /// The file that was to be read.
        path: Untrusted,
    },
    /// There is no such process, or it has ended.
    #[error("there is no process {pid} (any more): no {path}")]
    Vanished {
        /// Its id.
        pid: u32,
        /// The file that was to be read.
        path: Untrusted,
    },
    /// The kernel refuses it.
    #[error("cannot read {path}: {errno}; {}", help_with_access())]
    Denied {
        /// The file that was to be read.
        path: Untrusted,
        /// `EACCES` or `EPERM`.
        errno: Errno,
    },
    /// Any other failure of open(2) or read(2).
    #[error("cannot read {path}: {errno}")]
    Io {
        /// The file that was to be read.
        path: Untrusted,
        /// Why.
        errno: Errno,
    },
    /// The contents are not as proc(5) describes, or the process changed its mappings at each attempt to
    /// read them.
    #[error("cannot understand {path}: {source}")]
    Format {
        /// The file that was read.
        path: Untrusted,
        /// The line.
        source: MapsError,
    },
    /// The one line of `/proc/PID/stat` is not as proc_pid_stat(5) describes.
    #[error("cannot understand {path}: '{text}'")]
    Stat {
        /// The file that was read.
        path: Untrusted,
        /// The line.
        text: Untrusted,
    },
    /// A kernel thread, or a process that has ended and was not waited for.
    #[error("process {pid} has no memory of its own: a kernel thread or a zombie")]
    NoMemory {
        /// Its id.
        pid: u32,
    },
    /// Its memory could not be read.
    #[error("cannot read {bytes} bytes at {addr} of process {pid}: {errno}")]
    Memory {
        /// Its id.
        pid: u32,
        /// Where.
        addr: Addr,
        /// How many bytes.
        bytes: usize,
        /// Why.
        errno: Errno,
    },
}

/// The values that the kernel passed to the program at exec (getauxval(3)); 0 for those that it did not pass.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Auxv {
    /// `AT_ENTRY`: entry point of the program, not of the loader.
    pub entry: u64,
    /// `AT_BASE`: where the loader is mapped; 0 for a static program.
    pub base: u64,
    /// `AT_PHDR`: where the program headers are.
    pub phdr: u64,
    /// `AT_SECURE`: started set-uid, set-gid or with file capabilities.
    pub secure: u64,
    /// `AT_HWCAP2`: features of the CPU.
    pub hwcap2: u64,
}

impl Process {
    /// The calling process.
    pub const OWN: Process = Process(None);

    /// Names the process `pid`.
    pub fn new(pid: u32) -> Process {
        Process(Some(pid))
    }

    /// Names the process `pid`, as system calls do. Where /proc belongs to another PID namespace, `/proc/PID` of the
    /// calling process is another process or none, and `/proc/self` alone is right.
    pub fn of(pid: i32) -> Process {
        let pid = pid.cast_unsigned();
        if pid == std::process::id() { Process::OWN } else { Process::new(pid) }
    }

    /// Returns the ids of all processes.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn all() -> io::Result<Vec<u32>> {
        let entries = std::fs::read_dir("/proc")?;
        Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
    }

    /// Returns device and inode of the file that it runs.
    ///
    /// # Errors
    /// open(2), stat(2): it has ended, or is another user's, or only that user may see the file.
    pub fn executable(self) -> io::Result<(u64, u64)> {
        // The file system of another user's program may not answer.
        let opened = open::path_only(&self.path("exe")).or_else(|error| match self.with_memory() {
            same if same == self => Err(error),
            other => open::path_only(&other.path("exe")),
        });
        // The link of one that ends meanwhile is refused, not absent.
        let opened = opened.map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied if self.has_no_memory() => io::ErrorKind::NotFound.into(),
            _ => error,
        });
        let seen = open::id_without_waiting(&opened?).map_err(|error| match error.kind() {
            // The kernel itself lets everybody see an open file.
            kind @ io::ErrorKind::PermissionDenied => io::Error::new(kind, NotLetIn),
            _ => error,
        });
        let FileId { major, minor, inode } = seen?;
        Ok((libc::makedev(major, minor), inode))
    }

    /// Returns the process by a thread through which the kernel shows its memory: any, if the first one has ended and
    /// others run on. `/proc/TID` then shows the process, although no list has it.
    #[must_use]
    pub fn with_memory(self) -> Process {
        let has_ended = |stat: Result<Stat, ProcError>| stat.is_ok_and(|stat| stat.thread_has_ended());
        if !has_ended(self.stat()) {
            return self;
        }
        let lives = |tid: &i32| !has_ended(self.stat_of_thread(*tid));
        self.threads().into_iter().find(lives).map_or(self, Process::of)
    }

    /// Returns its id.
    pub fn pid(self) -> u32 {
        self.0.unwrap_or_else(std::process::id)
    }

    /// Returns `/proc/PID/name`.
    pub fn path(self, name: &str) -> PathBuf {
        match self.0 {
            Some(pid) => PathBuf::from(format!("/proc/{pid}/{name}")),
            None => PathBuf::from(format!("/proc/self/{name}")),
        }
    }

    /// Returns the link to the file of exactly the mapping at `range` (proc_pid_map_files(5)). As a rule only root may
    /// follow it.
    pub fn map_file(self, range: Range) -> PathBuf {
        self.path(&format!("map_files/{:x}-{:x}", range.start.0, range.end.0))
    }

    /// Reads `/proc/PID/name`.
    ///
    /// # Errors
    /// [`ProcError`], with the path.
    pub fn read(self, name: &str) -> Result<Vec<u8>, ProcError> {
        let path = self.path(name);
        read_whole(&path).map_err(|e| self.explain(path, &e))
    }

    /// Reads its mappings, in the order of their addresses.
    ///
    /// # Errors
    /// [`ProcError`]; a process without any is [`ProcError::NoMemory`].
    pub fn maps(self) -> Result<Vec<Mapping>, ProcError> {
        self.parse("maps", parse_maps)
    }

    /// Reads its mappings with what is behind them, in the order of their addresses. The kernel walks all
    /// page tables for this: milliseconds for a large process.
    ///
    /// # Errors
    /// See [`Process::maps`].
    pub fn smaps(self) -> Result<Vec<Usage>, ProcError> {
        self.parse("smaps", parse_smaps)
    }

    /// Marks the mappings that have `PROT_BTI`, which smaps shows and maps does not. smaps is slow, so it is
    /// read only where the CPU has this protection.
    ///
    /// # Errors
    /// See [`Process::maps`].
    pub fn add_bti(self, mappings: &mut [Mapping]) -> Result<(), ProcError> {
        if cfg!(target_arch = "aarch64") && self.auxv().is_ok_and(|a| super::bti::is_honoured(a.hwcap2)) {
            for usage in self.smaps()?.iter().filter(|u| u.mapping.prot.bti) {
                if let Ok(i) = mappings.binary_search_by_key(&usage.mapping.range, |m| m.range) {
                    mappings[i].prot.bti = true;
                }
            }
        }
        Ok(())
    }

    /// Returns the lowest file descriptor that is not in use: open(2) would return it.
    ///
    /// # Errors
    /// `/proc/PID/fd` cannot be read.
    pub fn next_descriptor(self) -> io::Result<u64> {
        let mut used = BTreeSet::new();
        for entry in std::fs::read_dir(self.path("fd"))? {
            used.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u64>().ok()));
        }
        Ok((0..).find(|fd| !used.contains(fd)).unwrap_or_default())
    }

    /// Returns its threads; none if it has ended.
    pub fn threads(self) -> Vec<i32> {
        let mut all = BTreeSet::new();
        for _ in 0..LISTINGS {
            let entries = std::fs::read_dir(self.path("task")).into_iter().flatten();
            let before = all.len();
            let listed = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
            let count = listed.map(|tid| all.insert(tid)).count();
            // While threads end, a listing may leave out some that live (fs/proc/base.c, `next_tid`).
            if self.count_threads().is_none_or(|there| there <= count) {
                break;
            }
            tracing::trace!(before, count, "threads were left out of a list");
        }
        all.into_iter().collect()
    }

    /// Returns how many threads it has, by the links of their directory; `None` if it has ended.
    pub fn count_threads(self) -> Option<usize> {
        let links = std::fs::metadata(self.path("task")).ok()?.nlink();
        // Two are those of any directory.
        usize::try_from(links.checked_sub(2)?).ok()
    }

    /// Reads its auxiliary vector.
    ///
    /// # Errors
    /// See [`Process::read`].
    pub fn auxv(self) -> Result<Auxv, ProcError> {
        Ok(parse_auxv(&self.read("auxv")?))
    }

    /// Reads its `/proc/PID/stat`.
    ///
    /// # Errors
    /// See [`Process::read`]; [`ProcError::Stat`] if the line cannot be understood.
    pub fn stat(self) -> Result<Stat, ProcError> {
        self.stat_at("stat")
    }

    /// Reads the same of its thread `tid`.
    ///
    /// # Errors
    /// See [`Process::stat`].
    pub fn stat_of_thread(self, tid: i32) -> Result<Stat, ProcError> {
        self.stat_at(&format!("task/{tid}/stat"))
    }

    /// Returns the CPU on which its thread `tid` runs or ran last; `None` if it has ended.
    pub fn last_cpu_of_thread(self, tid: i32) -> Option<u32> {
        parse_last_cpu(&self.read(&format!("task/{tid}/stat")).ok()?)
    }

    fn stat_at(self, name: &str) -> Result<Stat, ProcError> {
        let line = self.read(name)?;
        let text = || Untrusted::from(line.trim_ascii());
        parse_stat(&line).ok_or_else(|| ProcError::Stat { path: self.path(name).into(), text: text() })
    }

    /// Reads its status.
    ///
    /// # Errors
    /// See [`Process::read`].
    pub fn status(self) -> Result<Status, ProcError> {
        Ok(parse_status(&self.read("status")?))
    }

    /// Reads the status of its thread `tid`.
    ///
    /// # Errors
    /// See [`Process::read`].
    pub fn status_of_thread(self, tid: i32) -> Result<Status, ProcError> {
        Ok(parse_status(&self.read(&format!("task/{tid}/status"))?))
    }

    fn parse<T>(
        self,
        name: &str,
        parse: impl Fn(&[u8]) -> Result<Vec<T>, MapsError>,
    ) -> Result<Vec<T>, ProcError> {
        let read = || -> Result<Vec<T>, ProcError> {
            parse_unchanged(&self.path(name), &parse)
                .map_err(|error| self.explain(self.path(name), &error))?
                .map_err(|source| ProcError::Format { path: self.path(name).into(), source })
        };
        let mut all = read()?;
        if all.is_empty() {
            // The file was opened before an execve(2), which has replaced the memory that it shows.
            all = read()?;
        }
        if all.is_empty() {
            return Err(ProcError::NoMemory { pid: self.pid() });
        }
        Ok(all)
    }

    /// Checks that its memory can be read. The list of its mappings may be readable where its memory is not, as for root
    /// without CAP_SYS_PTRACE on Linux 6.18.
    ///
    /// # Errors
    /// See [`ProcError`].
    pub fn check_memory(self) -> Result<(), ProcError> {
        let path = self.path("mem");
        File::open(&path).map(drop).map_err(|error| self.explain(path, &error))
    }

    /// Returns whether it has ended, or is about to, or is a thread of the kernel. Without memory its files are root's: the kernel
    /// refuses them to the user of the process, who may not see that it ends (fs/proc/base.c, `task_dump_owner`).
    pub fn has_no_memory(self) -> bool {
        match std::fs::read(self.path("stat")) {
            Err(error) => matches!(errno(&error), Errno::ENOENT | Errno::ESRCH),
            Ok(line) => parse_stat(&line)
                .is_some_and(|stat| stat.has_ended() || stat.is_exiting() || stat.is_kernel_thread),
        }
    }

    fn explain(self, path: PathBuf, error: &io::Error) -> ProcError {
        match errno(error) {
            Errno::EACCES | Errno::EPERM if self.has_no_memory() => ProcError::NoMemory { pid: self.pid() },
            Errno::ENOENT if !Path::new("/proc/self").exists() => ProcError::NotMounted { path: path.into() },
            Errno::ENOENT | Errno::ESRCH => ProcError::Vanished { pid: self.pid(), path: path.into() },
            errno @ (Errno::EACCES | Errno::EPERM) => ProcError::Denied { path: path.into(), errno },
            errno => ProcError::Io { path: path.into(), errno },
        }
    }
}

/// Returns whether a process lives, and no other process has its id by now.
pub fn is_alive(identity: Identity) -> bool {
    Process::new(identity.0).stat().is_ok_and(|stat| stat.is_alive(identity))
}

/// Returns whether a process lives and does not end at this moment ([`Stat::is_whole`]).
pub fn is_whole(identity: Identity) -> bool {
    Process::new(identity.0).stat().is_ok_and(|stat| stat.is_whole(identity))
}

pub(super) fn errno(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Parses `/proc/PID/auxv`: pairs of words, key and value, in the byte order of this machine.
fn parse_auxv(bytes: &[u8]) -> Auxv {
    let mut auxv = Auxv::default();
    for pair in bytes.chunks_exact(16) {
        let word = |at: usize| pair[at..at + 8].iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
        let slot = match word(0) {
            libc::AT_NULL => break,
            libc::AT_ENTRY => &mut auxv.entry,
            libc::AT_BASE => &mut auxv.base,
            libc::AT_PHDR => &mut auxv.phdr,
            libc::AT_SECURE => &mut auxv.secure,
            libc::AT_HWCAP2 => &mut auxv.hwcap2,
            _ => continue,
        };
        *slot = word(8);
    }
    auxv
}

#[cfg(test)]
mod tests;
