// SPDX-License-Identifier: Apache-2.0
//! The machine as its thread sees it: events of the kernel and readings of /proc on one side, the processes that the
//! policy takes on the other.

use super::Machine;
use super::surroundings::Surroundings;
use super::taken::Taken;
use crate::journal::{Level, log};
use hugelift_core::census::{Census, Settings};
use hugelift_core::maps::FileId;
use hugelift_core::proc_events::{Event, leave_out_short_lived};
use hugelift_core::proc_stat::Identity;
use hugelift_core::service::matching::Facts;
use hugelift_core::service::policy::Policy;
use hugelift_core::service::verify::Verdict;
use hugelift_linux::proc::census::{Kind, Known, Program, Reader, list};
use hugelift_linux::proc::clock::of_ticks;
use hugelift_linux::proc::connector::Connector;
use hugelift_linux::proc::procfs::ProcError;
use nix::poll::{PollFd, PollFlags};
use nix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

/// What is known of the machine.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// When that was; `None` at the start.
    pub at: Option<SystemTime>,
    /// The processes whose files are to be kept in the page cache.
    pub cached: BTreeSet<Identity>,
    /// The processes that the policy takes.
    pub taken: Vec<Taken>,
    /// How many lifts were made.
    pub lifts: u64,
    /// How often a process could not be lifted.
    pub refusals: u64,
    /// Processes that were restored.
    pub restores: u64,
    /// How many are to be restored, and are not yet.
    pub to_restore: usize,
    /// How many processes are not lifted now, by the reason.
    pub refused: BTreeMap<String, u64>,
    /// Bytes of copies.
    pub copies: u64,
    /// Bytes that copies may take.
    pub memory: u64,
    /// How many processes there are.
    pub processes: usize,
    /// How often /proc was listed, and the CPU time that this took.
    pub scans: (u64, Duration),
    /// The processes of hugelift that lift, and that make experiments.
    pub lifters: Vec<u32>,
    /// There is to be a ledger.
    pub has_ledger: bool,
    /// Why it could not be written last time.
    pub ledger_error: Option<String>,
    /// How many programs have this verdict.
    pub verdicts: BTreeMap<Verdict, u64>,
}

impl Seen {
    /// Returns whether the ledger could be written last time; `None` without a ledger.
    pub fn ledger_is_written(&self) -> Option<bool> {
        self.has_ledger.then_some(self.ledger_error.is_none())
    }
}

/// Whoever may label a pod changes the list as often as he likes, and reading all processes anew takes CPU time: it is done
/// this rarely.
const PODS_PAUSE: Duration = Duration::from_secs(60);

/// The machine that is watched.
#[derive(Debug)]
pub struct Watched {
    began: Instant,
    connector: Option<Connector>,
    settings: Settings,
    census: Census,
    reader: Reader,
    surroundings: Surroundings,
    pods: Option<PathBuf>,
    /// The list of pods says something that the processes were not read with.
    pods_differ: bool,
    /// When all were read anew for that last.
    began_anew: Option<Instant>,
    /// The processes that the policy takes.
    pub machine: Machine,
    /// When the census is asked again.
    wake_at: Instant,
    /// The next event ends the wait.
    listens: bool,
    /// How often /proc was listed, and the CPU time that this took.
    scans: (u64, Duration),
}

impl Watched {
    /// Begins to watch. `memory` is the machine's memory in bytes. `ledger` is the path of the ledger, and `pods` the path of
    /// the file of pods.
    pub fn start(policy: Policy, memory: u64, ledger: Option<PathBuf>, pods: Option<PathBuf>) -> Watched {
        let connector = Connector::open();
        if let Err(why) = &connector {
            log(
                Level::Info,
                &format!("the kernel tells no events of processes ({why}); /proc is listed instead"),
            );
        }
        let connector = connector.ok();
        let settings = settings(&policy, memory);
        Watched {
            settings,
            began: Instant::now(),
            census: Census::new(settings, connector.is_some()),
            connector,
            reader: Reader::new(),
            surroundings: Surroundings::read(pods.clone()),
            pods,
            pods_differ: false,
            began_anew: None,
            machine: Machine::new(policy, memory, ledger),
            wake_at: Instant::now(),
            listens: false,
            scans: (0, Duration::ZERO),
        }
    }

