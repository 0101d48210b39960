// SPDX-License-Identifier: Apache-2.0
//! The processes of a run: which they are, and the CPU time that they use.
//!
//! ```text
//!   program ---- fork ---- same program      one account: both run the same file
//!      '-------- exec ---- another program   an account of its own (--children lift)
//! ```
//!
//! New processes are found by their parents in `/proc`, and nobody is traced for that. A process whose parent
//! ends before it is found is recognized by a variable that the program's environment has
//! ([`MARK`]), if children are to be lifted.

use hugelift_core::proc_stat::{Addresses, Stat};
use hugelift_core::worth::{Account, LOOK};
use hugelift_os::proc::procfs::{Process, read_whole};
use nix::unistd::{SysconfVar, sysconf};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The variable that marks the environment of a run whose children are to be lifted: `PID.START` of its
/// program.
pub(crate) const MARK: &str = "HUGELIFT_RUN";

/// The file that a process runs: its device and inode.
type Image = (u64, u64);

/// The processes of a run.
#[derive(Debug)]
pub(crate) struct Family {
    root: u32,
    /// The environment's entry that marks the run; `None` if only the program itself is lifted.
    mark: Option<Vec<u8>>,
    members: BTreeMap<u32, Member>,
    /// The CPU time of all processes that have run a file, and of the lifts of these.
    accounts: HashMap<Image, Account>,
    /// Processes that do not belong to the run.
    strangers: BTreeSet<u32>,
    /// The process that was made last when the list of processes was read.
    newest: Option<u32>,
}

/// A process of a run.
#[derive(Debug)]
struct Member {
    /// When it was started, in clock ticks since boot: distinguishes it from a later one with its id.
    start: u64,
    /// Where the kernel has put its program: changed by execve(2).
    addresses: Option<Addresses>,
    image: Image,
    /// Its CPU time so far, and what of it was before it ran this image.
    cpu: Duration,
    cpu_before: Duration,
    /// CPU time of its lifts.
    spent: Duration,
    is_parent: bool,
    state: State,
    /// How often it could not be lifted.
    refusals: u32,
}

/// What is known about the lift of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Nobody has looked at it.
    New,
    /// A lift is worth it when its account affords this much.
    Wants(Duration),
    /// All that can be lifted is lifted. It had this much code mapped, in bytes.
    Lifted { code: u64 },
    /// It could not be lifted, and is tried again at this time.
    Refused { again: Instant },
}

/// How long a process that was refused is left alone the first time; each later time is twice as long.
const AGAIN: Duration = Duration::from_secs(2);
/// The longest such time.
const AGAIN_AT_MOST: Duration = Duration::from_secs(3600);

impl Family {
    /// Returns the family of the program `root`, which has just been started.
    pub(crate) fn new(root: u32, lifts_children: bool) -> Family {
        let mut family = Family {
            root,
            mark: lifts_children.then(|| mark(root)).flatten().map(|mark| format!("{MARK}={mark}").into()),
            members: BTreeMap::new(),
            accounts: HashMap::new(),
            strangers: BTreeSet::new(),
            newest: None,
        };
        if let Ok(stat) = Process::new(root).stat() {
            family.add(root, &stat);
        }
        family
    }

    /// Reads the CPU times, and finds new processes. Returns the CPU time that all have used since the last
    /// time.
    pub(crate) fn refresh(&mut self) -> Duration {
        let mut used = Duration::ZERO;
        for pid in self.members.keys().copied().collect::<Vec<_>>() {
            match Process::new(pid).stat() {
                Ok(stat)
                    if !stat.has_ended() && Some(stat.start) == self.members.get(&pid).map(|m| m.start) =>
                {
                    used += self.update(pid, &stat);
                }
                _ => _ = self.members.remove(&pid),
            }
        }
        let newest = last_pid();
        if newest.is_none() || newest != self.newest {
            self.find_new();
            self.newest = newest;
        }
        used
    }

