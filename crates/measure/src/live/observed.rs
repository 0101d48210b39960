// SPDX-License-Identifier: Apache-2.0
//! What processes do before the experiment, window by window.

use super::cpu_clock::CpuClock;
use super::work::{Counts, WINDOWS, Window, Work, WorkCounter};
use anyhow::{Result, ensure};
use hugelift_core::proc_stat::Identity;
use hugelift_linux::proc::procfs::Process;
use std::collections::BTreeMap;
use std::time::Duration;

/// What one process has done so far.
#[derive(Clone, Copy, PartialEq, Debug)]
struct SoFar {
    cpu: Duration,
    counts: Counts,
    /// Page faults of the children that it has waited for, which shows whether there was one.
    faults_of_children: u64,
}

/// What processes have done so far.
#[derive(Clone, PartialEq, Debug)]
pub struct Observed(BTreeMap<Identity, SoFar>);

impl Observed {
    /// Reads processes now, each with its clock and its counter. One that has ended is left out.
    ///
    /// # Errors
    /// All have ended.
    pub fn now<'a>(
        processes: impl Iterator<Item = (Identity, &'a CpuClock, &'a WorkCounter)>,
    ) -> Result<Observed> {
        let read = |(identity, clock, counter): (Identity, &CpuClock, &WorkCounter)| {
            let (cpu, counts) = clock.with(|| counter.counts())?;
            let stat = Process::new(identity.0).stat().ok()?;
            let lives = stat.is_whole(identity);
            let faults_of_children = stat.minor_faults_of_children;
            lives.then_some((identity, SoFar { cpu, counts, faults_of_children }))
        };
        let all: BTreeMap<Identity, SoFar> = processes.filter_map(read).collect();
        ensure!(!all.is_empty(), "no process is left whose CPU time could be read");
        Ok(Observed(all))
    }

    /// Returns what was done since `before` by the processes that are in both.
    fn since(&self, before: &Observed) -> Window {
        let both = || self.0.iter().filter_map(|(identity, now)| Some((before.0.get(identity)?, now)));
        let cpu = both().map(|(before, now)| now.cpu.saturating_sub(before.cpu).as_secs_f64()).sum();
        let of = |work: Work, index: usize| -> Option<f64> {
            let grown = |(before, now): (&SoFar, &SoFar)| {
                // What a child has done in its whole life was added.
                let is_mixed = work.passes_to_parent() && now.faults_of_children != before.faults_of_children;
                if is_mixed { None } else { Some(now.counts[index]? - before.counts[index]?) }
            };
            both().map(grown).sum()
        };
        let mut kinds = Work::ALL.into_iter().enumerate();
        let counts = std::array::from_fn(|_| kinds.next().and_then(|(index, work)| of(work, index)));
        Window { cpu, counts }
    }
}

/// Observes processes: `read` reads them, and `wait` waits for the end of a window.
///
/// # Errors
/// One of the two fails.
pub fn observe(
    read: impl Fn() -> Result<Observed>,
    mut wait: impl FnMut() -> Result<()>,
) -> Result<Vec<Window>> {
    let mut before = read()?;
    let mut windows = Vec::with_capacity(WINDOWS);
    for _ in 0..WINDOWS {
        wait()?;
        let now = read()?;
        windows.push(now.since(&before));
        before = now;
    }
    Ok(windows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(all: &[(u32, u64, f64, u64)]) -> Observed {
        let one = |(pid, cpu_ms, count, faults): &(u32, u64, f64, u64)| {
            let counts = [Some(*count), Some(2.0 * count), None, Some(3.0 * count)];
            let so_far = SoFar { cpu: Duration::from_millis(*cpu_ms), counts, faults_of_children: *faults };
            ((*pid, 7), so_far)
        };
        Observed(all.iter().map(one).collect())
    }

    #[test]
    fn issue_31_6_a_window_is_of_the_processes_that_are_there_at_both_ends() {
        let before = observed(&[(1, 100, 10.0, 0), (2, 200, 20.0, 0), (3, 900, 90.0, 0)]);
        let after = observed(&[(1, 110, 15.0, 0), (2, 220, 40.0, 0), (4, 5000, 500.0, 0)]);
        let window = after.since(&before);
        assert!((window.cpu - 0.03).abs() < 1e-9, "{window:?}");
        assert_eq!(window.counts, [Some(25.0), Some(50.0), None, Some(75.0)]);
    }

    #[test]
    fn issue_31_6_what_a_child_has_read_is_no_work_of_its_parent() {
        let before = observed(&[(1, 100, 10.0, 0)]);
        let window = observed(&[(1, 110, 1000.0, 5)]).since(&before);
        assert_eq!(window.counts, [Some(990.0), None, None, None]);
    }
}
