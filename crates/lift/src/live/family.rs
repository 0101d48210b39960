// SPDX-License-Identifier: Apache-2.0
//! The processes of a run, or those that a user has chosen: which they are, and the CPU time that they use.
//!
//! ```text
//!   program ---- fork ---- same program      one account: both run the same file
//!      '-------- exec ---- another program   an account of its own (--children lift)
//! ```
//!
//! New processes are found by their parents in `/proc`, and nobody is traced for that. A process whose parent
//! ends before it is found is recognized by a variable that the program's environment has
//! ([`MARK`]), if children are to be lifted. `kin` decides who belongs to a family.

#[cfg(test)]
mod tests;

use super::accounts::Accounts;
use super::kin::{AfterExec, Chosen, Find, Kin, Run};
use hugelift_core::printable::Escape as _;
use hugelift_core::proc_stat::{Addresses, Stat};
use hugelift_core::worth::{Account, LOOK};
use hugelift_os::proc::clock::ticks_per_second;
use hugelift_os::proc::loadavg::LoadAvg;
use hugelift_os::proc::procfs::{Process, help_with_access};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The variable that marks the environment of a run whose children are to be lifted: the id of its program and
/// the time of its start.
pub(crate) const MARK: &str = "HUGELIFT_RUN";

/// The file that a process runs: its device and inode.
pub(super) type Image = (u64, u64);

/// The processes of a run, or those that a user has chosen.
#[derive(Debug)]
pub(crate) struct Family {
    kin: Kin,
    /// Lifts need not be worth their cost.
    eager: bool,
    /// The file of hugelift itself: its launchers, helpers and watchers are not lifted.
    own_image: Option<Image>,
    members: BTreeMap<u32, Member>,
    accounts: Accounts,
    /// Processes that do not belong to the family, and when each was first seen; `None` for those that were
    /// there before the first look.
    strangers: BTreeMap<u32, Option<Instant>>,
    /// The process that was made last when the list of processes was read, or could have been.
    newest: Option<u32>,
    /// The list of processes has been read.
    has_looked: bool,
    /// When the list is read again although no process was made.
    again: Option<Instant>,
    /// When all processes are looked at again, if a process was made.
    all_again: Instant,
    /// Processes that belong to the family and cannot be looked at, with the reason.
    unreadable: Vec<(u32, String)>,
}

/// A process of the family.
#[derive(Debug)]
struct Member {
    parent: u32,
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
    /// Bytes of anonymous copies that its lifts have made.
    copied: u64,
    is_parent: bool,
    /// Somebody has looked at it since its execve(2).
    is_known: bool,
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

/// A process that was made less than this ago may still become a program that belongs to the family.
const YOUNG: Duration = Duration::from_secs(5);
/// While there are such processes the list is read this often, whether more are made or not.
const YOUNG_EVERY: Duration = Duration::from_secs(1);
/// Older processes are looked at again this often, when a process was made.
const OLD_EVERY: Duration = Duration::from_secs(60);

impl Family {
    /// Returns the family of the program `root`, which has not run yet. Its children are lifted too if `mark`
    /// marks their environment.
    pub(crate) fn of_run(root: u32, mark: Option<&str>) -> Family {
        let mut family = Family::new(Kin::Run(Run::new(root, mark)), false);
        // The helper, which is this process, is younger than the program. So the program has no children as long as
        // no process is younger than the helper: after most short programs the list need not be read.
        family.newest = Some(std::process::id());
        if let Ok(stat) = Process::new(root).stat() {
            family.add(root, &stat);
        }
        family
    }

