// SPDX-License-Identifier: Apache-2.0
//! The processes of the machine that the policy takes, and what became of them.
//!
//! ```text
//!   census ---- seen, ended ---> Machine ---- PID ---> lifters   (attach --watch --stdin, a process for each wish)
//!                                   ^ '--- files --->  worker    (the thread that primes)
//!                                   |'---- JSON -----   lifters
//!                                   '<--- verdict ---   verify   (compare --pid, one at a time) ---> books (the ledger)
//! ```
//!
//! All of this is a thread of its own ([`thread`]): a process that holds up who reads its mappings does not hold up the daemon.
//!
//! Nothing here is needed by a process: what is lifted stays so, whatever becomes of the daemon.

pub mod books;
mod child;
mod copies;
pub mod experiment;
pub mod explain;
mod instance;
pub mod later;
pub mod lifter;
pub mod lifters;
pub mod line;
pub mod memory;
mod outcome;
pub mod records;
mod refusals;
mod restores;
mod room;
pub mod surroundings;
pub mod taken;
pub mod thread;
pub mod users;
pub mod uses;
pub mod verify;
pub mod wants;
pub mod watched;

use crate::journal::{Level, log};
use books::now;
use experiment::Experiment;
use hugelift_core::printable::printable;
use hugelift_core::proc_stat::Identity;
use hugelift_core::service::acts::Act;
use hugelift_core::service::matching::Facts;
use hugelift_core::service::policy::Policy;
use hugelift_core::service::verify::Program;
use hugelift_linux::proc::procfs::Process;
use instance::Instance;
use later::Later;
use lifters::{Given, Lifters};
use line::Line;
use memory::Memory;
use nix::poll::{PollFd, PollFlags};
use records::Records;
use restores::Restores;
use room::{Charges, Places};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use taken::Taken;
use verify::{Ended, Verify};
use wants::Wants;

/// Bytes of code without which neither the page cache nor copies gain anything: a huge page.
const LEAST: u64 = 2 << 20;
/// How long an experiment may take to restore its process when the service ends or has another policy, and all other ends.
pub const ENDING: Duration = Duration::from_secs(10);

/// The processes that the policy takes.
#[derive(Debug)]
pub struct Machine {
    policy: Policy,
    /// Bytes that copies of all processes may take together.
    memory: u64,
    taken: BTreeMap<u32, Taken>,
    /// Processes that were taken by the policy before: they are not new.
    old: BTreeSet<Identity>,
    lifters: Lifters,
    /// Processes that are to be checked again, as they are too young for a rule.
    pub later: Later,
    /// What is verified.
    pub verify: Verify,
    /// What is written down.
    pub records: Records,
    restores: Restores,
    /// How many lifts were made.
    pub lifts: u64,
    /// How many processes could not be lifted.
    pub refusals: u64,
    places: Places,
}

impl Machine {
    /// Returns a machine of which nothing is known yet. `memory` is that of the machine, in bytes. `ledger` is the path of the
    /// ledger; without one nothing is remembered beyond the service.
    pub fn new(policy: Policy, memory: u64, ledger: Option<PathBuf>) -> Machine {
        let memory = policy.limits(memory).memory;
        let mut verify = Verify::new(policy.verify);
        let (records, found) = Records::open(ledger);
        found.into_iter().for_each(|found| verify.remember(found, now()));
        Machine {
            verify,
            records,
            restores: Restores::new(),
            policy,
            memory,
            taken: BTreeMap::new(),
            old: BTreeSet::new(),
            lifters: Lifters::default(),
            later: Later::default(),
            lifts: 0,
            refusals: 0,
            places: Places::default(),
        }
    }

    /// Changes the policy. Every process has to be seen again; what is lifted stays so.
    pub fn obey(&mut self, policy: Policy, memory: u64) {
        self.memory = policy.limits(memory).memory;
        self.policy = policy;
        let deadline = Instant::now() + ENDING;
        // It restores its process while the lifters end, which know processes that the new policy may leave alone.
        self.verify.experiment().into_iter().for_each(Experiment::stop);
        self.lifters.end();
        if let Some((late, instance)) = self.verify.end(deadline, now()) {
            // It restores the process by itself.
            self.restores.after(late, instance, Vec::new());
        }
        self.verify.obey(self.policy.verify);
        self.records.read(self.taken.values());
        self.later.clear();
        self.old = std::mem::take(&mut self.taken).into_values().map(|taken| taken.process).collect();
        self.places = Places::default();
    }

