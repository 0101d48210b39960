// SPDX-License-Identifier: Apache-2.0
//! Reads for [`hugelift_core::census`] what says cheaply whether a process is worth more.
//!
//! | what | how often |
//! |---|---|
//! | its CPU time, by its clock | at each reading |
//! | `/proc/PID/stat` | if it has run since |
//! | device and inode of the executable | once for each program that a process executes |
//! | the headers of the executable | once for each file |
//! | code that is mapped, from `/proc/PID/maps` | after 1 s of CPU time, and each time that has grown to the fourfold |
//! | user and control group | when they are asked for, once for each process |

mod executable;
mod group;
mod mapped_code;
mod recent;
#[cfg(test)]
mod tests;

pub use executable::Executable;

use crate::proc::clock::{cpu_time, cpu_time_of_thread, ticks_per_second};
use crate::proc::procfs::{ProcError, Process};
use executable::Executables;
use hugelift_core::census::{Seen, Size};
use hugelift_core::proc_stat::{Identity, Stat};
use recent::Recent;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The most processes of which something is remembered.
const PROCESSES: usize = 32_768;
/// A process that has used less CPU time has hardly worked: a tenth of a CPU in the 300 ms after its exec.
const IDLE: Duration = Duration::from_millis(30);
/// The mappings are read again when the CPU time has grown to so many times what it was.
const GROWTH: u64 = 4;

/// What is known of a process.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its id, and when it was started.
    pub identity: Identity,
    /// Where the stack of its program began, which is another place after each exec; `None` if it may not be seen.
    pub stack: Option<u64>,
    /// The CPU time of all its threads, in clock ticks.
    pub cpu: u64,
    /// What it is.
    pub kind: Kind,
}

/// What a process is.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A thread of the kernel.
    Kernel,
    /// It has ended, and its parent does not know yet.
    Ended,
    /// It executes a program.
    Program(Program),
}

/// The program of a process.
#[derive(Clone, Default, Debug)]
pub struct Program {
    /// Its executable; `None` if it may not be seen, or the process executes another one just now.
    pub executable: Option<Arc<Executable>>,
    /// Bytes of code of files that it has mapped; `None` before it has used 1 s of CPU time, or if that may not be seen.
    pub mapped_code: Option<u64>,
}

/// Whose a process is.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Owner {
    /// Its real user, by which a program with the set-user-ID bit is its caller's.
    pub real_uid: Option<u32>,
    /// Its control group, from the root of the hierarchy: of version 2, or else of systemd or of memory in version 1.
    pub group: Option<PathBuf>,
}

impl Known {
    /// Returns the bytes of code that it has at least: of its executable, or of all that it maps if that is known.
    pub fn code_bytes(&self) -> u64 {
        let Kind::Program(program) = &self.kind else { return 0 };
        let of_executable = program.executable.as_ref().map_or(0, |executable| executable.code_bytes);
        of_executable.max(program.mapped_code.unwrap_or(0))
    }

    /// Returns what tells its executable from others ([`Executable::build_id`]).
    pub fn build_id(&self) -> Option<&str> {
        let Kind::Program(program) = &self.kind else { return None };
        program.executable.as_ref().map(|executable| executable.build_id.as_str())
    }

    /// Returns what the census wants to hear. `is_large` says whether it is a candidate.
    pub fn seen(&self, is_large: bool) -> Seen {
        let size = match self.kind {
            Kind::Kernel => Size::Kernel,
            Kind::Program(_) if is_large => Size::Large,
            Kind::Program(_) | Kind::Ended => Size::Small,
        };
        Seen { identity: self.identity, cpu: self.cpu, size }
    }
}

/// Reads processes, and remembers what costs time.
#[derive(Debug)]
pub struct Reader {
    processes: Recent<u32, Remembered>,
    executables: Executables,
    /// Clock ticks of a second.
    second: u64,
}

/// What is remembered of a process.
#[derive(Clone, Debug)]
struct Remembered {
    known: Known,
    /// Its CPU time in nanoseconds before it was read.
    clock: Option<Duration>,
    /// Where the stack of its program began, which is another place after each exec; `None` if it may not be seen.
    stack: Option<u64>,
    /// The CPU time from which on its mappings are read, in clock ticks.
    read_maps_at: u64,
    owner: Option<Arc<Owner>>,
}

impl Default for Reader {
    fn default() -> Reader {
        Reader::new()
    }
}

impl Reader {
    /// Makes a reader that has not read anything yet.
    pub fn new() -> Reader {
        Reader {
            processes: Recent::new(PROCESSES),
            executables: Executables::default(),
            second: ticks_per_second(),
        }
    }