    /// Changes the policy.
    pub fn obey(&mut self, policy: Policy, memory: u64) {
        // All are read anew, each as if it had just started.
        self.settings = settings(&policy, memory);
        self.census = Census::new(self.settings, self.connector.is_some());
        (self.surroundings, self.reader) = (Surroundings::read(self.pods.clone()), Reader::new());
        self.machine.obey(policy, memory);
        self.wake_at = Instant::now();
    }

    /// Takes what has happened, and reads what is due. That is a bounded amount of work.
    pub fn turn(&mut self) {
        self.pods_differ |= self.surroundings.containers.refresh();
        let may_begin = self.began_anew.is_none_or(|at| at.elapsed() >= PODS_PAUSE);
        if self.pods_differ && may_begin {
            // All are read anew, each as if it had just started.
            (self.pods_differ, self.began_anew) = (false, Some(Instant::now()));
            self.census = Census::new(self.settings, self.connector.is_some());
            self.wake_at = Instant::now();
        }
        self.take_events();
        let again = self.machine.later.due();
        again.into_iter().for_each(|pid| self.read_whole(pid));
        loop {
            let now = self.began.elapsed();
            let work = self.census.next(now);
            if work.scan {
                self.scan();
                continue;
            }
            work.read.iter().for_each(|pid| self.read(*pid));
            self.wake_at = self.began + work.wake_at;
            self.listens = work.listen;
            break;
        }
        self.machine.turn();
    }

    fn take_events(&mut self) {
        let Some(connector) = &mut self.connector else { return };
        let mut events = Vec::new();
        if let Err(why) = connector.read(&mut events) {
            log(
                Level::Warning,
                &format!("the kernel tells no more events of processes ({why}); /proc is listed instead"),
            );
            self.connector = None;
            self.census.without_events();
        }
        leave_out_short_lived(&mut events);
        let now = self.began.elapsed();
        for event in events {
            if let Event::Ended(pid) = event
                && let Some(process) = self.census.identity(pid)
            {
                self.machine.ended(process);
            }
            self.census.event(now, event);
        }
    }

    fn scan(&mut self) {
        match list() {
            Ok((pids, cpu)) => {
                self.scans = (self.scans.0 + 1, self.scans.1 + cpu);
                self.census.scanned(self.began.elapsed(), &pids, cpu);
                let gone = |census: &Census, (pid, start): Identity| {
                    census.identity(pid).is_some_and(|now| now.1 != start) || !census.knows(pid)
                };
                let census = &self.census;
                let ended: Vec<Identity> = self
                    .machine
                    .taken()
                    .map(|taken| taken.process)
                    .filter(|one| gone(census, *one))
                    .collect();
                ended.into_iter().for_each(|process| self.machine.ended(process));
            }
            Err(why) => log(Level::Warning, &format!("cannot list /proc: {why}")),
        }
    }

    fn read(&mut self, pid: u32) {
        if self.reader.is_new_and_idle(pid) && self.census.put_off_idle(self.began.elapsed(), pid) {
            return;
        }
        // What has not run since the policy decided on it is what it was. Of thousands of processes nearly all sleep.
        if let Some(known) = self.reader.asleep(pid)
            && self.census.identity(pid) == Some(known.identity)
        {
            let seen = known.seen(self.machine.takes(known.identity));
            return self.census.seen(self.began.elapsed(), &seen);
        }
        self.read_whole(pid);
    }

