// SPDX-License-Identifier: Apache-2.0
//! Keeps the set of watched processes, and the CPU time that they use: those of a run, or those that a user has chosen.
//!
//! ```text
//!   program ---- fork ---- same program      one account: both run the same file
//!      '-------- exec ---- another program   an account of its own (--children lift)
//! ```
//!
//! New processes are found by their parents in `/proc`, and nobody is traced for that. A process whose parent
//! ends before it is found is recognized by a variable that the program's environment has
//! ([`super::membership::MARK`]), if children are to be lifted. [`Membership`] decides which processes belong to a set.

#[cfg(test)]
mod tests;

use super::accounts::Accounts;
use super::apart::Attempt;
use super::member::{Life, Member, State, Told};
use super::membership::{AfterExec, Chosen, Find, Given, Membership, More, Run};
use super::process::{Image, code_of, image};
use hugelift_core::printable::Escape as _;
use hugelift_core::proc_stat::Stat;
use hugelift_core::worth::{Account, CHECK};
use hugelift_linux::proc::clock::of_ticks;
use hugelift_linux::proc::loadavg::LoadAvg;
use hugelift_linux::proc::procfs::{Process, help_with_executable};
use hugelift_linux::proc::shared_memory::is_part_of_its_parent;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The processes of a run, or those that a user has chosen.
#[derive(Debug)]
pub(crate) struct ProcessSet {
    membership: Membership,
    /// Lifts need not be worth their cost.
    eager: bool,
    /// The file of hugelift itself: its launchers, helpers and watchers are not lifted.
    own_image: Option<Image>,
    members: BTreeMap<u32, Member>,
    accounts: Accounts,
    /// Processes that do not belong to the set, and when each was first seen; `None` if the process was there before the first
    /// listing, or is not young any more.
    others: BTreeMap<u32, Option<Instant>>,
    /// The process that was made last when the list of processes was read, or could have been.
    newest: Option<u32>,
    /// The list of processes has been read.
    was_listed: bool,
    /// When the list is read again although no process was made.
    again: Option<Instant>,
    /// When all processes are checked again, if a process was made.
    all_again: Instant,
    /// Processes that belong to the set and cannot be read, with the reason.
    unreadable: Vec<(u32, String)>,
}

/// How long a process that was refused is left alone the first time; each later time is twice as long.
const AGAIN: Duration = Duration::from_secs(2);
/// The longest such time.
const AGAIN_AT_MOST: Duration = Duration::from_secs(3600);

/// A process that was made less than this ago may still become a program that belongs to the set.
const YOUNG: Duration = Duration::from_secs(5);
/// While there are such processes the list is read this often, whether more are made or not.
const YOUNG_EVERY: Duration = Duration::from_secs(1);
/// Older processes are checked again this often, when a process was made.
const OLD_EVERY: Duration = Duration::from_secs(60);

impl ProcessSet {
    /// Returns the set of the program `root`, which has not run yet. Its children are lifted too if `mark`
    /// marks their environment.
    pub(crate) fn of_run(root: u32, mark: Option<&str>) -> ProcessSet {
        let mut set = ProcessSet::new(Membership::Run(Run::new(root, mark)), false);
        // The helper, which is this process, is younger than the program. So the program has no children as long as
        // no process is younger than the helper: after most short programs the list need not be read.
        set.newest = Some(std::process::id());
        if let Ok(stat) = Process::new(root).stat() {
            set.add(root, &stat);
        }
        set
    }

    /// Returns the set of the processes `given`, the processes that `find` finds or `more` gives at any time, and the processes
    /// that these fork. With `all_children` it also holds the programs that they start. Also returns which of `given` do not
    /// exist.
    pub(crate) fn of_chosen(
        given: &BTreeSet<u32>,
        find: Option<Find>,
        more: Option<More>,
        all_children: bool,
        eager: bool,
    ) -> (ProcessSet, Vec<u32>) {
        let mut chosen = Chosen::new(find, more, all_children);
        let lives = |stat: &Stat| !stat.has_ended() && !stat.is_exiting();
        let stats = given.iter().map(|&pid| (pid, Process::new(pid).stat().ok().filter(lives)));
        let (there, gone): (Vec<_>, Vec<_>) = stats.partition(|(_, stat)| stat.is_some());
        let there: Vec<(u32, Stat)> =
            there.into_iter().filter_map(|(pid, stat)| Some((pid, stat?))).collect();
        there.iter().for_each(|(pid, stat)| chosen.give(*pid, stat.start));
        let mut set = ProcessSet::new(Membership::Chosen(chosen), eager);
        for (pid, stat) in &there {
            set.add(*pid, stat);
            if !set.members.contains_key(pid) && set.unreadable.iter().all(|(known, _)| known != pid) {
                let why = "it is a process of hugelift itself, or a thread of the kernel";
                set.unreadable.push((*pid, why.into()));
            }
        }
        (set, gone.into_iter().map(|(pid, _)| pid).collect())
    }

