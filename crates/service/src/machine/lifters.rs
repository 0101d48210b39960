// SPDX-License-Identifier: Apache-2.0
//! The lifters that run, one for all processes of which the same is wanted. One that has ended is started again, each time
//! later.

use crate::journal::{Level, log};
use crate::machine::lifter::Lifter;
use crate::machine::line::Line;
use crate::machine::wants::Wants;
use hugelift_core::proc_stat::Identity;
use nix::poll::{PollFd, PollFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

/// The pause before the first new start of one that has ended. Each later one is twice as long, up to [`LONGEST`].
const SHORTEST: Duration = Duration::from_secs(1);
/// The longest such pause.
const LONGEST: Duration = Duration::from_secs(300);
/// The most lifters of the services: the policy may have as many rules as it likes.
const MOST: usize = 16;
/// The most beside them that are of one ordinary user each.
const MOST_OF_USERS: usize = 8;
/// How long they may take to end.
const ENDING: Duration = Duration::from_secs(5);
/// How long they may take after they were killed.
const KILLED: Duration = Duration::from_secs(2);
/// Between two checks whether they have.
const CHECK: Duration = Duration::from_millis(10);

/// All lifters.
#[derive(Debug, Default)]
pub struct Lifters {
    all: BTreeMap<Wants, Slot>,
}

/// What came of naming a process to a lifter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Given {
    /// It was named.
    Yes,
    /// Its lifter has ended or is busy: it is named later.
    Later,
    /// As many lifters run as may, and each does something else.
    NoLifter,
}

/// One lifter, or the time of its next start.
#[derive(Debug)]
struct Slot {
    lifter: Option<Lifter>,
    failures: u32,
    again: Instant,
}

impl Slot {
    fn new() -> Slot {
        Slot { lifter: None, failures: 0, again: Instant::now() }
    }

    /// Starts it, if that is due. Returns whether it was started.
    fn start(&mut self, wants: &Wants) -> bool {
        if self.lifter.is_some() || Instant::now() < self.again {
            return false;
        }
        match Lifter::start(wants) {
            Ok(lifter) => {
                self.lifter = Some(lifter);
                true
            }
            Err(error) => {
                self.fail(&format!("cannot start hugelift {}: {error}", wants.words().join(" ")));
                false
            }
        }
    }

    fn fail(&mut self, why: &str) {
        let pause = SHORTEST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        self.again = Instant::now() + pause;
        self.lifter = None;
        log(Level::Warning, &format!("{why}; it is tried again in {} s", pause.as_secs()));
    }

    /// Reads what it has done. Returns the lifter too if it has ended, or has closed its output and goes on, perhaps.
    fn read(&mut self) -> (Vec<Line>, Option<Lifter>) {
        let Some(lifter) = &mut self.lifter else { return (Vec::new(), None) };
        lifter.write();
        let (lines, is_over) = lifter.read();
        if !lines.is_empty() {
            self.failures = 0;
        }
        if !is_over {
            return (lines, None);
        }
        let pid = lifter.pid();
        let how = lifter.ended().unwrap_or_else(|| "its output was closed".into());
        let over = self.lifter.take();
        self.fail(&format!("the process {pid} that lifts has ended ({how}); what it has lifted stays"));
        (lines, over)
    }
}

impl Lifters {
    /// Names a process to the lifter that does this. One that was not named is tried again later.
    pub fn give(&mut self, wants: Wants, process: Identity) -> Given {
        if !self.all.contains_key(&wants) && !self.has_room(wants) {
            return Given::NoLifter;
        }
        let slot = self.all.entry(wants).or_insert_with(Slot::new);
        // One that has ended is started again by `restart` alone, which says whose processes have to be named again.
        if slot.failures == 0 {
            slot.start(&wants);
        }
        let is_named = slot.lifter.as_mut().is_some_and(|lifter| lifter.give(process));
        if is_named { Given::Yes } else { Given::Later }
    }

    fn has_room(&self, wants: Wants) -> bool {
        let of_users = self.all.keys().filter(|wants| wants.is_of_user()).count();
        if wants.is_of_user() { of_users < MOST_OF_USERS } else { self.all.len() - of_users < MOST }
    }

    /// Ends the lifters of users of whom nothing is `wanted` any more. Where there is no room for one that is wanted, it ends all of
    /// which nothing is.
    pub fn end_idle(&mut self, wanted: impl FnOnce() -> BTreeSet<Wants>) {
        if self.all.len() < MOST && !self.all.keys().any(Wants::is_of_user) {
            return;
        }
        let wanted = wanted();
        let lacks_room = wanted.iter().any(|wants| !self.all.contains_key(wants) && !self.has_room(*wants));
        let is_idle = |wants: &Wants| (lacks_room || wants.is_of_user()) && !wanted.contains(wants);
        let idle: Vec<Wants> = self.all.keys().copied().filter(is_idle).collect();
        end_all(idle.iter().filter_map(|wants| self.all.remove(wants)?.lifter).collect());
    }

    /// Says that a process is not to be watched any more. What is lifted stays so.
    pub fn take_back(&mut self, wants: Wants, process: Identity) {
        let lifter = self.all.get_mut(&wants).and_then(|slot| slot.lifter.as_mut());
        lifter.into_iter().for_each(|lifter| lifter.take_back(process));
    }

