// SPDX-License-Identifier: Apache-2.0
//! A running process whose memory is changed (`target`). Each call borrows one of its threads for some microseconds
//! ([`Lent`]); nobody else is stopped, unless data is replaced that the threads write to (`data`). Bytes are
//! copied from outside.

mod came;
mod collapse;
mod data;
mod files;
mod find;
mod late;
mod ledger;
mod map_anew;
mod map_region;
mod note;
mod others;
mod page_size;
mod piece;
mod read_only;
mod region;
mod replace;
mod samples;
mod target;
mod thp;
mod urgent;
mod writers;
mod written;

use crate::arch;
use crate::calls::{Calls, refused};
use crate::caves::Caves;
use crate::deadline::Deadline;
use crate::filter::{Forbids, Refusal, Way};
use crate::lent::{Lent, NotLent};
use crate::pass::Passage;
use crate::planned::Planned;
use crate::ptrace::{Error, Tid};
use crate::threads::Members;
use crate::watch::Watch;
use hugelift_core::addr::{Addr, Range};
use hugelift_core::maps::Mapping;
use hugelift_core::scratch::Scratch;
use hugelift_core::seccomp::Filters;
use hugelift_core::target::Fault;
use hugelift_linux::faultpoint;
use hugelift_linux::machine::cgroup::Frozen;
use hugelift_linux::machine::frozen_group_of;
use hugelift_linux::machine::thp_switch::Allowance;
use hugelift_linux::proc::mapping::Mappings;
use hugelift_linux::proc::pidfd::pidfd_open;
use hugelift_linux::proc::procfs::Process;
use ledger::Ledger;
pub use ledger::Left;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;
use std::time::Duration;
use urgent::Urgent;
use written::Written;

/// The longest time until a thread must have stopped: one that waits for a disk does not stop before it has read from
/// it, and can be let go.
const STOP: Duration = Duration::from_secs(1);

/// The longest time until a borrowed thread must have made its calls and stopped again. It makes them as soon as it has
/// a CPU, whatever hugelift does: the machine may be busy, or its control group may have used up its CPU time.
const RETURN: Duration = Duration::from_secs(10);

/// The pause after all threads have been tried.
const PAUSE: Duration = Duration::from_millis(1);

/// Bytes that are replaced by one call, if their copy is in no larger pages: the kernel unmaps 512 small pages in some
/// tens of microseconds.
const PIECE: u64 = 2 << 20;

/// Whether data can be replaced that threads write to: code must lead each of them back from a mapping of its own, and
/// its registers must show what a stop did to its system call.
pub const LIFTS_DATA: bool = arch::SHOWS_CALLS;

/// The pages by which a mapping is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// Huge pages, as far as the file has them.
    Huge,
    /// Small pages, also where the file has huge ones.
    Small,
}

/// What the threads of a process lost to it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Stops {
    /// How often a thread was borrowed.
    pub count: u64,
    /// The longest time that one was stopped.
    pub longest: Duration,
    /// How often all were stopped.
    pub all: u64,
    /// The longest time that all were stopped, from the first to the last.
    pub longest_of_all: Duration,
}

impl Stops {
    /// Adds the stops of a later step.
    #[must_use]
    pub fn and(self, later: Stops) -> Stops {
        Stops {
            count: self.count + later.count,
            longest: self.longest.max(later.longest),
            all: self.all + later.all,
            longest_of_all: self.longest_of_all.max(later.longest_of_all),
        }
    }
}

