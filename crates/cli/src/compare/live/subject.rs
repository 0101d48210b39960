// SPDX-License-Identifier: Apache-2.0
//! A process that is compared with itself: lifted, restored, and left as it was found.

use super::options::Options;
use crate::compare::cut::Ended;
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use hugelift_core::addr::{Addr, Range, human_bytes};
use hugelift_core::collapse::Budget;
use hugelift_core::printable::Untrusted;
use hugelift_core::restore::{Replaced, replaced};
use hugelift_core::snapshot::{Part, Snapshot};
use hugelift_lift::attach::{
    AttachOptions, Change, Chosen, Name, Pages, Resized, Switchable, attach, could_lift_again, huge_bytes,
    map_by, restore, small_bytes, switchable,
};
use hugelift_linux::proc::procfs::{Process, is_whole};
use hugelift_linux::proc::snapshot;
use hugelift_linux::proc::turn::turn;
use hugelift_measure::live::{State, Switching};
use hugelift_measure::timed::Seen;
use nix::fcntl::Flock;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How often a change of pages, and a restoring at the end, are tried: a thread that cannot be borrowed now may be later.
const TRIES: u32 = 3;
/// The pause before pages are changed again that could not be: a thread may be in a call, or a page in use by the kernel.
const BETWEEN: Duration = Duration::from_millis(5);
/// CPU time that the first collapse of the memory may take: about a gigabyte a second.
const LONGEST: Duration = Duration::from_secs(5);
/// The smallest base page of the supported machines.
const SMALLEST_PAGE: usize = 4096;

/// A copy of code or of read-only data, or memory that the program writes.
pub struct Copy {
    /// The file that it is of; none for memory.
    pub object: Option<Untrusted>,
    /// What it holds.
    pub part: Part,
    /// Where it lies.
    pub range: Range,
}

/// The process, and in which state it is.
pub struct Subject {
    /// Its id.
    pub pid: u32,
    /// Its name and id, for messages.
    pub name: Name,
    /// How it was found.
    pub found: State,
    /// What lifting and restoring have cost so far.
    pub switching: Switching,
    /// Bytes of copies whose page size was not changed, at most.
    pub left_out: u64,
    /// Why it was not.
    pub left_out_why: Option<String>,
    /// Why the first lift left something alone, a line each.
    pub not_lifted: Vec<String>,
    identity: (u32, u64),
    /// Keeps other comparisons away from the process.
    _turn: Flock<OwnedFd>,
    /// Whether it had copies when it was found.
    had_copies: bool,
    /// The state in which it is; `None` if a lift or a restoring was not made in whole.
    state: Option<State>,
    attach: AttachOptions,
    /// Whether only the size of the pages changes that map its copies.
    same_copy: bool,
    /// The text and rodata that a lift replaces, and the memory that is switched with it.
    replaced: Vec<Range>,
    /// Which memory is switched.
    parts: Vec<Part>,
    memory: Vec<Switchable>,
    /// The memory that is on small pages now.
    small: Vec<Range>,
}

impl Subject {
    /// Reads a process, and changes nothing.
    ///
    /// # Errors
    /// There is no such process, it cannot be read, or another hugelift compares or changes it.
    pub fn open(pid: u32, options: &Options) -> Result<Subject> {
        let name = Name::of(pid);
        let stat = Process::new(pid).stat()?;
        let turn = turn(pid).map_err(|error| format!("cannot lock /proc/{pid}/maps: {error}"));
        let copies = copies(pid).with_context(|| name.to_string())?;
        let turn = turn.and_then(|turn| {
            turn.ok_or_else(|| {
                format!(
                    "another hugelift compares or changes it just now; fuser -v /proc/{pid}/maps names it"
                )
            })
        });
        let turn = turn.map_err(|why| anyhow!(why)).with_context(|| name.to_string())?;
        let found = if copies.is_empty() { State::Bare } else { State::Lifted };
        Ok(Subject {
            pid,
            name,
            found,
            switching: Switching::default(),
            left_out: 0,
            left_out_why: None,
            not_lifted: Vec::new(),
            identity: stat.identity(),
            _turn: turn,
            had_copies: found == State::Lifted,
            state: Some(found),
            attach: options.attach.clone(),
            same_copy: options.same_copy,
            replaced: copies,
            parts: options.memory.clone(),
            memory: Vec::new(),
            small: Vec::new(),
        })
    }

    /// Returns whether the process has ended, or is about to; its id may have been given to another since.
    pub fn has_ended(&self) -> bool {
        !is_whole(self.identity)
    }