    fn new(membership: Membership, eager: bool) -> ProcessSet {
        let own = std::process::id();
        ProcessSet {
            membership,
            eager,
            own_image: image(own),
            members: BTreeMap::new(),
            accounts: Accounts::default(),
            others: BTreeMap::from([(own, None)]),
            newest: None,
            was_listed: false,
            again: None,
            all_again: Instant::now() + OLD_EVERY,
            unreadable: Vec::new(),
        }
    }

    /// Reads the CPU times, and finds new processes. Returns the CPU time that all have used since the last
    /// time.
    pub(crate) fn refresh(&mut self) -> Duration {
        let mut used = Duration::ZERO;
        self.take_given();
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

    /// Adds the processes that were given since the last time, and removes those that were taken back. One that has ended, or
    /// whose id is another's now, is left.
    fn take_given(&mut self) {
        for Given { pid, start, is_taken_back } in self.membership.more() {
            if is_taken_back {
                if self
                    .members
                    .get(&pid)
                    .is_some_and(|member| start.is_none_or(|start| member.start == start))
                {
                    self.members.remove(&pid);
                }
                continue;
            }
            let stat = Process::new(pid).stat().ok().filter(|stat| !stat.has_ended());
            let Some(stat) = stat.filter(|stat| start.is_none_or(|start| stat.start == start)) else {
                continue;
            };
            if self.members.get(&pid).is_none_or(|member| member.start != stat.start) {
                self.add(pid, &stat);
            }
        }
    }

    /// Removes a process that has ended. What its lifts have copied is still the memory of a process that it has
    /// forked.
    fn remove(&mut self, pid: u32) {
        self.membership.ended(pid);
        let Some(Member { image, copied, .. }) = self.members.remove(&pid) else { return };
        let is_child = |member: &&mut Member| member.parent == pid && member.image == image;
        if let Some(child) = self.members.values_mut().find(is_child).filter(|_| copied > 0) {
            child.copied = child.copied.saturating_add(copied);
        }
    }

    /// Updates a member; returns the CPU time that it has used since the last time.
    fn update(&mut self, pid: u32, stat: &Stat) -> Duration {
        let Some(member) = self.members.get_mut(&pid) else { return Duration::ZERO };
        let cpu = of_ticks(stat.cpu);
        let used = cpu.saturating_sub(member.cpu);
        member.cpu = cpu;
        if stat.is_exiting() {
            // It has no addresses any more, and is removed when it has ended.
            self.accounts.add_used(member.image, used);
            return used;
        }
        // Of a process whose first thread has ended the kernel shows no addresses.
        if member.addresses != stat.addresses && !stat.thread_has_ended() {
            // It has become another program by execve(2), or runs its own once more.
            let (old, new) = (member.image, image(pid).unwrap_or(member.image));
            *member = Member { cpu, cpu_before: cpu, ..Member::new(stat, new) };
            match self.membership.after_exec(pid, old, new) {
                AfterExec::Stays => {}
                AfterExec::Leaves => {
                    self.members.remove(&pid);
                    self.others.insert(pid, None);
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

    /// Adds the new processes that belong to the set: by their parents, by what they are.
    fn find_new(&mut self, now: Instant) {
        let all: BTreeSet<u32> = Process::all().unwrap_or_default().into_iter().collect();
        let is_first = !std::mem::replace(&mut self.was_listed, true);
        if let (Membership::Run(Run { root, .. }), true) = (&self.membership, is_first) {
            // Older processes than the program have lower ids, unless ids have started again since.
            self.others.extend(all.range(..*root).map(|pid| (*pid, None)));
        }
        self.others.retain(|pid, _| all.contains(pid));
        let checks_all = self.membership.finds() && self.all_again <= now;
        if checks_all {
            self.all_again = now + OLD_EVERY;
        }
        let is_settled = |seen: &Option<Instant>| !checks_all && (seen.is_none() || !self.membership.finds());
        let own = std::process::id();
        let is_candidate = |pid: &u32| {
            *pid != own && !self.members.contains_key(pid) && !self.others.get(pid).is_some_and(is_settled)
        };
        let candidates = all.iter().copied().filter(is_candidate);
        let stats = candidates.filter_map(|pid| Some((pid, Process::new(pid).stat().ok()?)));
        let mut new: Vec<(u32, Stat)> = stats.filter(|(_, stat)| !stat.has_ended()).collect();
        // A parent is older than its children, but ids may start again at a low number, and a parent may be found
        // by what it is.
        self.add_children(&mut new);
        let found = self.membership.find(&new.iter().map(|(pid, _)| *pid).collect());
        for (pid, stat) in new.extract_if(.., |(pid, _)| found.contains(pid)) {
            self.add(pid, &stat);
        }
        self.add_children(&mut new);
        let seen = (!is_first).then_some(now);
        for (pid, _) in new {
            let first = self.others.entry(pid).or_insert(seen);
            // The last check is made when it is not young any more, however rarely the list is read.
            first.take_if(|seen| *seen + YOUNG <= now);
        }
        let any_young = self.membership.finds() && self.others.values().any(Option::is_some);
        self.again = any_young.then(|| now + YOUNG_EVERY);
    }

    /// Moves the processes that a member has started from `new` to the members.
    fn add_children(&mut self, new: &mut Vec<(u32, Stat)>) {
        new.retain(|(pid, stat)| {
            let parent = self.members.get(&stat.parent).map(|parent| parent.image);
            let Some(parent) = parent else { return true };
            // A program that is found by what it is may be a member's child of another file.
            match image(*pid) {
                Some(image)
                    if self.membership.takes_child(image, parent) || self.own_image == Some(image) =>
                {
                    self.add(*pid, stat);
                }
                _ if self.membership.finds() => return true,
                _ => _ = self.others.insert(*pid, None),
            }
            false
        });
    }

    /// Adds a process that belongs to the set, if it can be lifted.
    fn add(&mut self, pid: u32, stat: &Stat) {
        let image = match Process::new(pid).executable() {
            Ok(image) => image,
            Err(why) => {
                // A thread of the kernel runs no file.
                if why.kind() == std::io::ErrorKind::PermissionDenied && !self.others.contains_key(&pid) {
                    let path = Process::new(pid).path("exe");
                    let help = help_with_executable(&why).map(|help| format!("; {help}")).unwrap_or_default();
                    let why = format!("cannot read {}: {why}{help}", path.escaped());
                    self.unreadable.push((pid, why));
                }
                _ = self.others.insert(pid, None);
                return;
            }
        };
        // A launcher becomes its program later.
        if self.own_image == Some(image) {
            if self.membership.finds() {
                self.others.entry(pid).or_insert_with(|| Some(Instant::now()));
            }
            return;
        }
        self.others.remove(&pid);
        if let Some(parent) = self.members.get_mut(&stat.parent) {
            parent.is_parent |= parent.image == image;
        }
        let cpu = of_ticks(stat.cpu);
        self.accounts.add_used(image, cpu);
        self.members.insert(pid, Member { cpu, ..Member::new(stat, image) });
    }

    /// Returns the processes that belong to the set and cannot be read, each once.
    pub(crate) fn take_unreadable(&mut self) -> Vec<(u32, String)> {
        std::mem::take(&mut self.unreadable)
    }

    /// Returns the processes for which a lift or a check is worth it now, parents first.
    pub(crate) fn due(&self) -> Vec<u32> {
        let mut due: Vec<(bool, u32)> = Vec::new();
        for (&pid, member) in self.members.iter().filter(|(pid, _)| self.is_due(**pid)) {
            due.push((!member.is_parent, pid));
        }
        due.sort_unstable();
        due.into_iter().map(|(_, pid)| pid).collect()
    }

    /// Returns whether a lift or a check of `pid` is still worth it, after lifts and checks of other processes.
    pub(crate) fn is_due(&self, pid: u32) -> bool {
        self.members.get(&pid).and_then(|member| self.lacks(member)).is_some_and(|time| time.is_zero())
    }

    /// Returns the CPU time that must still be used before any lift or check is worth it; `None` if nothing is
    /// left to do.
    pub(crate) fn lacks_at_least(&self) -> Option<Duration> {
        self.members.values().filter_map(|member| self.lacks(member)).min()
    }

    fn lacks(&self, member: &Member) -> Option<Duration> {
        let cost = match member.state {
            // A program may make code of its own all the time. Checks of it find nothing, so each waits longer.
            State::New if self.eager && member.fruitless == 0 => return Some(Duration::ZERO),
            State::New => CHECK.saturating_mul(1 << member.fruitless.min(10)),
            State::Wants(_) if self.eager => return Some(Duration::ZERO),
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

    /// Returns the accounts that must afford a lift of `pid`: its own account, and the account of all that run its file.
    pub(crate) fn accounts_of(&self, pid: u32) -> [Account; 2] {
        let Some(member) = self.members.get(&pid) else { return [Account::default(); 2] };
        [self.account(member), self.accounts.get(member.image)]
    }

    /// Returns when a process was started, in clock ticks since boot.
    pub(crate) fn start_of(&self, pid: u32) -> Option<u64> {
        Some(self.members.get(&pid)?.start)
    }

    /// Returns which program a process runs in which of its lives: another one after each execve(2).
    pub(super) fn life_of(&self, pid: u32) -> Option<Life> {
        self.members.get(&pid).map(|member| (member.start, member.addresses))
    }

    /// Returns the member that has forked a process, if both run the same program at the same addresses since.
    pub(super) fn forked_by(&self, pid: u32) -> Option<u32> {
        let child = self.members.get(&pid)?;
        let parent = self.members.get(&child.parent)?;
        let is_same = child.addresses.is_some() && child.addresses == parent.addresses;
        is_same.then_some(child.parent)
    }

    /// Records that a process of which all else is lifted is worth a lift when its account affords this much.
    pub(super) fn want(&mut self, pid: u32, cost: Duration) {
        if let Some(member) = self.members.get_mut(&pid)
            && matches!(member.state, State::Lifted { .. } | State::Wants(_))
        {
            member.state = State::Wants(cost);
        }
    }

    /// Has a process checked again.
    pub(super) fn check_again(&mut self, pid: u32) {
        if let Some(member) = self.members.get_mut(&pid) {
            (member.state, member.fruitless) = (State::New, 0);
        }
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

    /// Records that the memory of these copies was given back.
    pub(super) fn given_back(&mut self, pid: u32, bytes: u64) {
        if let Some(member) = self.members.get_mut(&pid) {
            member.copied = member.copied.saturating_sub(bytes);
            member.told.huge = member.told.huge.saturating_sub(bytes);
        }
    }

    /// Returns what was told of a process.
    pub(super) fn told(&self, pid: u32) -> Told {
        self.members.get(&pid).map(|member| member.told).unwrap_or_default()
    }

    /// Returns the members.
    pub(crate) fn pids(&self) -> BTreeSet<u32> {
        self.members.keys().copied().collect()
    }

    /// Records an attempt that took `spent`; `code` is what the process had mapped before. Returns whether it is the first
    /// to have lifted anything of the process.
    pub(super) fn tried(&mut self, pid: u32, code: u64, spent: Duration, attempt: &Attempt) -> bool {
        let Attempt { is_lifted, is_partial, copied, wants, huge, .. } = *attempt;
        self.spend(pid, spent);
        self.add_copied(pid, copied);
        let Some(member) = self.members.get_mut(&pid) else { return false };
        member.told = Told { is_known: true, is_unclear: is_partial, huge: huge.unwrap_or(member.told.huge) };
        if !is_partial {
            member.refusals = 0;
        }
        member.fruitless = if is_lifted || wants.is_some() { 0 } else { member.fruitless.saturating_add(1) };
        member.state = wants.map_or(State::Lifted { code }, State::Wants);
        is_lifted && !std::mem::replace(&mut member.is_lifted, true)
    }

    /// Leaves a process alone for a moment, as a comparison changes it.
    pub(crate) fn postpone(&mut self, pid: u32) {
        if let Some(member) = self.members.get_mut(&pid) {
            member.state = State::Refused { again: Instant::now() + AGAIN };
        }
    }

    /// Records that a process could not be lifted, and that trying took `spent`. Returns whether that is worth a
    /// message: it is the first time, and it is a process of its own that has not ended.
    pub(crate) fn refused(&mut self, pid: u32, spent: Duration) -> bool {
        self.spend(pid, spent);
        let Some(member) = self.members.get_mut(&pid) else { return false };
        let pause = AGAIN.saturating_mul(1 << member.refusals.min(16)).min(AGAIN_AT_MOST);
        member.state = State::Refused { again: Instant::now() + pause };
        member.told.is_unclear = true;
        member.refusals = member.refusals.saturating_add(1);
        // A child of vfork(2) is no process of its own yet.
        let is_there = |stat: Stat| !stat.has_ended() && !stat.is_exiting() && !is_part_of_its_parent(&stat);
        member.refusals == 1 && Process::new(pid).stat().is_ok_and(is_there)
    }

    /// Records CPU time that a lift of `pid` took.
    pub(crate) fn spend(&mut self, pid: u32, spent: Duration) {
        let Some(member) = self.members.get_mut(&pid) else { return };
        member.spent += spent;
        self.accounts.add_spent(member.image, spent);
    }

    /// Returns whether all processes have ended, and no other can come.
    pub(crate) fn is_over(&self) -> bool {
        self.members.is_empty() && !self.membership.finds() && !self.is_open()
    }

    /// Returns whether processes may be given later.
    pub(crate) fn is_open(&self) -> bool {
        self.membership.is_open()
    }
}