/// A running process whose memory is changed. It must live and die in one thread, the tracer: at the
/// thread's end the kernel lets go of whatever is still traced.
pub struct Live {
    pid: i32,
    caves: Caves,
    /// `/proc/PID/mem`, opened before anything else: after execve(2) it reads nothing. It is locked, so that
    /// one hugelift at a time changes the process. Who may not trace the process cannot lock it.
    memory: Rc<Flock<File>>,
    /// The process itself; `None` before Linux 5.3.
    process: Option<OwnedFd>,
    /// The list of its mappings.
    mappings: Rc<Mappings>,
    /// The memory of ours in it, and where that is written down in the process.
    scratch: Scratch,
    ledger: Ledger,
    /// Its threads, opened before it is checked that the process is the one that was chosen.
    members: Members,
    planned: Planned,
    /// Memory that the program has written to, or writes to, and that may be replaced all the same.
    written: Written,
    /// Bytes that the next call's arguments point to.
    data: Vec<u8>,
    /// The thread that was lent last, which is tried first.
    last: Option<Tid>,
    watch: Watch,
    /// Threads that did not stop in time, and are still traced.
    late: Vec<Tid>,
    /// A borrowed thread did not come back.
    is_lost: bool,
    /// Threads with a seccomp filter are borrowed whatever it may answer.
    takes_filtered: bool,
    /// The filters of threads that were stopped, or why such a thread is not stopped again. A thread's id is
    /// given to another one only when all ids have been used (`kernel.pid_max`).
    filters: BTreeMap<Tid, Result<Rc<Filters>, Forbids>>,
    /// Calls that filters have forbidden.
    refusals: Vec<Refusal>,
    /// Files that may be mapped in it, by their index.
    files: Vec<File>,
    /// Made when the first file is mapped.
    passage: Option<Passage>,
    stops: Stops,
    /// How huge pages are allowed while copies are made, if the process has forbidden them to itself.
    thp: Option<Allowance>,
    /// Bytes that are replaced by one call: [`PIECE`], or a page of a copy, which must not be split.
    piece: u64,
    deadline: Deadline,
}

impl Live {
    /// Prepares a process with these mappings. Nothing of it is changed yet. Threads under a seccomp filter are
    /// borrowed if the filter can be read and allows it; with `takes_filtered` it is not asked. The calling
    /// thread gets SIGALRM; all others of this process must block it.
    ///
    /// # Errors
    /// Its memory cannot be opened, or it has no place for the code.
    pub fn new(pid: u32, mappings: &[Mapping], takes_filtered: bool) -> Result<Live, NotLent> {
        let os = |what| move |source| Error::Os { what, tid: pid.cast_signed(), source };
        let memory = File::options().read(true).write(true).open(Process::new(pid).path("mem"));
        let memory = memory.map_err(os("open the memory"))?;
        let memory =
            Flock::lock(memory, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
                Errno::EWOULDBLOCK => NotLent::Busy(pid.cast_signed()),
                errno => os("lock the memory")(errno.into()).into(),
            })?;
        let members = Members::of(pid.cast_signed())?;
        let deadline =
            Deadline::within(faultpoint::patience(STOP)).map_err(os("set a timer for the stop"))?;
        let pid = pid.cast_signed();
        let caves = Caves::find(pid, mappings).ok_or(NotLent::NoCave(pid))?;
        let planned = Planned::of(mappings);
        let memory = Rc::new(memory);
        let mappings = Rc::new(Mappings::open(Process::of(pid)).map_err(os("read its mappings"))?);
        let ledger = Ledger::new(pid, caves.ledger());
        Ok(Live {
            pid,
            caves,
            memory,
            process: pidfd_open(pid.cast_unsigned()).ok(),
            mappings,
            scratch: Scratch::default(),
            ledger,
            members,
            planned,
            written: Written::default(),
            data: Vec::new(),
            last: None,
            watch: Watch::default(),
            late: Vec::new(),
            is_lost: false,
            takes_filtered,
            filters: BTreeMap::new(),
            refusals: Vec::new(),
            files: Vec::new(),
            passage: None,
            stops: Stops::default(),
            thp: None,
            piece: PIECE,
            deadline,
        })
    }

    /// Adds a file that [`map_stored`](hugelift_core::target::Target::map_stored) and [`Live::map_anywhere`] can map, and returns its index.
    pub fn offer(&mut self, file: File) -> usize {
        self.files.push(file);
        self.files.len() - 1
    }

    /// Names memory that may be replaced although the program has written to it.
    pub fn may_be_written(&mut self, ranges: impl IntoIterator<Item = Range>) {
        self.written.ranges.extend(ranges);
    }

    /// Returns whether it may be.
    pub(super) fn is_written(&self, range: Range) -> bool {
        self.written.ranges.iter().any(|known| known.covers(range))
    }

    /// Returns whether the program may write to `range` now, so that a copy made now is not the last.
    pub(super) fn is_writable(&self, range: Range) -> bool {
        self.is_written(range) && self.planned.at(range).is_some_and(|m| m.prot.write)
    }

    /// Returns how often and how long threads were stopped so far.
    pub fn stops(&self) -> Stops {
        self.stops
    }

    /// Returns the calls that seccomp filters have forbidden so far.
    pub fn refusals(&self) -> &[Refusal] {
        &self.refusals
    }

    /// Returns whether the filters of the thread that was borrowed last allow the calls of this way.
    ///
    /// # Errors
    /// The first call that they forbid.
    pub fn allows(&self, way: Way) -> Result<(), Refusal> {
        match self.last.and_then(|tid| self.filters.get(&tid)) {
            Some(Ok(filters)) => way.check(filters),
            _ => Ok(()),
        }
    }

    /// Borrows a thread for `work`.
    ///
    /// # Errors
    /// No thread could be lent in time, or the process is gone.
    pub fn borrow<R>(&mut self, work: impl FnOnce(&mut Lent) -> Result<R, Error>) -> Result<R, NotLent> {
        let urgent = Urgent::new();
        let mut lent = self.find(None)?;
        let worked = work(&mut lent);
        self.give_back(lent, worked, urgent)
    }

    /// Gives a thread back.
    fn give_back<R>(&mut self, lent: Lent, worked: Result<R, Error>, urgent: Urgent) -> Result<R, NotLent> {
        self.refusals.extend(lent.refused().filter(|new| !self.refusals.contains(new)));
        let (tid, since) = (lent.tid(), lent.since());
        lent.lost_cave().into_iter().for_each(|cave| self.caves.lose(cave));
        let returned = lent.give_back();
        self.stops.count += 1;
        self.stops.longest = self.stops.longest.max(since.elapsed());
        drop(urgent);
        // A thread that is not back may still be in the cave, so no other thread may use it.
        match (worked, returned) {
            (Ok(value), Ok(wait)) => {
                tid.zip(wait).into_iter().for_each(|(tid, wait)| self.watch.began_again(tid, wait));
                Ok(value)
            }
            // It is back, and has not made the call.
            (Err(error @ Error::Raised { .. }), Ok(_)) => Err(error.into()),
            (Err(error), _) | (_, Err(error)) => {
                self.is_lost = true;
                let frozen = matches!(error, Error::Late(_)).then(|| self.frozen()).flatten();
                Err(frozen.map_or(NotLent::Lost(error), NotLent::LostFrozen))
            }
        }
    }

    /// Returns the control group that keeps the process from running.
    fn frozen(&self) -> Option<Frozen> {
        frozen_group_of(Process::of(self.pid))
    }

    /// Writes from outside to memory that the process may write to itself.
    fn write(&self, at: Addr, bytes: &[u8], range: Range) -> Result<(), Fault> {
        self.memory_write(at, bytes).map_err(|e| refused("write", range, &e))
    }
}