    /// Returns `error`, or [`Ended`] if it comes from the end of the process.
    pub fn cause(&self, error: anyhow::Error) -> anyhow::Error {
        Ended::cause_of(error, || self.has_ended())
    }

    /// Makes the first lift, which also makes the store's entry.
    ///
    /// # Errors
    /// It cannot be lifted, or nothing of it is huge afterwards.
    pub fn first_lift(&mut self) -> Result<()> {
        self.memory_first()?;
        let lifted = match self.attach.policy.parts.is_empty() {
            true => Ok(()),
            false => self.lift_first(),
        };
        match lifted {
            Err(why) if self.memory.is_empty() || self.has_ended() => return Err(why),
            Err(why) => self.not_lifted.push(format!("{why:#}")),
            Ok(()) => {}
        }
        self.replaced.extend(self.memory.iter().map(|memory| memory.range));
        self.state = Some(State::Lifted);
        Ok(())
    }

    /// Collapses the memory that is switched too.
    fn memory_first(&mut self) -> Result<()> {
        if self.parts.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        let budget = Budget { cpu: LONGEST, ..Budget::default() };
        let memory = switchable(self.chosen(), self.attach.seccomp, &self.parts, &budget);
        self.memory = memory.map_err(|why| anyhow!("its memory is not made huge: {why}"))?;
        self.switching.first_lift_ms += began.elapsed().as_secs_f64() * 1e3;
        let name = &self.name;
        ensure!(
            !self.memory.is_empty() || !self.attach.policy.parts.is_empty(),
            "there is nothing to compare: no whole huge page of the memory of {name} holds enough data"
        );
        Ok(())
    }

    fn lift_first(&mut self) -> Result<()> {
        // The copies that it has are never given up. A hugelift that was killed may have left them on small pages.
        if self.same_copy && self.had_copies {
            return self.resize(Pages::Huge);
        }
        if self.found == State::Lifted && self.had_copies {
            let (again, pid) = (could_lift_again(self.chosen(), &self.attach), self.pid);
            again.map_err(|why| {
                anyhow!(
                    "it is lifted, and after a restore this lift could not be made again: {why}; run 'hugelift \
                     restore {pid}' to undo the lift, then compare again what can be lifted"
                )
            })?;
        }
        let change = self.lift()?;
        self.switching.first_lift_ms += change.took_ms;
        self.replaced = copies(self.pid)?;
        let huge = Seen::now(self.pid).memory.map_or(0, |memory| memory.lifted());
        if self.replaced.is_empty() || huge == 0 {
            let why = change.complaints.first().or(change.lines.first()).map_or("", String::as_str);
            bail!("there is nothing to compare: no text and no rodata of it became huge: {why}");
        }
        self.not_lifted = change.complaints;
        Ok(())
    }

