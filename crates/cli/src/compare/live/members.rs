// SPDX-License-Identifier: Apache-2.0
//! Which processes are compared with themselves.

use super::options::LiveArgs;
use crate::attach::select::Choice;
use anyhow::{Result, anyhow};
use hugelift_core::printable::Escape as _;
use hugelift_core::proc_stat::Identity;
use hugelift_lift::attach::Name;
use hugelift_linux::proc::procfs::Process;
use hugelift_measure::tree::descendants;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;

/// Which processes are meant, now and later.
#[derive(Debug)]
pub enum Members {
    /// One process.
    One(u32),
    /// A process and its descendants.
    WithChildren(u32),
    /// Those of a control group or of a unit.
    Group(Choice),
}

impl Members {
    /// Takes over the options; `None` if no process that runs is meant.
    pub fn of(live: &LiveArgs) -> Option<Members> {
        match (live.pid, &live.unit, &live.cgroup) {
            (Some(pid), _, _) if live.children => Some(Members::WithChildren(pid)),
            (Some(pid), _, _) => Some(Members::One(pid)),
            (None, Some(unit), _) => Some(Members::Group(Choice::Unit(unit.clone()))),
            (None, None, Some(group)) => Some(Members::Group(Choice::Group(group.clone()))),
            (None, None, None) => None,
        }
    }

    /// Returns those that live, and never this process.
    ///
    /// # Errors
    /// There is none, or /proc cannot be read.
    pub fn now(&self) -> Result<BTreeSet<Identity>> {
        let stats = match self {
            Members::One(pid) => vec![Process::new(*pid).stat()?],
            Members::WithChildren(pid) => {
                let mut all = vec![Process::new(*pid).stat()?];
                all.extend(descendants(*pid)?);
                all
            }
            Members::Group(choice) => {
                let pids = choice.processes().map_err(|failure| anyhow!(failure.message))?;
                // A process may end meanwhile.
                pids.into_iter().filter_map(|pid| Process::new(pid).stat().ok()).collect()
            }
        };
        let own = std::process::id();
        let is_one = matches!(self, Members::One(_));
        // What ended before it was named is for the reader of its memory to say.
        let lives = stats.iter().filter(|stat| is_one || (stat.pid != own && !stat.has_ended()));
        Ok(lives.map(|stat| stat.identity()).collect())
    }

    /// Returns the process that was named, or the oldest of a group.
    pub fn first(&self, now: &BTreeSet<Identity>) -> Option<Identity> {
        match self {
            Members::One(pid) | Members::WithChildren(pid) => now.iter().find(|one| one.0 == *pid).copied(),
            Members::Group(_) => now.iter().min_by_key(|(pid, start)| (*start, *pid)).copied(),
        }
    }

    /// Returns what they are called.
    pub fn name(&self) -> String {
        match self {
            Members::One(pid) => Name::of(*pid).to_string(),
            Members::WithChildren(pid) => format!("{} with its children", Name::of(*pid)),
            Members::Group(Choice::Unit(unit)) => format!("unit {}", OsStr::new(unit).escaped()),
            Members::Group(Choice::Group(group)) => format!("control group {}", group.escaped()),
            Members::Group(choice) => choice.to_string(),
        }
    }

    /// Returns the words by which `hugelift attach` and `hugelift restore` are told which processes they are.
    pub fn words(&self, now: impl Iterator<Item = Identity>) -> String {
        match self {
            Members::One(pid) => pid.to_string(),
            Members::WithChildren(_) => now.map(|(pid, _)| pid.to_string()).collect::<Vec<_>>().join(" "),
            Members::Group(choice) => choice.to_string(),
        }
    }

    /// Returns whether one process alone is meant.
    pub fn is_one(&self) -> bool {
        matches!(self, Members::One(_))
    }

    /// Returns whether the experiment goes on when the first process has ended.
    pub fn outlive_first(&self) -> bool {
        matches!(self, Members::Group(_))
    }
}

impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}