/// Returns the result of a call; where no thread could be lent just now, EBUSY.
fn fault_of(made: Result<i64, NotLent>) -> Result<i64, Fault> {
    match made {
        Err(why) if !why.is_final() => Ok(i64::from(-libc::EBUSY)),
        made => made.map_err(|why| Fault::Lost(why.to_string())),
    }
}

impl Calls for Live {
    fn pid(&self) -> i32 {
        self.pid
    }

    fn scratch_mut(&mut self) -> &mut Scratch {
        &mut self.scratch
    }

    fn hides_copies(&self) -> bool {
        true
    }

    fn unmap(&mut self, range: Range) -> Result<(), Fault> {
        self.note_without(range);
        let args = [range.start.0, range.len(), 0, 0, 0, 0];
        self.call("munmap", range, libc::SYS_munmap, args).map(drop)
    }

    fn syscall(&mut self, number: i64, args: [u64; 6]) -> Result<i64, Error> {
        let bytes = std::mem::take(&mut self.data);
        let made = self.borrow(|lent| {
            if !bytes.is_empty() {
                lent.write_data(&bytes)?;
            }
            lent.call(number, args)
        });
        match made {
            Ok(value) => Ok(value),
            // No thread was taken. A later call may succeed, so what was done so far can be undone.
            Err(why) if !why.is_final() => Ok(i64::from(-libc::EBUSY)),
            Err(NotLent::Trace(error)) => Err(error),
            Err(other) => {
                Err(Error::Os { what: "borrow a thread", tid: self.pid, source: io::Error::other(other) })
            }
        }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<Addr, Fault> {
        self.data = bytes.to_vec();
        Ok(self.caves.data())
    }

    /// By the open file: a process that has called execve(2) meanwhile is another program, which must not get these bytes.
    fn memory_write(&self, at: Addr, bytes: &[u8]) -> io::Result<()> {
        self.memory.write_all_at(bytes, at.0)
    }

    fn write_anyway(&self, at: Addr, bytes: &[u8]) -> io::Result<()> {
        self.memory_write(at, bytes)
    }
}