    /// Takes note of a process that has started, or that has become another program, of which `life` is where its stack began,
    /// and `build_id` tells its executable from others. Returns whether it is taken.
    pub fn see(&mut self, process: Identity, life: Option<u64>, build_id: &str, facts: &Facts) -> bool {
        if self.taken.get(&process.0).is_some_and(|known| known.process == process && known.life != life) {
            // Another program has other copies, if any.
            self.verify.ended(process);
        }
        let taken = self.policy.rule_for(facts);
        self.later.set(process, taken.later.map(|time| time.saturating_sub(facts.age)));
        let is_small = facts.code < LEAST && !taken.acts.allow(Act::Memory) && !taken.acts.allow(Act::Shm);
        if taken.acts.is_empty() || is_small || self.places.lack_one(&self.taken, process, taken.of_user) {
            self.forget(process.0);
            return false;
        }
        let wants = Wants::new(taken.acts, taken.budget, self.memory);
        let wants = wants.map(|wants| wants.per_node(taken.per_node).of_user(taken.of_user));
        let one = Taken::new(process, life, build_id, facts, &taken, wants);
        if self.taken.get(&process.0).is_some_and(|known| known.is_same(&one)) {
            return true;
        }
        if one.verify && !self.taken.contains_key(&process.0) && !self.old.contains(&process) {
            self.take_fork(&one);
        }
        self.forget(process.0);
        self.records.seen(&one);
        self.taken.insert(process.0, one);
        true
    }

    /// Takes note of a new process that is as its parent was when that has forked it: it may have copies of this service. If they bring
    /// no gain, and no experiment on the parent is still to say so, it is restored as the parent was.
    fn take_fork(&mut self, one: &Taken) {
        let Ok(stat) = Process::new(one.process.0).stat() else { return };
        let parent = self.taken.get(&stat.parent).filter(|_| stat.is_whole(one.process));
        // A program that the parent has started, also the same one, has another stack, and none of the copies.
        let parent = parent.filter(|parent| (&parent.key, parent.life) == (&one.key, one.life));
        let Some(parent) = parent.map(|parent| parent.process) else { return };
        let is_ours = self.restores.is_changed(parent) || self.verify.had_copies(parent);
        if is_ours
            && self.verify.inherits(one.process)
            && !self.verify.is_on(parent)
            && !self.verify.pays(&one.key, now())
        {
            self.restores.add(one.instance());
        }
    }

    /// Takes note of a process that has ended.
    pub fn ended(&mut self, process: Identity) {
        self.later.set(process, None);
        self.old.remove(&process);
        self.verify.ended(process);
        if self.taken.get(&process.0).is_some_and(|taken| taken.process == process) {
            self.forget(process.0);
        }
    }

    /// Takes a process no more. What is lifted stays so.
    fn forget(&mut self, pid: u32) {
        let Some(Taken { process, wants, is_given: true, .. }) = self.taken.remove(&pid) else { return };
        wants.into_iter().for_each(|wants| self.lifters.take_back(wants, process));
    }

    /// Returns when there is something to do without an event.
    pub fn next(&self) -> Option<Instant> {
        let verify = self.verify.next(self.taken.values());
        let others =
            [self.lifters.next(), verify, self.records.next(), self.restores.next()].into_iter().flatten();
        self.later.next().into_iter().chain(others).min()
    }

    /// Takes what the lifters have done. Starts those again that have ended, and names to them the processes that wait and for whose
    /// copies there is room.
    pub fn turn(&mut self) {
        for line in self.lifters.read() {
            self.take(&line);
        }
        self.lifters.end_idle(|| self.taken.values().filter_map(|taken| taken.wants).collect());
        for wants in self.lifters.restart() {
            let its = self.taken.values_mut().filter(|taken| taken.wants == Some(wants));
            its.for_each(|taken| taken.is_given = false);
        }
        self.verify_turn();
        self.records.turn(self.taken.values(), &helpers(&self.lifters, &self.verify));
        let (now, charges) = (now(), Charges::of(self.taken.values(), self.memory));
        let (verify, restores) = (&self.verify, &self.restores);
        let may = |taken: &&mut Taken| {
            !taken.is_given
                && charges.leave_room(taken.of_user)
                && verify.allows(taken, now)
                && !restores.is_changed(taken.process)
        };
        self.taken.values_mut().for_each(Taken::forget_wait);
        let mut named = Vec::new();
        for taken in self.taken.values_mut().filter(may) {
            match taken.wants.map(|wants| self.lifters.give(wants, taken.process)) {
                Some(Given::Yes) => {
                    taken.is_given = true;
                    named.push(taken.process);
                }
                Some(Given::NoLifter) => taken.wait_for_lifter(),
                Some(Given::Later) | None => {}
            }
        }
        named.into_iter().for_each(|process| self.verify.given(process));
    }