    /// Returns its copies, and the memory that is switched with them.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn copies(&self) -> Result<Vec<Copy>> {
        let snapshot = snapshot_of(self.pid)?;
        let copy = |copy: Replaced| {
            let object = Some(snapshot.objects.get(copy.object)?.path.clone().into());
            Some(Copy { object, part: copy.part, range: copy.range })
        };
        let of_memory = |memory: &Switchable| Copy { object: None, part: memory.part, range: memory.range };
        let copies = replaced(&snapshot).into_iter().filter_map(copy);
        Ok(copies.chain(self.memory.iter().map(of_memory)).collect())
    }

    /// Brings the process into a state, unless it is in it already. All pages that a lift replaces are mapped
    /// afterwards, so that no period has the page faults that follow a switch.
    ///
    /// # Errors
    /// The lift or the restoring fails, in whole or in part.
    pub fn switch(&mut self, to: State) -> Result<()> {
        if self.state == Some(to) {
            return Ok(());
        }
        ensure!(!self.has_ended(), Ended);
        match to {
            State::Small => return self.resize(Pages::Small),
            State::Lifted if self.same_copy && self.state != Some(State::Bare) => {
                return self.resize(Pages::Huge);
            }
            State::Lifted => {
                let change = self.lift()?;
                self.switching.lift_ms.push(change.took_ms);
                self.is_whole(&change)?;
            }
            State::Bare => {
                let change = restore(self.chosen(), self.attach.seccomp)
                    .map_err(|why| anyhow!("not restored: {why}"))?;
                self.count(&change);
                self.switching.restore_ms.push(change.took_ms);
                if let Some(why) = change.complaints.first() {
                    self.state = None;
                    bail!("not wholly restored: {why}");
                }
                self.state = Some(State::Bare);
            }
        }
        self.map_all();
        Ok(())
    }

    /// Maps all copies by such pages.
    ///
    /// # Errors
    /// The process cannot be changed, or none of its copies can be mapped so.
    fn resize(&mut self, pages: Pages) -> Result<()> {
        let all: Vec<(Range, Pages)> = self.replaced.iter().map(|copy| (*copy, pages)).collect();
        self.resize_each(&all)?;
        self.state = Some(if pages == Pages::Small { State::Small } else { State::Lifted });
        Ok(())
    }

    /// Maps each of these copies by its pages. Returns what was mapped so, mapping by mapping.
    ///
    /// # Errors
    /// As for [`Subject::switch`].
    pub fn resize_each(&mut self, copies: &[(Range, Pages)]) -> Result<Vec<Range>> {
        ensure!(!self.has_ended(), Ended);
        // If it fails halfway, both kinds are there.
        self.state = None;
        let mut resized = self.map_by(copies)?;
        let wanted: u64 = copies.iter().map(|(copy, _)| copy.len()).sum();
        for _ in 1..TRIES {
            // What stayed before stays again: it was written to, or is on pages of the pool.
            if resized.stays(wanted) <= self.left_out || resized.complaints.is_empty() {
                break;
            }
            std::thread::sleep(BETWEEN);
            resized = self.map_by(copies)?;
        }
        let is_small = |(copy, pages): &(Range, Pages)| {
            (*pages == Pages::Small && self.memory.iter().any(|one| one.range.covers(*copy))).then_some(*copy)
        };
        self.small = copies.iter().filter_map(is_small).collect();
        let stays = resized.stays(wanted);
        if stays > self.left_out {
            (self.left_out, self.left_out_why) = (stays, resized.complaints.first().cloned());
        }
        let milliseconds = resized.took.as_secs_f64() * 1e3;
        match copies.iter().any(|(_, pages)| *pages == Pages::Small) {
            true => self.switching.restore_ms.push(milliseconds),
            false => self.switching.lift_ms.push(milliseconds),
        }
        if resized.mapped.is_empty() {
            self.state = Some(State::Lifted);
            let why = resized.complaints.into_iter().next();
            let why = why.unwrap_or_else(|| match self.memory.is_empty() {
                false => "it has unmapped what was compared".into(),
                true => format!(
                    "its copies are on pages of the pool, which cannot be mapped by small ones; 'hugelift restore {}' gives them up",
                    self.pid
                ),
            });
            bail!("the size of its pages was not changed: {why}");
        }
        // A change to huge pages is made as from small ones.
        self.state = Some(State::Small);
        Ok(resized.mapped)
    }

    /// Maps each of these copies by its pages, once.
    fn map_by(&mut self, copies: &[(Range, Pages)]) -> Result<Resized> {
        let resized = map_by(self.chosen(), self.attach.seccomp, copies);
        let resized = resized.map_err(|why| anyhow!("the size of its pages was not changed: {why}"))?;
        self.count_stops(resized.stops.count, resized.stops.longest);
        Ok(resized)
    }

    /// Splits the memory again that is to be on small pages, if the kernel has made more than a twentieth of it huge meanwhile
    /// (khugepaged does so where memory is advised, or all memory is to be huge). Returns whether it had.
    ///
    /// # Errors
    /// As for [`Subject::switch`].
    pub fn split_again(&mut self) -> Result<bool> {
        let bytes: u64 = self.small.iter().map(|range| range.len()).sum();
        if self.small.is_empty() || 20 * huge_bytes(self.pid, &self.small) <= bytes || self.has_ended() {
            return Ok(false);
        }
        let small: Vec<(Range, Pages)> = self.small.iter().map(|range| (*range, Pages::Small)).collect();
        let resized = map_by(self.chosen(), self.attach.seccomp, &small);
        let resized = resized.map_err(|why| anyhow!("its memory was not split again: {why}"))?;
        self.count_stops(resized.stops.count, resized.stops.longest);
        Ok(true)
    }

    /// Leaves the process in a state, and tries more than once. A process that has ended is left.
    ///
    /// # Errors
    /// One line: the state in which it is, and the command that helps.
    pub fn leave(&mut self, to: State) -> Result<Option<State>> {
        let mut left = Ok(());
        for _ in 0..TRIES {
            if self.has_ended() {
                return Ok(None);
            }
            left = self.switch(to).and_then(|()| self.leave_memory(to));
            if left.is_ok() {
                return Ok(Some(to));
            }
        }
        let verb = if to == State::Bare { "restore" } else { "attach" };
        left.with_context(|| {
            format!("{} is not left {} ('hugelift {verb} {}' tries again)", self.name, to.name(), self.pid)
        })?;
        Ok(Some(to))
    }

    /// Leaves the memory that was switched on the pages on which it was found. If the process is left lifted on purpose, the
    /// memory stays on huge pages.
    fn leave_memory(&mut self, to: State) -> Result<()> {
        let stays_huge = to == State::Lifted && self.found == State::Bare;
        let pages = |memory: &Switchable| match memory.was_huge || stays_huge {
            true => (memory.range, Pages::Huge),
            false => (memory.range, Pages::Small),
        };
        if self.memory.is_empty() || self.has_ended() {
            return Ok(());
        }
        let all: Vec<(Range, Pages)> = self.memory.iter().map(pages).collect();
        let resized = map_by(self.chosen(), self.attach.seccomp, &all);
        self.count_stops(resized.as_ref().map_or(0, |done| done.stops.count), Duration::ZERO);
        let resized = resized.map_err(|why| anyhow!("its memory stays on the pages that it has: {why}"))?;
        let huge: Vec<Range> =
            all.iter().filter(|(_, pages)| *pages == Pages::Huge).map(|one| one.0).collect();
        let lost = small_bytes(self.pid, &huge);
        let all: u64 = huge.iter().map(|range| range.len()).sum();
        // The program may have released or split a little of it meanwhile.
        if 20 * lost > all && !self.has_ended() {
            let why = resized.complaints.first().map_or("the kernel does not say why", String::as_str);
            bail!("{} of its memory that was on huge pages is on small ones: {why}", human_bytes(lost));
        }
        self.memory.clear();
        Ok(())
    }

    /// Returns the state in which it is: lifted, if any of it is a copy.
    pub fn state(&self) -> State {
        self.state.unwrap_or(State::Lifted)
    }

    fn chosen(&self) -> Chosen {
        let (pid, start) = self.identity;
        Chosen { pid, start: Some(start) }
    }

    fn lift(&mut self) -> Result<Change> {
        // A lift that fails halfway leaves copies, which the end of the experiment has to undo.
        self.state = None;
        let lifted = attach(self.chosen(), &self.attach);
        // What it shows counts, not what the lift says.
        self.state = copies(self.pid).ok().map(|copies| match copies.is_empty() {
            true => State::Bare,
            false => State::Lifted,
        });
        let change = lifted.map_err(|why| anyhow!("not lifted: {why}"))?;
        self.count(&change);
        Ok(change)
    }

    /// Checks that a lift has made as many copies as the first one. The process may have unmapped some of the
    /// objects since, of which no lift complains.
    fn is_whole(&mut self, change: &Change) -> Result<()> {
        let bytes = |copies: &[Range]| copies.iter().map(|copy| copy.len()).sum::<u64>();
        let (now, first) = (bytes(&copies(self.pid)?), bytes(&self.replaced));
        let Some(why) = change.complaints.first().filter(|_| now < first) else { return Ok(()) };
        self.state = (now == 0).then_some(State::Bare);
        bail!("only {} of {} could be lifted again: {why}", human_bytes(now), human_bytes(first));
    }

    fn count(&mut self, change: &Change) {
        self.count_stops(change.borrowed, Duration::from_micros(change.longest_stop_us));
    }

    fn count_stops(&mut self, count: u64, longest: Duration) {
        let longest = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX);
        self.switching.borrowed += count;
        self.switching.longest_stop_us = self.switching.longest_stop_us.max(longest);
    }

    /// Reads a byte of each page from outside, for which the kernel maps the page in the process.
    fn map_all(&self) {
        let process = Process::new(self.pid).with_memory();
        for range in &self.replaced {
            for addr in (range.start.0..range.end.0).step_by(SMALLEST_PAGE) {
                // A page that cannot be read was unmapped by the program, and then it needs none.
                let _ = process.read_memory(Addr(addr), &mut [0]);
            }
        }
    }
}

/// Returns where text and rodata of a process are copies.
fn copies(pid: u32) -> Result<Vec<Range>> {
    Ok(replaced(&snapshot_of(pid)?).into_iter().map(|copy| copy.range).collect())
}

fn snapshot_of(pid: u32) -> Result<Snapshot> {
    snapshot::live(Some(Process::new(pid).with_memory().pid()), 0).map_err(|e| anyhow!("{e}"))
}