    /// Returns the family of the processes `given`, of those that are found by `find` at any time, and of what
    /// both fork, or with `all_children` start. Also returns which of `given` do not exist.
    pub(crate) fn of_chosen(
        given: &BTreeSet<u32>,
        find: Option<Find>,
        all_children: bool,
        eager: bool,
    ) -> (Family, Vec<u32>) {
        let mut chosen = Chosen::new(find, all_children);
        let stats = given.iter().map(|&pid| (pid, Process::new(pid).stat().ok().filter(|s| !s.has_ended())));
        let (there, gone): (Vec<_>, Vec<_>) = stats.partition(|(_, stat)| stat.is_some());
        let there: Vec<(u32, Stat)> =
            there.into_iter().filter_map(|(pid, stat)| Some((pid, stat?))).collect();
        there.iter().for_each(|(pid, stat)| chosen.give(*pid, stat.start));
        let mut family = Family::new(Kin::Chosen(chosen), eager);
        for (pid, stat) in &there {
            family.add(*pid, stat);
            if !family.members.contains_key(pid) && family.unreadable.iter().all(|(known, _)| known != pid) {
                let why = "it is a process of hugelift itself, or a thread of the kernel";
                family.unreadable.push((*pid, why.into()));
            }
        }
        (family, gone.into_iter().map(|(pid, _)| pid).collect())
    }

