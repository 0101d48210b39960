// SPDX-License-Identifier: Apache-2.0
//! All descendants of a process, and their CPU time.

use anyhow::{Context as _, Result};
use hugelift_core::proc_stat::Stat;
use hugelift_linux::proc::clock::ticks_per_second;
use hugelift_linux::proc::procfs::Process;
use std::collections::HashMap;

/// How often a process and its descendants are read, until none ends between the two.
const READINGS: u32 = 8;

/// Returns all descendants of `root`, without `root`: parents before their children.
///
/// # Errors
/// /proc cannot be read.
pub fn descendants(root: u32) -> Result<Vec<Stat>> {
    let mut children: HashMap<u32, Vec<Stat>> = HashMap::new();
    for pid in Process::all().context("cannot read /proc")? {
        // A process may end meanwhile.
        if let Ok(stat) = Process::new(pid).stat() {
            children.entry(stat.parent).or_default().push(stat);
        }
    }
    let mut found: Vec<Stat> = children.remove(&root).unwrap_or_default();
    let mut next = 0;
    while let Some(stat) = found.get(next) {
        found.extend(children.remove(&stat.pid).unwrap_or_default());
        next += 1;
    }
    Ok(found)
}

/// Returns user and system time of a process and of the children that it has waited for, in clock ticks.
pub fn ticks(stat: &Stat) -> u64 {
    stat.cpu.saturating_add(stat.cpu_of_children)
}

/// The CPU time of a process and of all its descendants, in clock ticks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessTree {
    /// That of the process itself.
    pub own: u64,
    /// That of its children that have ended.
    ended: u64,
    /// Its descendants that live: their own, and that of their ended children.
    living: HashMap<(u32, u64), (u64, u64)>,
}

impl ProcessTree {
    /// Reads the CPU times now.
    ///
    /// # Errors
    /// There is no such process, or /proc cannot be read.
    pub fn now(root: u32) -> Result<ProcessTree> {
        let mut stat = Process::new(root).stat()?;
        let mut readings = 0;
        loop {
            let living =
                descendants(root)?.iter().map(|s| (s.identity(), (s.cpu, s.cpu_of_children))).collect();
            let now = Process::new(root).stat()?;
            readings += 1;
            // A child for which it has waited meanwhile may be in neither. If it does so all the time, its children are missing anyway.
            if now.cpu_of_children == stat.cpu_of_children || readings == READINGS {
                return Ok(ProcessTree { own: stat.cpu, ended: stat.cpu_of_children, living });
            }
            stat = now;
        }
    }

    /// Returns that of all descendants.
    pub fn of_children(&self) -> u64 {
        self.living
            .values()
            .map(|(own, ended)| own.saturating_add(*ended))
            .fold(self.ended, u64::saturating_add)
    }

    /// Returns the id of the descendant that has used most since `before`; `None` if none that lives has used any.
    pub fn busiest_since(&self, before: &ProcessTree) -> Option<u32> {
        let used = |(id, (own, _)): (&(u32, u64), &(u64, u64))| {
            (own.saturating_sub(before.living.get(id).map_or(0, |(own, _)| *own)), id.0)
        };
        self.living.iter().map(used).max().filter(|(used, _)| *used > 0).map(|(_, pid)| pid)
    }
}

/// Returns CPU seconds, to a hundredth or so, of all descendants of this process that still run, and of what those
/// have waited for.
///
/// # Errors
/// /proc cannot be read.
pub fn cpu_of_descendants() -> Result<f64> {
    let ticks: u64 = descendants(std::process::id())?.iter().map(ticks).fold(0, u64::saturating_add);
    Ok(ticks as f64 / ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_children_are_found_with_theirs() {
        let _alone = crate::child::alone();
        let mut child = std::process::Command::new("sh")
            .args(["-c", "exec 3<&0; cat <&3 & wait"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let of_child = || descendants(child.id()).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while of_child().is_empty() && std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let (own, its) = (descendants(std::process::id()).unwrap(), of_child());
        assert!(own.iter().any(|s| s.pid == child.id()), "{own:?}");
        assert_eq!(its.len(), 1, "{its:?}");
        assert_eq!(its[0].parent, child.id());
        // Between the two readings it may have gone from running to sleeping.
        assert!(own.iter().any(|s| s.pid == its[0].pid), "{own:?} {its:?}");
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
