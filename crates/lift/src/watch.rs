// SPDX-License-Identifier: Apache-2.0
//! Stays in the foreground and lifts processes that run, now and later: those that a user has chosen.
//!
//! The same watcher as that of a run decides and lifts (`live`). It holds nothing that the processes need: they
//! stay lifted when it ends.

use crate::attach::{AttachOptions, Running};
use crate::live::ends::Woken;
use crate::live::process_set::ProcessSet;
use crate::live::{LiveLift, Wanted};
use hugelift_core::collapse::Budget;
use hugelift_core::heat::follow::Limits;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};

pub use crate::live::event::{Event, Summary};
pub use crate::live::membership::{Find, Given, More};

/// What is watched, and how.
pub struct WatchOptions {
    /// Processes by their ids.
    pub pids: BTreeSet<u32>,
    /// Finds further processes, at any time.
    pub find: Option<Find>,
    /// Gives further processes, at any time.
    pub more: Option<More>,
    /// Lifts all programs that the processes start, not only what they fork.
    pub all_children: bool,
    /// Lifts at once, not when it is worth its cost.
    pub eager: bool,
    /// Copies only the code in use, within these limits.
    pub hot: Option<Limits>,
    /// What to lift, and onto what. Its limits of CPU time and memory hold for the whole watch.
    pub attach: AttachOptions,
}

impl fmt::Debug for WatchOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WatchOptions { pids, find: _, more: _, all_children, eager, hot, attach } = self;
        f.debug_struct("WatchOptions")
            .field("pids", pids)
            .field("all_children", all_children)
            .field("eager", eager)
            .field("hot", hot)
            .field("attach", attach)
            .finish_non_exhaustive()
    }
}

/// How a watch ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watched {
    /// All processes have ended, or it was asked to end.
    Ended(Summary),
    /// None of the processes could be watched, and no other could come.
    Nobody,
    /// An event could not be told. The caller may not know why: a child may have tried it.
    Unheard,
}

/// Watches until `stop` can be read, or until all processes have ended and no other can come. `tell` takes each
/// event and returns whether to go on. `ready` is called after the first poll, with the number of processes.
///
/// # Errors
/// The policy is malformed.
pub fn watch(
    options: WatchOptions,
    stop: BorrowedFd,
    mut tell: impl FnMut(Event<'_>) -> bool + 'static,
    ready: impl FnOnce(usize),
) -> Result<Watched, String> {
    let WatchOptions { pids, find, more, all_children, eager, hot, attach } = options;
    let mut policy = attach.policy.policy()?;
    let Running { mapped, anonymous, notes } = Running::of(&mut policy, attach.copies_only);
    let budget = Budget { cpu: attach.cpu, added: attach.added, spare: policy.spare };
    let wanted = Wanted::new(&policy, attach.seccomp).written(&mapped).explained();
    let wanted = wanted.anonymous(anonymous, budget, eager).hot(hot);
    let mut is_heard = true;
    for note in notes {
        is_heard &= tell(Event::Note(note));
    }
    let (processes, gone) = ProcessSet::of_chosen(&pids, find, more, all_children, eager);
    for pid in gone {
        is_heard &= tell(Event::Refused { pid, why: "there is no such process (any more)" });
    }
    let mut live = LiveLift::new(processes, wanted, Box::new(tell));
    let stops = || !is_heard || is_readable(stop);
    let nobody = live.count() == 0 && live.is_over();
    let mut delay = live.turn(&stops);
    if nobody {
        return Ok(Watched::Nobody);
    }
    ready(live.count());
    while let Some(time) = delay.filter(|_| is_heard && live.is_heard()) {
        if live.wait(time, Some(stop)) == Woken::Other {
            break;
        }
        delay = live.turn(&stops);
    }
    match is_heard && live.is_heard() {
        true => Ok(Watched::Ended(live.summary())),
        false => Ok(Watched::Unheard),
    }
}

fn is_readable(fd: BorrowedFd) -> bool {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, PollTimeout::ZERO) {
        Ok(count) => count > 0,
        Err(error) => error != Errno::EINTR,
    }
}