    /// Updates a member; returns the CPU time that it has used since the last time.
    fn update(&mut self, pid: u32, stat: &Stat) -> Duration {
        let Some(member) = self.members.get_mut(&pid) else { return Duration::ZERO };
        let cpu = ticks(stat.cpu);
        let used = cpu.saturating_sub(member.cpu);
        member.cpu = cpu;
        if member.addresses != stat.addresses {
            // It has become another program by execve(2).
            member.addresses = stat.addresses;
            match image(pid) {
                Some(image) if image != member.image => {
                    (member.image, member.cpu_before) = (image, cpu);
                    (member.spent, member.state) = (Duration::ZERO, State::New);
                }
                _ => member.state = State::New,
            }
            let is_other = self.mark.is_none() && pid != self.root;
            if is_other
                && self.members.get(&self.root).is_none_or(|root| self.members[&pid].image != root.image)
            {
                self.members.remove(&pid);
                self.strangers.insert(pid);
                return used;
            }
        }
        let Some(member) = self.members.get_mut(&pid) else { return used };
        match member.state {
            // It has opened an object.
            State::Lifted { code } if !used.is_zero() && code_of(pid) != code => member.state = State::New,
            State::Refused { again, .. } if again <= Instant::now() => member.state = State::New,
            _ => {}
        }
        let image = member.image;
        self.accounts.entry(image).or_default().used += used;
        used
    }

    /// Adds the new processes whose parent is a member, or whose environment has the mark.
    fn find_new(&mut self) {
        let all: BTreeSet<u32> = pids().collect();
        self.strangers.retain(|pid| all.contains(pid));
        // A parent is older than its children, but ids may start again at a low number: two turns.
        for _ in 0..2 {
            for &pid in &all {
                if self.members.contains_key(&pid) || self.strangers.contains(&pid) {
                    continue;
                }
                let Ok(stat) = Process::new(pid).stat() else { continue };
                if stat.has_ended() {
                    continue;
                }
                if self.members.contains_key(&stat.parent) || self.has_mark(pid) {
                    self.add(pid, &stat);
                }
            }
        }
        self.strangers.extend(all.into_iter().filter(|pid| !self.members.contains_key(pid)));
    }

    fn add(&mut self, pid: u32, stat: &Stat) {
        let Some(image) = image(pid) else { return };
        let same = self.members.get(&self.root).is_some_and(|root| root.image == image);
        if pid != self.root && self.mark.is_none() && !same {
            return;
        }
        if let Some(parent) = self.members.get_mut(&stat.parent) {
            parent.is_parent |= parent.image == image;
        }
        let cpu = ticks(stat.cpu);
        self.accounts.entry(image).or_default().used += cpu;
        let (start, addresses) = (stat.start, stat.addresses);
        let (cpu_before, spent, is_parent) = (Duration::ZERO, Duration::ZERO, false);
        let member = Member {
            start,
            addresses,
            image,
            cpu,
            cpu_before,
            spent,
            is_parent,
            state: State::New,
            refusals: 0,
        };
        self.members.insert(pid, member);
    }

    /// Returns whether the environment of a process of this user has the mark.
    fn has_mark(&self, pid: u32) -> bool {
        let Some(mark) = &self.mark else { return false };
        let process = Process::new(pid);
        let owner = |path: &Path| std::fs::metadata(path).map(|meta| meta.uid()).ok();
        let is_ours = owner(&process.path("")) == owner(&Process::new(self.root).path(""));
        is_ours && process.read("environ").is_ok_and(|all| all.split(|b| *b == 0).any(|entry| entry == mark))
    }

    /// Returns the processes for which a lift or a look is worth it now, parents first.
    pub(crate) fn due(&self) -> Vec<u32> {
        let mut due: Vec<(bool, u32)> = Vec::new();
        for (&pid, member) in self.members.iter().filter(|(pid, _)| self.is_due(**pid)) {
            due.push((!member.is_parent, pid));
        }
        due.sort_unstable();
        due.into_iter().map(|(_, pid)| pid).collect()
    }

    /// Returns whether a lift or a look is still worth it, after those of other processes.
    pub(crate) fn is_due(&self, pid: u32) -> bool {
        self.members.get(&pid).and_then(|member| self.lacks(member)).is_some_and(|time| time.is_zero())
    }

