// SPDX-License-Identifier: Apache-2.0
//! Checks that the processes that are measured do the work, and not others that they start.

use super::members::Members;
use anyhow::{Result, bail};
use hugelift_core::proc_stat::Identity;
use hugelift_linux::proc::clock::{of_ticks, ticks_per_second};
use hugelift_linux::proc::procfs::Process;
use hugelift_measure::live::{Reading, WaitedFor};
use hugelift_measure::tree::ProcessTree;
use std::time::Duration;

/// The CPU time of children, in clock ticks, that does not count.
const SLACK: u64 = 5;
/// How much CPU time processes of a batch use before it is said that others do the work. Where all have little of a CPU, a
/// few that end tell nothing.
const ENOUGH: Duration = Duration::from_millis(500);

/// CPU time of processes that are not measured.
pub struct Uncounted {
    /// A process that is measured alone, and its children before the experiment.
    tree: Option<ProcessTree>,
    /// What is in the periods.
    counted: Duration,
    /// That of processes that ended within a period.
    pub ended: Duration,
    waited_for: WaitedFor,
}

impl Uncounted {
    /// Begins.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn new(members: &Members) -> Result<Uncounted> {
        let tree = match members {
            Members::One(pid) => Some(ProcessTree::now(*pid)?),
            Members::WithChildren(_) | Members::Group(_) => None,
        };
        Ok(Uncounted {
            tree,
            counted: Duration::ZERO,
            ended: Duration::ZERO,
            waited_for: WaitedFor::default(),
        })
    }

    /// Checks a period.
    ///
    /// # Errors
    /// Processes that are not measured have used more CPU time than those that are, since the experiment began. The line says
    /// what measures them.
    pub fn check(&mut self, members: &Members, first: &Reading, last: &Reading) -> Result<()> {
        self.counted += last.cpu_since(first);
        if let (Members::One(pid), Some(tree)) = (members, &self.tree) {
            return works_itself(*pid, tree);
        }
        // What ended between two periods is of no interest.
        self.waited_for.since_last(first, zombie);
        self.ended += self.waited_for.since_last(last, zombie);
        if self.ended + self.counted < ENOUGH || self.ended <= self.counted {
            return Ok(());
        }
        bail!(
            "processes that began or ended within a period used {:.2} s of CPU time, and those that ran at both of its \
             ends used {:.2} s: a shorter --period counts more of them, and 'hugelift compare --server CMD' counts all",
            self.ended.as_secs_f64(),
            self.counted.as_secs_f64()
        );
    }
}

/// Returns the CPU time of a process that has ended, and of its children, while nobody has waited for it.
fn zombie(identity: Identity) -> Option<Duration> {
    let stat = Process::new(identity.0).stat().ok().filter(|stat| stat.identity() == identity)?;
    Some(of_ticks(stat.cpu.saturating_add(stat.cpu_of_children)))
}

/// Checks that a process does the work itself, where its children are neither lifted nor measured.
fn works_itself(pid: u32, before: &ProcessTree) -> Result<()> {
    let now = ProcessTree::now(pid)?;
    let (own, of_children) =
        (now.own.saturating_sub(before.own), now.of_children().saturating_sub(before.of_children()));
    if of_children <= own + SLACK {
        return Ok(());
    }
    let seconds = |ticks: u64| ticks as f64 / ticks_per_second() as f64;
    let help = match now.busiest_since(before) {
        Some(child) => format!(
            "'hugelift compare --pid {pid} --children' measures them together, and 'hugelift compare --pid {child}' \
             measures the busiest of them"
        ),
        None => "each ends soon; 'hugelift compare --server CMD' counts them too".into(),
    };
    bail!(
        "its children used {:.2} s of CPU time and it {:.2} s, and compare --pid measures one process: {help}",
        seconds(of_children),
        seconds(own)
    );
}