    /// Reads a process. One that has slept since it was read costs a microsecond.
    ///
    /// # Errors
    /// There is no such process any more, or /proc may not be read.
    pub fn read(&mut self, pid: u32) -> Result<Known, ProcError> {
        let clock = cpu_time(pid).ok();
        if let Some(known) = self.unchanged(pid, clock) {
            return Ok(known.clone());
        }
        let stat = Process::new(pid).stat()?;
        let mut new = self.remembered(&stat).unwrap_or_else(|| Remembered::new(&stat, self.second));
        (new.clock, new.known.cpu) = (clock, stat.cpu);
        self.update(&mut new, &stat);
        let known = new.known.clone();
        self.processes.insert(pid, new);
        Ok(known)
    }

    /// Returns whether a process was never read, and has used less than 30 ms of CPU time. That costs a microsecond.
    pub fn is_new_and_idle(&mut self, pid: u32) -> bool {
        self.processes.get(&pid).is_none() && cpu_time(pid).is_ok_and(|used| used < IDLE)
    }

    /// Returns what is known of a process that has not run since it was read.
    pub fn asleep(&mut self, pid: u32) -> Option<&Known> {
        self.unchanged(pid, cpu_time(pid).ok())
    }

    /// Returns what is known of a process that has not run since, to the nanosecond. So it has not executed another program,
    /// and no other process has its id.
    fn unchanged(&mut self, pid: u32, clock: Option<Duration>) -> Option<&Known> {
        let known = self.processes.get(&pid)?;
        (clock.is_some() && known.clock == clock).then_some(&known.known)
    }

    /// Returns the owner of a process. That costs more than [`Reader::read`]. The owner is remembered if the process was read.
    pub fn owner(&mut self, identity: Identity) -> Arc<Owner> {
        let remembered = self.processes.get(&identity.0).filter(|other| other.known.identity == identity);
        if let Some(owner) = remembered.as_ref().and_then(|remembered| remembered.owner.clone()) {
            return owner;
        }
        let owner = Arc::new(owner_of(Process::new(identity.0)));
        if let Some(remembered) = remembered {
            remembered.owner = Some(owner.clone());
        }
        owner
    }

    /// Returns what is remembered of this process and of the program that it executes.
    fn remembered(&mut self, stat: &Stat) -> Option<Remembered> {
        let known = self.processes.get(&stat.pid).filter(|known| known.known.identity == stat.identity())?;
        if known.stack == stack(stat) {
            return Some(known.clone());
        }
        // Who it is may have changed with the program: a shell of root becomes a program of another user.
        Some(Remembered::new(stat, self.second))
    }

    /// Reads what is not known of it yet.
    fn update(&mut self, new: &mut Remembered, stat: &Stat) {
        if stat.is_kernel_thread {
            new.known.kind = Kind::Kernel;
        } else if stat.has_ended() {
            new.known.kind = Kind::Ended;
        } else if let Kind::Program(program) = &mut new.known.kind {
            let process = Process::new(stat.pid);
            // Without its executable it is asked for again.
            if new.stack.is_none() || program.executable.is_none() {
                program.executable = self.executables.of(process);
            }
            if stat.cpu >= new.read_maps_at {
                program.mapped_code = mapped_code::read(process).ok().or(program.mapped_code);
                new.read_maps_at = stat.cpu.saturating_mul(GROWTH);
            }
        }
    }
}

impl Remembered {
    fn new(stat: &Stat, read_maps_at: u64) -> Remembered {
        let kind = Kind::Program(Program::default());
        let known = Known { identity: stat.identity(), stack: stack(stat), cpu: stat.cpu, kind };
        Remembered { known, clock: None, stack: stack(stat), read_maps_at, owner: None }
    }
}

fn stack(stat: &Stat) -> Option<u64> {
    stat.addresses.map(|addresses| addresses.start_stack)
}

fn owner_of(process: Process) -> Owner {
    let real_uid = process.status().ok().and_then(|status| status.real_uid);
    let group = process.read("cgroup").ok().and_then(|text| group::path(&text));
    Owner { real_uid, group }
}

/// Lists the ids of all processes, and returns the CPU time that this took.
///
/// # Errors
/// /proc cannot be read.
pub fn list() -> io::Result<(Vec<u32>, Duration)> {
    let began = cpu_time_of_thread();
    let pids = Process::all()?;
    Ok((pids, cpu_time_of_thread().saturating_sub(began)))
}