    /// Takes the result of the experiment that has ended, and begins the next one.
    fn verify_turn(&mut self) {
        let now = now();
        self.restores.turn();
        self.restores.take_done().into_iter().for_each(|process| self.verify.restored(process));
        if let Some(ended) = self.verify.turn(now) {
            self.records.measured(self.taken.values(), &helpers(&self.lifters, &self.verify), &ended);
            self.settle(ended, now);
        }
        let charges = Charges::of(self.taken.values(), self.memory);
        let restores = &self.restores;
        let is_free = |one: &&Taken| charges.leave_room(one.of_user) && !restores.is_changed(one.process);
        let room = self.taken.values().filter(is_free);
        let Some(one) = self.verify.choose(room, now).cloned() else { return };
        if let (true, Some(wants)) = (one.is_given, one.wants) {
            self.renew(&[wants].into(), &[one.process]);
        }
        self.verify.begin(&one, now);
    }

    /// Restores the processes of a program that this service has lifted, unless a gain was measured: that of the experiment, which
    /// may have been killed while it was lifted, and those that were worth it once.
    fn settle(&mut self, ended: Ended, now: u64) {
        let mut restored = Vec::new();
        if !self.verify.pays(&ended.program, now) {
            let lifted = self.lifted(&ended.program);
            let all = lifted.iter().map(|(_, instance)| *instance);
            // The experiment may have been killed while it was lifted.
            restored =
                all.filter(|one| one.process != ended.instance.process).chain([ended.instance]).collect();
            let wants: BTreeSet<Wants> = lifted.into_iter().filter_map(|(wants, _)| wants).collect();
            let without: Vec<Identity> = restored.iter().map(|instance| instance.process).collect();
            self.renew(&wants, &without);
        }
        self.restores.after(ended.child, ended.instance, restored);
    }

    /// Returns the processes of a program that this service may have lifted, also those that wait to be named to a lifter again.
    fn lifted(&self, program: &Program) -> Vec<(Option<Wants>, Instance)> {
        let all = self.taken.values().filter(|taken| taken.verify && taken.key == *program);
        let ours = all.filter(|taken| self.verify.is_ours(taken.process));
        ours.map(|taken| (taken.wants, taken.instance())).collect()
    }

    /// Takes processes from the lifters that have them. They are ended and started again, as they may be in the middle of a lift, and
    /// their other processes are named to them again.
    fn renew(&mut self, all: &BTreeSet<Wants>, without: &[Identity]) {
        self.lifters.renew(all);
        for taken in
            self.taken.values_mut().filter(|taken| taken.wants.is_some_and(|wants| all.contains(&wants)))
        {
            taken.is_given = false;
            if without.contains(&taken.process) {
                taken.huge.clear();
            }
        }
    }

    fn take(&mut self, line: &Line) {
        let Some(taken) = self.taken.get_mut(&line.pid) else { return };
        let name = format!("{} ({})", taken.program, line.pid);
        if let Some(why) = &line.error {
            self.refusals += 1;
            log(Level::Info, &format!("{name} is not lifted: {}", printable(why)));
            if taken.refusal.as_ref().is_none_or(|before| before.to_string() != *why) {
                self.records.refused(&taken.key, why);
            }
            taken.refusal = Some(why.clone().into());
            return;
        }
        let before = taken.bytes();
        let collapses = taken.acts.allow(Act::Memory) || taken.acts.allow(Act::Shm);
        taken.show(line.huge(), if collapses { Memory::read(line.pid) } else { None });
        taken.refusal = None;
        if taken.bytes() > before {
            self.lifts += 1;
            self.records.lifted(taken);
            let what = line.lines.first().map(String::as_str).unwrap_or_default();
            log(Level::Info, &format!("{name}: {}", printable(what)));
        }
    }

    /// Returns the bytes of copies of code of all processes, as smaps has shown them after the last change of each. What
    /// several processes share counts for each.
    pub fn copies(&self) -> u64 {
        self.taken.values().map(Taken::copies).sum()
    }

    /// Returns the bytes that copies of all processes may take.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// Returns how many processes are to be restored, and are not yet.
    pub fn to_restore(&self) -> usize {
        self.restores.waiting()
    }

    /// Returns how many processes were restored.
    pub fn restored(&self) -> u64 {
        self.restores.count
    }

    /// Returns how many processes are not lifted, by the reason.
    pub fn refused(&self) -> BTreeMap<String, u64> {
        refusals::count(self.taken.values().filter_map(|taken| taken.refusal.as_ref()))
    }