    fn new(kin: Kin, eager: bool) -> Family {
        let own = std::process::id();
        Family {
            kin,
            eager,
            own_image: image(own),
            members: BTreeMap::new(),
            accounts: Accounts::default(),
            strangers: BTreeMap::from([(own, None)]),
            newest: None,
            has_looked: false,
            again: None,
            all_again: Instant::now() + OLD_EVERY,
            unreadable: Vec::new(),
        }
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
                _ => self.remove(pid),
            }
        }
        let newest = LoadAvg::read().map(|now| now.newest);
        let now = Instant::now();
        if newest.is_none() || newest != self.newest || self.again.is_some_and(|again| again <= now) {
            self.find_new(now);
            self.newest = newest;
        }
        let alive = self.members.values().map(|member| member.image).collect();
        self.accounts.prune(&alive);
        used
    }

    /// Removes a process that has ended. What its lifts have copied is still the memory of a process that it has
    /// forked.
    fn remove(&mut self, pid: u32) {
        self.kin.ended(pid);
        let Some(Member { image, copied, .. }) = self.members.remove(&pid) else { return };
        let is_heir = |member: &&mut Member| member.parent == pid && member.image == image;
        if let Some(heir) = self.members.values_mut().find(is_heir).filter(|_| copied > 0) {
            heir.copied = heir.copied.saturating_add(copied);
        }
    }

    /// Updates a member; returns the CPU time that it has used since the last time.
    fn update(&mut self, pid: u32, stat: &Stat) -> Duration {
        let Some(member) = self.members.get_mut(&pid) else { return Duration::ZERO };
        let cpu = ticks(stat.cpu);
        let used = cpu.saturating_sub(member.cpu);
        member.cpu = cpu;
        if member.addresses != stat.addresses {
            // It has become another program by execve(2), or runs its own once more.
            let (old, new) = (member.image, image(pid).unwrap_or(member.image));
            *member = Member { cpu, cpu_before: cpu, ..Member::new(stat, new) };
            match self.kin.after_exec(pid, old, new) {
                AfterExec::Stays => {}
                AfterExec::Leaves => {
                    self.members.remove(&pid);
                    self.strangers.insert(pid, None);
                }
                AfterExec::Unknown => {
                    self.members.remove(&pid);
                    self.again = Some(Instant::now());
                }
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
        self.accounts.add_used(image, used);
        used
    }

    /// Adds the new processes that belong to the family: by their parents, by what they are.
    fn find_new(&mut self, now: Instant) {
        let all: BTreeSet<u32> = Process::all().unwrap_or_default().into_iter().collect();
        let is_first = !std::mem::replace(&mut self.has_looked, true);
        if let (Kin::Run(Run { root, .. }), true) = (&self.kin, is_first) {
            // Older processes than the program have lower ids, unless ids have started again since.
            self.strangers.extend(all.range(..*root).map(|pid| (*pid, None)));
        }
        self.strangers.retain(|pid, _| all.contains(pid));
        let looks_at_all = self.kin.finds() && self.all_again <= now;
        if looks_at_all {
            self.all_again = now + OLD_EVERY;
        }
        let is_settled = |seen: &Option<Instant>| {
            !looks_at_all && seen.is_none_or(|seen| !self.kin.finds() || seen + YOUNG <= now)
        };
        let own = std::process::id();
        let is_candidate = |pid: &u32| {
            *pid != own && !self.members.contains_key(pid) && !self.strangers.get(pid).is_some_and(is_settled)
        };
        let candidates = all.iter().copied().filter(is_candidate);
        let stats = candidates.filter_map(|pid| Some((pid, Process::new(pid).stat().ok()?)));
        let mut new: Vec<(u32, Stat)> = stats.filter(|(_, stat)| !stat.has_ended()).collect();
        // A parent is older than its children, but ids may start again at a low number, and a parent may be found
        // by what it is.
        self.add_children(&mut new);
        let found = self.kin.find(&new.iter().map(|(pid, _)| *pid).collect());
        for (pid, stat) in new.extract_if(.., |(pid, _)| found.contains(pid)) {
            self.add(pid, &stat);
        }
        self.add_children(&mut new);
        let seen = (!is_first).then_some(now);
        for (pid, _) in new {
            self.strangers.entry(pid).or_insert(seen);
        }
        let is_young = |seen: &Option<Instant>| seen.is_some_and(|seen| seen + YOUNG > now);
        let any_young = self.kin.finds() && self.strangers.values().any(is_young);
        self.again = any_young.then(|| now + YOUNG_EVERY);
    }

    /// Moves those of `new` to the members that a member has started.
    fn add_children(&mut self, new: &mut Vec<(u32, Stat)>) {
        new.retain(|(pid, stat)| {
            let parent = self.members.get(&stat.parent).map(|parent| parent.image);
            let Some(parent) = parent else { return true };
            // A program that is found by what it is may be a member's child of another file.
            match image(*pid) {
                Some(image) if self.kin.takes_child(image, parent) || self.own_image == Some(image) => {
                    self.add(*pid, stat);
                }
                _ if self.kin.finds() => return true,
                _ => _ = self.strangers.insert(*pid, None),
            }
            false
        });
    }

    /// Adds a process that belongs to the family, if it can be lifted.
    fn add(&mut self, pid: u32, stat: &Stat) {
        let image = match Process::new(pid).executable() {
            Ok(image) => image,
            Err(why) => {
                // A thread of the kernel runs no file.
                if why.kind() == std::io::ErrorKind::PermissionDenied && !self.strangers.contains_key(&pid) {
                    let path = Process::new(pid).path("exe");
                    let why = format!("cannot read {}: {why}; {}", path.escaped(), help_with_access());
                    self.unreadable.push((pid, why));
                }
                _ = self.strangers.insert(pid, None);
                return;
            }
        };
        // A launcher becomes its program later.
        if self.own_image == Some(image) {
            if self.kin.finds() {
                self.strangers.entry(pid).or_insert_with(|| Some(Instant::now()));
            }
            return;
        }
        self.strangers.remove(&pid);
        if let Some(parent) = self.members.get_mut(&stat.parent) {
            parent.is_parent |= parent.image == image;
        }
        let cpu = ticks(stat.cpu);
        self.accounts.add_used(image, cpu);
        self.members.insert(pid, Member { cpu, ..Member::new(stat, image) });
    }

    /// Returns the processes that belong to the family and cannot be looked at, each once.
    pub(crate) fn take_unreadable(&mut self) -> Vec<(u32, String)> {
        std::mem::take(&mut self.unreadable)
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
            State::New if self.eager && member.fruitless == 0 => return Some(Duration::ZERO),
            State::New => LOOK.saturating_mul(1 << member.fruitless.min(10)),
            State::Wants(cost) => cost,
            State::Lifted { .. } | State::Refused { .. } => return None,
        };
        Some(self.account(member).lacks(cost).max(self.accounts.get(member.image).lacks(cost)))
    }

    /// Returns the account of one process. What a process lifts, its later children have too: a parent has
    /// the account of all that run its file.
    fn account(&self, member: &Member) -> Account {
        match member.is_parent {
            true => self.accounts.get(member.image),
            false => Account { used: member.cpu.saturating_sub(member.cpu_before), spent: member.spent },
        }
    }

    /// Returns whether a lift of `pid` that takes `cost` is worth it: its own account and that of all that run its
    /// file must afford it.
    pub(crate) fn affords(&self, pid: u32) -> impl Fn(Duration) -> bool + Send + use<> {
        let (eager, accounts) = (self.eager, self.accounts_of(pid));
        move |cost| eager || accounts.iter().all(|account| account.affords(cost))
    }

    /// Returns the accounts that must afford a lift of `pid`: its own, and that of all that run its file.
    pub(crate) fn accounts_of(&self, pid: u32) -> [Account; 2] {
        let Some(member) = self.members.get(&pid) else { return [Account::default(); 2] };
        [self.account(member), self.accounts.get(member.image)]
    }

    /// Returns when a process was started, in clock ticks since boot.
    pub(crate) fn start_of(&self, pid: u32) -> Option<u64> {
        Some(self.members.get(&pid)?.start)
    }

    /// Returns the CPU time that a process has used.
    pub(crate) fn cpu_of(&self, pid: u32) -> Duration {
        self.members.get(&pid).map_or(Duration::ZERO, |member| member.cpu)
    }

    /// Returns the bytes of anonymous copies that lifts of the members have made.
    pub(crate) fn copied(&self) -> u64 {
        self.members.values().map(|member| member.copied).fold(0, u64::saturating_add)
    }

    /// Records that a lift has made `bytes` of anonymous copies.
    pub(crate) fn add_copied(&mut self, pid: u32, bytes: u64) {
        if let Some(member) = self.members.get_mut(&pid) {
            member.copied = member.copied.saturating_add(bytes);
        }
    }

    /// Returns whether anything was found out about a process.
    pub(crate) fn is_known(&self, pid: u32) -> bool {
        self.members.get(&pid).is_some_and(|member| member.is_known)
    }

    /// Returns the members.
    pub(crate) fn pids(&self) -> BTreeSet<u32> {
        self.members.keys().copied().collect()
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
        member.is_known = true;
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

    /// Records CPU time that a lift of `pid` took.
    pub(crate) fn spend(&mut self, pid: u32, spent: Duration) {
        let Some(member) = self.members.get_mut(&pid) else { return };
        member.spent += spent;
        self.accounts.add_spent(member.image, spent);
    }

    /// Returns whether all processes have ended, and no other can come.
    pub(crate) fn is_over(&self) -> bool {
        self.members.is_empty() && !self.kin.finds()
    }
}

impl Member {
    fn new(stat: &Stat, image: Image) -> Member {
        Member {
            parent: stat.parent,
            start: stat.start,
            addresses: stat.addresses,
            image,
            cpu: Duration::ZERO,
            cpu_before: Duration::ZERO,
            spent: Duration::ZERO,
            copied: 0,
            is_parent: false,
            is_known: false,
            state: State::New,
            refusals: 0,
            fruitless: 0,
        }
    }
}

/// Returns a value that marks the run of the program that this process becomes.
pub(crate) fn new_mark() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}.{}", std::process::id(), now.as_nanos())
}

/// Returns the user of a process.
pub(super) fn owner(pid: u32) -> Option<u32> {
    std::fs::metadata(Process::new(pid).path("")).map(|meta| meta.uid()).ok()
}

pub(super) fn image(pid: u32) -> Option<Image> {
    Process::new(pid).executable().ok()
}

/// Returns the bytes of code that a process has mapped: it grows with each object that is opened.
pub(crate) fn code_of(pid: u32) -> u64 {
    Process::new(pid).status().ok().and_then(|status| status.code).unwrap_or_default()
}

fn ticks(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(1000) / ticks_per_second())
}