    /// Returns the CPU time that must still be used before any lift or look is worth it; `None` if nothing is
    /// left to do.
    pub(crate) fn lacks_at_least(&self) -> Option<Duration> {
        self.members.values().filter_map(|member| self.lacks(member)).min()
    }

    fn lacks(&self, member: &Member) -> Option<Duration> {
        let cost = match member.state {
            State::New => LOOK,
            State::Wants(cost) => cost,
            State::Lifted { .. } | State::Refused { .. } => return None,
        };
        Some(self.account(member).lacks(cost).max(self.accounts[&member.image].lacks(cost)))
    }

    /// Returns the account of one process. What a process lifts, its later children have too: a parent has
    /// the account of all that run its file.
    fn account(&self, member: &Member) -> Account {
        match member.is_parent {
            true => self.accounts[&member.image],
            false => Account { used: member.cpu.saturating_sub(member.cpu_before), spent: member.spent },
        }
    }

    /// Returns the accounts that must afford a lift of `pid`: its own, and that of all that run its file.
    pub(crate) fn accounts_of(&self, pid: u32) -> [Account; 2] {
        let Some(member) = self.members.get(&pid) else { return [Account::default(); 2] };
        [self.account(member), self.accounts[&member.image]]
    }

    /// Returns the CPU time that a process has used.
    pub(crate) fn cpu_of(&self, pid: u32) -> Duration {
        self.members.get(&pid).map_or(Duration::ZERO, |member| member.cpu)
    }

    /// Records a look or a lift that took `spent`; `code` is what the process had mapped before, `wants` the cost
    /// of what is not lifted yet.
    pub(crate) fn looked(&mut self, pid: u32, code: u64, spent: Duration, wants: Option<Duration>) {
        self.spend(pid, spent);
        let Some(member) = self.members.get_mut(&pid) else { return };
        member.state = wants.map_or(State::Lifted { code }, State::Wants);
    }

    /// Records that a process could not be lifted, and that trying took `spent`. Returns whether that is worth a
    /// message: it is the first time, and the process has not ended.
    pub(crate) fn refused(&mut self, pid: u32, spent: Duration) -> bool {
        self.spend(pid, spent);
        let Some(member) = self.members.get_mut(&pid) else { return false };
        let pause = AGAIN.saturating_mul(1 << member.refusals.min(16)).min(AGAIN_AT_MOST);
        member.state = State::Refused { again: Instant::now() + pause };
        member.refusals = member.refusals.saturating_add(1);
        member.refusals == 1 && Process::new(pid).stat().is_ok_and(|stat| !stat.has_ended())
    }

    fn spend(&mut self, pid: u32, spent: Duration) {
        let Some(member) = self.members.get_mut(&pid) else { return };
        member.spent += spent;
        self.accounts.entry(member.image).or_default().spent += spent;
    }

    /// Returns whether all processes have ended.
    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}

/// Returns the value that marks the run of the program `root`.
pub(crate) fn mark(root: u32) -> Option<String> {
    let stat = Process::new(root).stat().ok()?;
    Some(format!("{root}.{}", stat.start))
}

fn image(pid: u32) -> Option<Image> {
    let meta = std::fs::metadata(Process::new(pid).path("exe")).ok()?;
    Some((meta.dev(), meta.ino()))
}

/// Returns the bytes of code that a process has mapped: it grows with each object that is opened.
pub(crate) fn code_of(pid: u32) -> u64 {
    Process::new(pid).status().ok().and_then(|status| status.code).unwrap_or_default()
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Returns the id that was given last: the last word of `/proc/loadavg` (proc_loadavg(5)).
fn last_pid() -> Option<u32> {
    let text = read_whole(Path::new("/proc/loadavg")).ok()?;
    std::str::from_utf8(&text).ok()?.split_whitespace().last()?.parse().ok()
}

fn ticks(ticks: u64) -> Duration {
    let each = sysconf(SysconfVar::CLK_TCK).ok().flatten().and_then(|each| u64::try_from(each).ok());
    Duration::from_millis(ticks.saturating_mul(1000) / each.unwrap_or(100).max(1))
}