    /// Ends those that do this, so that they are in the middle of no lift. Each keeps its place, and is started again when a process
    /// is named to it.
    pub fn renew(&mut self, all: &BTreeSet<Wants>) {
        let slots = self.all.iter_mut().filter(|(wants, _)| all.contains(wants));
        end_all(slots.filter_map(|(_, slot)| slot.lifter.take()).collect());
    }

    /// Starts those again that are due. Returns what they are to do: their processes have to be named again.
    pub fn restart(&mut self) -> Vec<Wants> {
        self.all
            .iter_mut()
            .filter(|(_, slot)| slot.failures > 0)
            .filter_map(|(wants, slot)| slot.start(wants).then_some(*wants))
            .collect()
    }

    /// Returns when the next one is to be started again.
    pub fn next(&self) -> Option<Instant> {
        // One that was renewed waits for a process.
        self.all
            .values()
            .filter(|slot| slot.lifter.is_none() && slot.failures > 0)
            .map(|slot| slot.again)
            .min()
    }

    /// Returns what they have done since the last call.
    pub fn read(&mut self) -> Vec<Line> {
        let (lines, over): (Vec<_>, Vec<_>) = self.all.values_mut().map(Slot::read).unzip();
        let over: Vec<Lifter> = over.into_iter().flatten().collect();
        if !over.is_empty() {
            kill_all(over);
        }
        lines.into_iter().flatten().collect()
    }

    /// Returns the descriptors to wait for.
    pub fn fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let lifters = self.all.values().filter_map(|slot| slot.lifter.as_ref());
        lifters.flat_map(|lifter| {
            let output = PollFd::new(lifter.as_fd(), PollFlags::POLLIN);
            let input = lifter.to_write().map(|fd| PollFd::new(fd, PollFlags::POLLOUT));
            [Some(output), input].into_iter().flatten()
        })
    }

    /// Returns the ids of those that run.
    pub fn pids(&self) -> Vec<u32> {
        self.all.values().filter_map(|slot| Some(slot.lifter.as_ref()?.pid())).collect()
    }

    /// Ends all, and waits for them. What they have lifted stays so.
    pub fn end(&mut self) {
        let slots = std::mem::take(&mut self.all).into_values();
        end_all(slots.filter_map(|slot| slot.lifter).collect());
    }
}

fn end_all(mut lifters: Vec<Lifter>) {
    lifters.iter().for_each(Lifter::stop);
    let deadline = Instant::now() + ENDING;
    while Instant::now() < deadline && !lifters.is_empty() {
        lifters.retain_mut(|lifter| {
            // It does not end before what it says is read.
            lifter.read();
            lifter.ended().is_none()
        });
        std::thread::sleep(CHECK);
    }
    kill_all(lifters);
}

/// Ends lifters at once, and waits for their end. Between two system calls of a lift that harms nobody: what is half done is undone by the
/// next hugelift. The memory of another process may hold one up in the kernel, where no signal ends it: then a thread waits.
fn kill_all(mut lifters: Vec<Lifter>) {
    lifters.iter_mut().for_each(Lifter::kill);
    let deadline = Instant::now() + KILLED;
    loop {
        lifters.retain_mut(|lifter| lifter.ended().is_none());
        if lifters.is_empty() || Instant::now() >= deadline {
            break;
        }
        std::thread::sleep(CHECK);
    }
    for lifter in lifters {
        let pid = lifter.pid();
        log(Level::Warning, &format!("the process {pid} that lifts does not end: the kernel holds it up"));
        std::thread::spawn(move || lifter.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::service::acts::Act;

    #[test]
    fn no_more_run_than_may_and_that_is_told() {
        let of = |budget: usize, user| {
            Wants::new([Act::Code].into_iter().collect(), Some(budget as u64), u64::MAX)
                .unwrap()
                .of_user(user)
        };
        // Those that have ended and wait for their next start: none is started here.
        let ended = || Slot { failures: 1, again: Instant::now() + LONGEST, ..Slot::new() };
        let mut lifters = Lifters { all: (0..MOST_OF_USERS).map(|n| (of(n, Some(1000)), ended())).collect() };
        assert_eq!(lifters.give(of(MOST, Some(1000)), (1, 1)), Given::NoLifter);
        assert_eq!(lifters.give(of(0, Some(1000)), (1, 1)), Given::Later);
        lifters.all.extend((0..MOST).map(|n| (of(n, None), ended())));
        assert_eq!(lifters.give(of(MOST, None), (1, 1)), Given::NoLifter);
        assert_eq!(lifters.give(of(0, None), (1, 1)), Given::Later);
        // One that is renewed keeps its place, and is not started without a process.
        let renewed = BTreeSet::from([of(0, None)]);
        *lifters.all.get_mut(&of(0, None)).unwrap() = Slot::new();
        lifters.renew(&renewed);
        assert_eq!(lifters.give(of(MOST, None), (1, 1)), Given::NoLifter);
        assert!(lifters.next() > Some(Instant::now()));
        // There is room as soon as one is wanted no more.
        let services = |range: std::ops::Range<usize>| range.map(|n| of(n, None)).collect::<BTreeSet<_>>();
        lifters.end_idle(|| services(1..MOST));
        assert_eq!(lifters.all.len(), MOST, "those of users alone");
        lifters.end_idle(|| services(1..MOST + 1));
        assert_eq!(lifters.all.keys().copied().collect::<BTreeSet<_>>(), services(1..MOST));
        assert!(lifters.has_room(of(MOST, None)));
    }
}
