// SPDX-License-Identifier: Apache-2.0
//! Decides which processes belong to a set: a program with what it starts, or what a user has chosen.

use super::process::{Image, image, owner};
use hugelift_linux::proc::procfs::Process;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The variable that marks the environment of a run whose children are to be lifted: the id of its program and
/// the time of its start.
pub(crate) const MARK: &str = "HUGELIFT_RUN";

/// How often an environment that seems empty is read again, and how long before each time.
const READINGS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(1);

/// Returns which of these processes a user means.
pub type Find = Box<dyn FnMut(&BTreeSet<u32>) -> BTreeSet<u32>>;

/// A process that is given, or taken back, while the set is watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Given {
    /// Its id.
    pub pid: u32,
    /// The time of its start in clock ticks since boot, where it is known.
    pub start: Option<u64>,
    /// It is not to be watched any more.
    pub is_taken_back: bool,
}

/// Returns the processes that were given since the last call; `None` if no other will come.
pub type More = Box<dyn FnMut() -> Option<Vec<Given>>>;

/// Decides which processes belong to a set.
#[derive(Debug)]
pub(super) enum Membership {
    /// The processes of a run.
    Run(Run),
    /// The processes that a user has chosen.
    Chosen(Chosen),
}

/// The processes of a run.
#[derive(Debug)]
pub(super) struct Run {
    /// The program.
    pub(super) root: u32,
    /// The file that the program runs, or ran last.
    image: Option<Image>,
    /// The user that the program had at its start.
    owner: Option<u32>,
    /// The environment's entry that marks the run; `None` if only the program itself is lifted.
    mark: Option<Vec<u8>>,
}

/// The processes that a user has chosen.
pub(super) struct Chosen {
    /// The processes that were named by their ids, with the time of their start.
    given: BTreeMap<u32, u64>,
    /// Finds the others: by name, control group or unit.
    find: Option<Find>,
    /// Gives more processes later. Such a process leaves the set when it becomes another program, and its children do not belong
    /// to the set: the giver meant this process alone.
    more: Option<More>,
    /// All that they start belongs to them, not only what they fork.
    all_children: bool,
}

/// What becomes of a member that has become another program by execve(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AfterExec {
    /// It stays.
    Stays,
    /// It does not belong to the set any more.
    Leaves,
    /// It has to be found anew.
    Unknown,
}

impl Run {
    pub(super) fn new(root: u32, mark: Option<&str>) -> Run {
        let mark = mark.map(|mark| format!("{MARK}={mark}").into());
        Run { root, image: image(root), owner: owner(root), mark }
    }

    /// Returns whether the environment of a process of this user has the mark.
    fn has_mark(&self, pid: u32) -> bool {
        let Some(mark) = &self.mark else { return false };
        let is_ours = self.owner.is_some() && owner(pid) == self.owner;
        is_ours && environment(pid).is_some_and(|all| all.split(|b| *b == 0).any(|entry| entry == mark))
    }
}

/// Reads the environment of a process. In execve(2) it is empty for some microseconds. It is also empty if the program was
/// started without an environment.
fn environment(pid: u32) -> Option<Vec<u8>> {
    let read = || Process::new(pid).read("environ").ok();
    let mut all = read()?;
    for _ in 0..READINGS {
        if !all.is_empty() {
            break;
        }
        std::thread::sleep(PAUSE);
        all = read()?;
    }
    Some(all)
}

impl Chosen {
    pub(super) fn new(find: Option<Find>, more: Option<More>, all_children: bool) -> Chosen {
        Chosen { given: BTreeMap::new(), find, more, all_children }
    }

    /// Adds a process by its id.
    pub(super) fn give(&mut self, pid: u32, start: u64) {
        self.given.insert(pid, start);
    }
}

impl Membership {
    /// Returns the processes among `candidates` that belong to the set, whoever has started them.
    pub(super) fn find(&mut self, candidates: &BTreeSet<u32>) -> BTreeSet<u32> {
        match self {
            Membership::Run(run) => candidates.iter().copied().filter(|pid| run.has_mark(*pid)).collect(),
            Membership::Chosen(Chosen { find, .. }) if candidates.is_empty() || find.is_none() => {
                BTreeSet::new()
            }
            Membership::Chosen(Chosen { find, .. }) => {
                find.as_mut().map(|find| find(candidates)).unwrap_or_default()
            }
        }
    }

    /// Returns whether a child that runs `child` belongs to its parent's set; the parent runs `parent`.
    pub(super) fn takes_child(&self, child: Image, parent: Image) -> bool {
        match self {
            Membership::Run(run) => run.mark.is_some() || run.image == Some(child),
            Membership::Chosen(chosen) => chosen.all_children || chosen.more.is_none() && child == parent,
        }
    }

    /// Returns what becomes of a member that ran `old` and runs `new` now.
    pub(super) fn after_exec(&mut self, pid: u32, old: Image, new: Image) -> AfterExec {
        let stays = match self {
            Membership::Run(run) if run.root == pid => {
                run.image = Some(new);
                true
            }
            Membership::Run(run) => run.mark.is_some() || run.image == Some(new),
            Membership::Chosen(chosen) => {
                chosen.all_children || old == new || chosen.given.contains_key(&pid)
            }
        };
        match (stays, self.finds()) {
            (true, _) => AfterExec::Stays,
            (_, true) => AfterExec::Unknown,
            (_, false) => AfterExec::Leaves,
        }
    }

    /// Records the end of a process: a later one may get its id.
    pub(super) fn ended(&mut self, pid: u32) {
        if let Membership::Chosen(chosen) = self {
            chosen.given.remove(&pid);
        }
    }

    /// Returns the processes that were given since the last call.
    pub(super) fn more(&mut self) -> Vec<Given> {
        let Membership::Chosen(Chosen { more, .. }) = self else { return Vec::new() };
        let given = more.as_mut().map(|more| more());
        if matches!(given, Some(None)) {
            *more = None;
        }
        given.flatten().unwrap_or_default()
    }

    /// Returns whether processes may be given later.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Membership::Chosen(Chosen { more: Some(_), .. }))
    }

    /// Returns whether processes are found by what they are, which each may become at any time.
    pub(super) fn finds(&self) -> bool {
        matches!(self, Membership::Chosen(Chosen { find: Some(_), .. }))
    }
}

/// Returns a value that marks the run of the program that this process becomes.
pub(crate) fn new_mark() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}.{}", std::process::id(), now.as_nanos())
}

impl fmt::Debug for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Chosen { given, find, more, all_children } = self;
        f.debug_struct("Chosen")
            .field("given", given)
            .field("finds", &find.is_some())
            .field("is_open", &more.is_some())
            .field("all_children", all_children)
            .finish()
    }
}
