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
use hugelift_os::proc::clock::ticks_per_second;
use hugelift_os::proc::procfs::{Process, read_whole};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The variable that marks the environment of a run whose children are to be lifted: the id of its program and
/// the time of its start.
pub(crate) const MARK: &str = "HUGELIFT_RUN";

/// The file that a process runs: its device and inode.
type Image = (u64, u64);

/// The processes of a run.
#[derive(Debug)]
pub(crate) struct Family {
    root: u32,
    /// The file that the program runs, or ran last.
    root_image: Option<Image>,
    /// The user that the program had at its start.
    owner: Option<u32>,
    /// The file of hugelift itself: its launchers, helpers and watchers are not lifted.
    own_image: Option<Image>,
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
    /// How many looks in a row have found nothing to lift.
    fruitless: u32,
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
    /// Returns the family of the program `root`, which has not run yet. Its children are lifted too if `mark`
    /// marks their environment.
    pub(crate) fn new(root: u32, mark: Option<&str>) -> Family {
        let own = std::process::id();
        let mut family = Family {
            root,
            root_image: None,
            owner: owner(root),
            own_image: image(own),
            mark: mark.map(|mark| format!("{MARK}={mark}").into()),
            members: BTreeMap::new(),
            accounts: HashMap::new(),
            strangers: BTreeSet::from([own]),
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
            // It has become another program by execve(2), or runs its own once more.
            let image = image(pid).unwrap_or(member.image);
            let (start, addresses) = (member.start, stat.addresses);
            *member = Member { cpu, cpu_before: cpu, ..Member::new(start, addresses, image) };
            if pid == self.root {
                self.root_image = Some(image);
            } else if self.mark.is_none() && self.root_image != Some(image) {
                self.members.remove(&pid);
                self.strangers.insert(pid);
            }
            // What it has used since the last time may be the other program's.
            return used;
        }
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
        let all: BTreeSet<u32> = Process::all().unwrap_or_default().into_iter().collect();
        if self.newest.is_none() {
            // Older processes than the program have lower ids, unless ids have started again since.
            self.strangers.extend(all.range(..self.root));
        }
        self.strangers.retain(|pid| all.contains(pid));
        let is_new = |pid: &u32| !self.members.contains_key(pid) && !self.strangers.contains(pid);
        let new: Vec<u32> = all.iter().copied().filter(is_new).collect();
        let stats = new.into_iter().filter_map(|pid| Some((pid, Process::new(pid).stat().ok()?)));
        let mut new: Vec<(u32, Stat)> = stats.filter(|(_, stat)| !stat.has_ended()).collect();
        // A parent is older than its children, but ids may start again at a low number: two turns.
        for turn in 0..2 {
            new.retain(|(pid, stat)| {
                let belongs = self.members.contains_key(&stat.parent) || turn == 1 && self.has_mark(*pid);
                if belongs {
                    self.add(*pid, stat);
                }
                !belongs
            });
        }
        self.strangers.extend(new.into_iter().map(|(pid, _)| pid));
    }

    /// Adds a process that belongs to the run, if it is to be lifted.
    fn add(&mut self, pid: u32, stat: &Stat) {
        let Some(image) = image(pid) else { return };
        if pid == self.root {
            self.root_image = Some(image);
        }
        // A launcher becomes its program later.
        let is_other = self.mark.is_none() && self.root_image != Some(image);
        if self.own_image == Some(image) || is_other {
            return;
        }
        if let Some(parent) = self.members.get_mut(&stat.parent) {
            parent.is_parent |= parent.image == image;
        }
        let cpu = ticks(stat.cpu);
        self.accounts.entry(image).or_default().used += cpu;
        self.members.insert(pid, Member { cpu, ..Member::new(stat.start, stat.addresses, image) });
    }

    /// Returns whether the environment of a process of this user has the mark.
    fn has_mark(&self, pid: u32) -> bool {
        let Some(mark) = &self.mark else { return false };
        let is_ours = self.owner.is_some() && owner(pid) == self.owner;
        is_ours
            && Process::new(pid)
                .read("environ")
                .is_ok_and(|all| all.split(|b| *b == 0).any(|entry| entry == mark))
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
            // Looks at a program that makes code of its own all the time find nothing: each waits longer.
            State::New => LOOK.saturating_mul(1 << member.fruitless.min(10)),
            State::Wants(cost) => cost,
            State::Lifted { .. } | State::Refused { .. } => return None,
        };
        Some(self.account(member).lacks(cost).max(self.account_of(member.image).lacks(cost)))
    }

    /// Returns the account of all processes that run a file.
    fn account_of(&self, image: Image) -> Account {
        self.accounts.get(&image).copied().unwrap_or_default()
    }

    /// Returns the account of one process. What a process lifts, its later children have too: a parent has
    /// the account of all that run its file.
    fn account(&self, member: &Member) -> Account {
        match member.is_parent {
            true => self.account_of(member.image),
            false => Account { used: member.cpu.saturating_sub(member.cpu_before), spent: member.spent },
        }
    }

    /// Returns the accounts that must afford a lift of `pid`: its own, and that of all that run its file.
    pub(crate) fn accounts_of(&self, pid: u32) -> [Account; 2] {
        let Some(member) = self.members.get(&pid) else { return [Account::default(); 2] };
        [self.account(member), self.account_of(member.image)]
    }

    /// Returns when a process was started, in clock ticks since boot.
    pub(crate) fn start_of(&self, pid: u32) -> Option<u64> {
        Some(self.members.get(&pid)?.start)
    }

    /// Returns the CPU time that a process has used.
    pub(crate) fn cpu_of(&self, pid: u32) -> Duration {
        self.members.get(&pid).map_or(Duration::ZERO, |member| member.cpu)
    }

    /// Records a look that took `spent` and perhaps `lifted`; `code` is what the process had mapped before, `wants`
    /// the cost of what is not lifted yet.
    pub(crate) fn looked(
        &mut self,
        pid: u32,
        code: u64,
        spent: Duration,
        lifted: bool,
        wants: Option<Duration>,
    ) {
        self.spend(pid, spent);
        let Some(member) = self.members.get_mut(&pid) else { return };
        member.fruitless = if lifted || wants.is_some() { 0 } else { member.fruitless.saturating_add(1) };
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

impl Member {
    fn new(start: u64, addresses: Option<Addresses>, image: Image) -> Member {
        let (cpu, cpu_before, spent) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        let (is_parent, state, refusals, fruitless) = (false, State::New, 0, 0);
        Member { start, addresses, image, cpu, cpu_before, spent, is_parent, state, refusals, fruitless }
    }
}

/// Returns a value that marks the run of the program that this process becomes.
pub(crate) fn new_mark() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}.{}", std::process::id(), now.as_nanos())
}

/// Returns the user of a process.
fn owner(pid: u32) -> Option<u32> {
    std::fs::metadata(Process::new(pid).path("")).map(|meta| meta.uid()).ok()
}

fn image(pid: u32) -> Option<Image> {
    Process::new(pid).executable().ok()
}

/// Returns the bytes of code that a process has mapped: it grows with each object that is opened.
pub(crate) fn code_of(pid: u32) -> u64 {
    Process::new(pid).status().ok().and_then(|status| status.code).unwrap_or_default()
}

/// Returns the id that was given last: the last word of `/proc/loadavg` (proc_loadavg(5)).
fn last_pid() -> Option<u32> {
    let text = read_whole(Path::new("/proc/loadavg")).ok()?;
    std::str::from_utf8(&text).ok()?.split_whitespace().last()?.parse().ok()
}

fn ticks(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(1000) / ticks_per_second())
}