    /// Returns the processes whose files are to be kept in the page cache.
    pub fn cached(&self) -> BTreeSet<Identity> {
        let its = self.taken.values().filter(|taken| taken.acts.allow(Act::Pagecache));
        its.map(|taken| taken.process).collect()
    }

    /// Returns whether a process is taken.
    pub fn takes(&self, process: Identity) -> bool {
        self.taken.get(&process.0).is_some_and(|taken| taken.process == process)
    }

    /// Returns the processes that are taken.
    pub fn taken(&self) -> impl Iterator<Item = &Taken> {
        self.taken.values()
    }

    /// Returns the processes of hugelift that work for the service.
    pub fn helpers(&self) -> Vec<u32> {
        helpers(&self.lifters, &self.verify)
    }

    /// Returns the descriptors to wait for.
    pub fn fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let experiment = self.verify.experiment().and_then(Experiment::to_read);
        let experiment = experiment.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        self.lifters.fds().chain(experiment)
    }

    /// Ends the lifters, and waits for them and for what is being restored, [`ENDING`] at most. What is lifted stays so.
    pub fn end(&mut self) {
        let deadline = Instant::now() + ENDING;
        // It restores its process while the lifters end.
        self.verify.experiment().into_iter().for_each(Experiment::stop);
        self.restores.hurry();
        self.lifters.end();
        let _ = self.verify.end(deadline, now());
        self.records.end(self.taken.values(), &helpers(&self.lifters, &self.verify));
        self.restores.end(deadline);
    }
}

/// Returns the processes of hugelift that work for the service.
fn helpers(lifters: &Lifters, verify: &Verify) -> Vec<u32> {
    lifters.pids().into_iter().chain(verify.experiment().map(Experiment::pid)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::policy::Backing;
    use hugelift_core::snapshot::Part;

    /// A process of an ordinary user, or of root, with so many bytes of copies.
    fn taken(pid: u32, of_user: Option<u32>, bytes: u64) -> Taken {
        Taken { of_user, huge: [((Part::Text, Backing::Thp), bytes)].into(), ..Taken::example((pid, 1)) }
    }

    fn machine(all: impl IntoIterator<Item = Taken>) -> Machine {
        let mut machine = Machine::new(Policy::default(), 1 << 30, None);
        machine.taken = all.into_iter().map(|one| (one.process.0, one)).collect();
        machine
    }

    /// A lifter that is started again has none of them for a moment.
    #[test]
    fn issue_33_4_all_that_was_lifted_is_restored() {
        let verified = |pid| Taken { verify: true, ..taken(pid, None, 1) };
        let mut machine = machine([verified(1), verified(2), verified(3), taken(4, None, 1)]);
        [1, 2, 4].into_iter().for_each(|pid| machine.verify.given((pid, 1)));
        let key = machine.taken[&1].key.clone();
        machine.taken.values_mut().for_each(|taken| taken.is_given = false);
        let lifted =
            |machine: &Machine| machine.lifted(&key).iter().map(|(_, one)| one.process.0).collect::<Vec<_>>();
        assert_eq!(lifted(&machine), [1, 2]);
        machine.ended((2, 1));
        assert_eq!(lifted(&machine), [1]);
    }

    /// What a lifted process forks has its copies.
    #[test]
    fn what_a_lifted_process_forks_is_restored_too() {
        let own = Process::OWN.stat().unwrap();
        let parent = Process::new(own.parent).stat().unwrap().identity();
        let of = |process, build_id: &str, life| {
            let key = Program { build_id: build_id.into(), unit: None };
            Taken { verify: true, key, life: Some(life), ..Taken::example(process) }
        };
        let mut machine = machine([of(parent, "a", 7)]);
        let child = own.identity();
        machine.take_fork(&of(child, "a", 7));
        assert!(!machine.verify.is_ours(child), "the parent was not lifted");
        machine.verify.given(parent);
        machine.take_fork(&of(child, "b", 7));
        machine.take_fork(&of(child, "a", 8));
        machine.take_fork(&of((child.0, child.1 + 1), "a", 7));
        assert!(!machine.verify.is_ours(child), "it has executed a program, or is another process");
        assert_eq!(machine.to_restore(), 0);
        // Nothing says that it pays.
        machine.take_fork(&of(child, "a", 7));
        assert!(machine.verify.is_ours(child) && machine.to_restore() == 1);
        machine.take_fork(&of(child, "a", 7));
        assert_eq!(machine.to_restore(), 1);
        // It was forked before the parent was restored, and is seen afterwards.
        machine.verify.ended(child);
        machine.verify.restored(parent);
        assert!(!machine.verify.is_ours(parent) && machine.verify.had_copies(parent));
    }
}