    fn read_whole(&mut self, pid: u32) {
        let known = match self.reader.read(pid) {
            Ok(known) => known,
            Err(ProcError::Vanished { .. }) => {
                if let Some(process) = self.census.identity(pid) {
                    self.machine.ended(process);
                }
                return self.census.gone(pid);
            }
            // It is read again in its turn.
            Err(why) => return tracing::debug!(pid, %why, "a process"),
        };
        let is_taken = self.see(&known);
        self.census.seen(self.began.elapsed(), &known.seen(is_taken));
    }

    /// Lets the policy decide on a process. Returns whether it takes it.
    fn see(&mut self, known: &Known) -> bool {
        let (machine, build_id) = (&mut self.machine, known.build_id().unwrap_or_default());
        let see = |facts: &Facts| machine.see(known.identity, known.stack, build_id, facts);
        facts(&mut self.reader, &mut self.surroundings, known, see).unwrap_or(false)
    }

    /// Returns the descriptors to wait for.
    pub fn fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let connector = self.connector.as_ref().filter(|_| self.listens);
        let connector = connector.map(|connector| PollFd::new(connector.as_fd(), PollFlags::POLLIN));
        connector.into_iter().chain(self.machine.fds())
    }

    /// Returns when there is something to do without an event.
    pub fn next(&self) -> Instant {
        self.machine.next().map_or(self.wake_at, |next| next.min(self.wake_at))
    }

    /// Returns what is known, for others.
    pub fn seen(&self) -> Seen {
        Seen {
            at: Some(SystemTime::now()),
            cached: self.machine.cached(),
            taken: self.machine.taken().cloned().collect(),
            lifts: self.machine.lifts,
            refusals: self.machine.refusals,
            restores: self.machine.restored(),
            to_restore: self.machine.to_restore(),
            refused: self.machine.refused(),
            copies: self.machine.copies(),
            memory: self.machine.memory(),
            processes: self.census.known(),
            scans: self.scans,
            lifters: self.machine.helpers(),
            has_ledger: self.machine.records.has_ledger(),
            ledger_error: self.machine.records.failed().map(String::from),
            verdicts: self.machine.verify.counts(),
        }
    }

    /// Ends the lifters. What they have lifted stays so.
    pub fn end(&mut self) {
        self.machine.end();
    }
}

/// Calls `with` with what the policy is to know of a process; `None` if it is a thread of the kernel, or may not be read.
pub fn facts<T>(
    reader: &mut Reader,
    surroundings: &mut Surroundings,
    known: &Known,
    with: impl FnOnce(&Facts) -> T,
) -> Option<T> {
    let Kind::Program(program) = &known.kind else { return None };
    let executable = program.executable.as_ref()?;
    // The daemon, its lifters, and launchers that have not become their program yet.
    if executable.file == own_file() {
        return None;
    }
    let owner = reader.owner(known.identity);
    let uid = owner.real_uid?;
    let cgroup = owner.group.as_deref().and_then(Path::to_str).unwrap_or_default();
    let container = surroundings.containers.of(cgroup);
    Some(with(&Facts {
        program: &executable.path,
        uid,
        user: surroundings.users.name(uid),
        cgroup,
        container: container.as_ref(),
        code: known.code_bytes(),
        age: age(known.identity.1),
    }))
}

/// Returns device and inode of this executable.
fn own_file() -> FileId {
    static FILE: OnceLock<FileId> = OnceLock::new();
    *FILE.get_or_init(|| match Reader::new().read(std::process::id()).map(|known| known.kind) {
        Ok(Kind::Program(Program { executable: Some(executable), .. })) => executable.file,
        _ => FileId::default(),
    })
}

/// Returns how often processes are read: what the policy allows for this.
fn settings(policy: &Policy, memory: u64) -> Settings {
    // Half is for the listings; the readings are bounded by their number.
    let share = policy.limits(memory).cpu.of_time(Duration::from_secs(1)).as_secs_f64() / 2.0;
    Settings { scan_share: share, ..Settings::default() }
}

/// Returns the time since a start, which is in clock ticks since boot.
fn age(start: u64) -> Duration {
    let started = of_ticks(start);
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
    now.saturating_sub(started)
}
