// SPDX-License-Identifier: Apache-2.0
//! The work of a process that has no counter of its own: what the kernel counts of it, where its CPU time for one of these is
//! steady.

use super::waiting::Waits;
use crate::perf::counters::{Code, Counters};
use crate::perf::tracepoint;
use crate::stats;
use anyhow::{Context as _, Result};
use hugelift_linux::proc::procfs::Process;
use serde::Serialize;
use std::cell::RefCell;

/// How often each state is observed before the experiment.
pub const WINDOWS: usize = 20;
/// The largest coefficient of variation of the CPU time for one of a kind, over the windows of a state.
const STEADY: f64 = 0.25;
/// The fewest of a kind in a window. Of fewer, each is a large part.
const FEWEST: f64 = 20.0;
/// Of so many windows one may be an outlier, as by a pause of a collector of garbage: the ranks of the experiment do not mind it.
const OUTLIERS: usize = 10;
/// By how much the mix may differ between the states, beside three standard errors.
const ALIKE: f64 = 0.05;

/// What the kernel counts of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// System calls (the tracepoint raw_syscalls:sys_enter).
    SystemCalls,
    /// Calls like read(2) and write(2) (`syscr` and `syscw` in /proc/PID/io).
    ReadsAndWrites,
    /// How often one of its threads gave up its CPU to wait (`voluntary_ctxt_switches` in status). A switch that the scheduler
    /// forces is none of these: it tells what else the machine does.
    VoluntarySwitches,
    /// Bytes that these calls have moved (`rchar` and `wchar`).
    Bytes,
}

impl Work {
    /// All, in the order in which they are tried.
    pub const ALL: [Work; 4] =
        [Work::SystemCalls, Work::ReadsAndWrites, Work::VoluntarySwitches, Work::Bytes];

    /// Returns what one of it is called.
    pub fn unit(self) -> &'static str {
        match self {
            Work::SystemCalls => "system call",
            Work::ReadsAndWrites => "call that reads or writes",
            Work::VoluntarySwitches => "voluntary context switch",
            Work::Bytes => "byte that it reads or writes",
        }
    }

    /// Returns whether the kernel adds what a child has done to its parent, when the parent waits for its end.
    pub fn passes_to_parent(self) -> bool {
        matches!(self, Work::ReadsAndWrites | Work::Bytes)
    }

    fn index(self) -> usize {
        Work::ALL.iter().position(|work| *work == self).unwrap_or_default()
    }
}

/// What has been counted so far, in the order of [`Work::ALL`]. `None`: it cannot be counted here.
pub type Counts = [Option<f64>; Work::ALL.len()];

/// Counts the work of a process.
#[derive(Debug)]
pub struct WorkCounter {
    pid: u32,
    /// System calls.
    calls: Option<Counters>,
    waits: RefCell<Waits>,
}

impl WorkCounter {
    /// Opens what can be counted of a process here: only root may count system calls.
    pub fn open(pid: u32) -> WorkCounter {
        let threads = Process::new(pid).threads();
        let open = |id: u64| Counters::open_for_process(&[vec![Code::tracepoint(id)]], &threads).ok();
        let calls = tracepoint::number("raw_syscalls/sys_enter").and_then(open);
        let calls = calls.filter(|counters| !counters.user_only);
        calls.iter().for_each(Counters::enable);
        WorkCounter { pid, calls, waits: RefCell::default() }
    }

    /// Reads what was counted so far.
    pub fn counts(&self) -> Counts {
        Work::ALL.map(|work| self.counted(work))
    }

    fn counted(&self, work: Work) -> Option<f64> {
        match work {
            Work::SystemCalls => {
                let groups = self.calls.as_ref()?.read();
                Some(groups.first()?.first().copied().flatten()?.value as f64)
            }
            Work::ReadsAndWrites => moved(self.pid, ["syscr", "syscw"]),
            Work::VoluntarySwitches => Some(self.waits.borrow_mut().count(self.pid)? as f64),
            Work::Bytes => moved(self.pid, ["rchar", "wchar"]),
        }
    }

    /// Reads one of them.
    ///
    /// # Errors
    /// It cannot be read, for instance because the process has ended.
    pub fn count(&self, work: Work) -> Result<f64> {
        let missing = || format!("the number of each {} of process {} cannot be read", work.unit(), self.pid);
        self.counted(work).with_context(missing)
    }
}

/// Returns the sum of two fields of /proc/PID/io (proc_pid_io(5)).
fn moved(pid: u32, [one, other]: [&str; 2]) -> Option<f64> {
    let text = String::from_utf8(Process::new(pid).read("io").unwrap_or_default()).unwrap_or_default();
    let field = |name: &str| -> Option<f64> {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.trim().parse().ok())
    };
    Some(field(one)? + field(other)?)
}

/// What happened between two readings.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Window {
    /// CPU time, seconds.
    pub cpu: f64,
    /// What was counted.
    pub counts: Counts,
}

/// A measure of work, and how steady it is.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Steady {
    /// What is counted.
    pub work: Work,
    /// The larger of the two states' coefficients of variation of the CPU time for one.
    pub variation: f64,
}

/// Chooses the first measure of work for one of which the process takes about the same CPU time in all windows of a state, and
/// that stands for the same mix of work in both.
///
/// # Errors
/// One line: what is wrong with each of them.
pub fn choose(states: [&[Window]; 2]) -> Result<Steady, String> {
    let mut wrong = Vec::new();
    let states = states.map(with_a_cpu);
    for work in Work::ALL {
        match judge(work, [&states[0], &states[1]]) {
            Ok(variation) => return Ok(Steady { work, variation }),
            Err(why) => wrong.push(format!("CPU time per {}: {why}", work.unit())),
        }
    }
    Err(wrong.join("; "))
}

/// Returns the windows in which the process had a CPU for about as long as in the others. On a busy machine it may get
/// none for a while, which says nothing of its work.
fn with_a_cpu(windows: &[Window]) -> Vec<Window> {
    let mut times: Vec<f64> = windows.iter().map(|window| window.cpu).collect();
    times.sort_by(f64::total_cmp);
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    windows.iter().copied().filter(|window| window.cpu >= median / 4.0).collect()
}

/// Leaves out the windows whose CPU time for one of a kind is the farthest from that of most, one of [`OUTLIERS`].
fn without_outliers(work: Work, windows: &[Window]) -> Vec<Window> {
    // Without any of the kind it is infinite.
    let cost = |window: &Window| window.cpu / window.counts[work.index()].unwrap_or(1.0);
    let mut costs: Vec<f64> = windows.iter().map(cost).collect();
    costs.sort_by(f64::total_cmp);
    let median = costs.get(costs.len() / 2).copied().unwrap_or_default();
    let mut near: Vec<Window> = windows.to_vec();
    let distance = |window: &Window| (cost(window) - median).abs();
    near.sort_by(|one, other| distance(one).total_cmp(&distance(other)));
    near.truncate(windows.len() - windows.len() / OUTLIERS);
    near
}

/// Returns the coefficient of variation, or why the measure is none.
fn judge(work: Work, states: [&[Window]; 2]) -> Result<f64, String> {
    let states = states.map(|windows| without_outliers(work, windows));
    let mut largest: f64 = 0.0;
    for windows in &states {
        let counts = windows.iter().map(|window| window.counts[work.index()]);
        let counts: Vec<f64> = counts.collect::<Option<_>>().ok_or(match work {
            Work::SystemCalls => "only root counts them",
            _ => "is not counted here",
        })?;
        let fewest = counts.iter().copied().fold(f64::INFINITY, f64::min);
        if counts.is_empty() || fewest < FEWEST {
            return Err(format!("only {fewest:.0} in one of the periods"));
        }
        let ratios: Vec<f64> =
            windows.iter().zip(&counts).map(|(window, count)| window.cpu / count).collect();
        let average = mean(&ratios);
        if average <= 0.0 {
            return Err("it used no CPU time".into());
        }
        largest = largest.max(deviation(&ratios) / average);
    }
    if largest > STEADY {
        return Err(format!("varies by {:.0} %", 100.0 * largest));
    }
    // How often a thread waits depends on what else the machine does.
    let mix = [Work::SystemCalls, Work::ReadsAndWrites, Work::Bytes];
    for other in mix.into_iter().filter(|other| *other != work) {
        let of = |windows: &[Window]| -> Option<Vec<f64>> {
            let enough = |window: &Window| window.counts[other.index()].filter(|count| *count >= FEWEST);
            let ratio = |window: &Window| Some(enough(window)? / window.counts[work.index()]?);
            windows.iter().map(ratio).collect()
        };
        let (Some(one), Some(two)) = (of(&states[0]), of(&states[1])) else { continue };
        if !is_alike(&one, &two) {
            return Err(format!(
                "the mix of work differs between the states: {:.3} and {:.3} times a {}",
                mean(&one),
                mean(&two),
                other.unit()
            ));
        }
    }
    Ok(largest)
}

/// Returns whether the means of two samples agree within their errors and [`ALIKE`].
fn is_alike(one: &[f64], two: &[f64]) -> bool {
    let error = |sample: &[f64]| deviation(sample).powi(2) / sample.len() as f64;
    let (first, second) = (mean(one), mean(two));
    let allowed = ALIKE * first.abs().max(second.abs()) + 3.0 * (error(one) + error(two)).sqrt();
    (first - second).abs() <= allowed
}

/// Returns the mean of a sample, and its standard deviation; 0 where there are too few values.
fn mean(sample: &[f64]) -> f64 {
    stats::mean(sample).unwrap_or(0.0)
}

fn deviation(sample: &[f64]) -> f64 {
    stats::deviation(sample).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns windows with these numbers of system calls, of which each takes `cost` seconds, and one read a call.
    fn windows(calls: &[f64], cost: f64) -> Vec<Window> {
        calls
            .iter()
            .map(|calls| Window {
                cpu: calls * cost,
                counts: [Some(*calls), Some(*calls), Some(0.0), Some(calls * 100.0)],
            })
            .collect()
    }

    #[test]
    fn issue_31_6_cpu_time_per_system_call_is_taken_where_it_is_steady() {
        let bare = windows(&[1000.0, 1200.0, 800.0], 1e-5);
        let lifted = windows(&[1100.0, 1000.0, 900.0], 0.9e-5);
        let steady = choose([&bare, &lifted]).unwrap();
        assert_eq!(steady.work, Work::SystemCalls);
        assert!(steady.variation < 1e-9, "{steady:?}");
    }

    #[test]
    fn issue_31_6_another_measure_is_taken_where_system_calls_are_not_steady_or_not_counted() {
        let mut bare = windows(&[1000.0, 1200.0, 800.0], 1e-5);
        for (window, calls) in bare.iter_mut().zip([5000.0, 100.0, 1000.0]) {
            window.counts[0] = Some(calls);
        }
        assert_eq!(choose([&bare, &bare]).unwrap().work, Work::ReadsAndWrites);
        bare.iter_mut().for_each(|window| window.counts[0] = None);
        assert_eq!(choose([&bare, &bare]).unwrap().work, Work::ReadsAndWrites);
        bare.iter_mut().for_each(|window| window.counts[1] = None);
        assert_eq!(choose([&bare, &bare]).unwrap().work, Work::Bytes);
    }

    #[test]
    fn issue_31_6_a_moment_without_a_cpu_does_not_count() {
        let calls = [1000.0, 0.0, 1200.0, 800.0, 10.0];
        let found = choose([&windows(&calls, 1e-5), &windows(&[1000.0; 3], 1e-5)]).unwrap();
        assert_eq!(found.work, Work::SystemCalls);
        // Work that stands still while the process computes does.
        let mut stands = windows(&[1000.0; 5], 1e-5);
        stands[1].counts = [Some(0.0); Work::ALL.len()];
        assert!(choose([&stands, &stands]).is_err());
    }

    #[test]
    fn issue_31_6_a_pause_does_not_make_a_measure_unsteady() {
        let calls: Vec<f64> = (0..20).map(|n| f64::from(1000 + 10 * n)).collect();
        let calm = windows(&calls, 1e-5);
        let mut paused = calm.clone();
        // Two windows in which a collector of garbage takes all of the CPU.
        paused[3].counts = [Some(3.0); Work::ALL.len()];
        paused[9].counts = [Some(0.0); Work::ALL.len()];
        let steady = choose([&calm, &paused]).unwrap();
        assert_eq!(steady.work, Work::SystemCalls);
        assert!(steady.variation < 1e-9, "{steady:?}");
        // With a third one it is no exception any more.
        paused[12].counts = [Some(3.0); Work::ALL.len()];
        let why = choose([&calm, &paused]).unwrap_err();
        assert!(why.contains("per system call: only 3 in one of the periods"), "{why}");
    }

    #[test]
    fn issue_31_6_another_mix_of_work_is_no_gain() {
        let bare = windows(&[1000.0, 1200.0, 800.0], 1e-5);
        let mut lifted = windows(&[1000.0, 1200.0, 800.0], 1e-5);
        // Half as many bytes a call: other requests.
        for window in &mut lifted {
            window.counts[3] = window.counts[3].map(|bytes| bytes / 2.0);
        }
        let why = choose([&bare, &lifted]).unwrap_err();
        assert!(why.contains("CPU time per system call: the mix of work differs"), "{why}");
        assert!(!why.contains('\n'));
    }

    #[test]
    fn issue_31_6_a_process_without_calls_has_no_measure_and_the_reason_is_said() {
        let idle = vec![Window { cpu: 0.1, counts: [Some(0.0), Some(3.0), None, Some(0.0)] }; 3];
        let why = choose([&idle, &idle]).unwrap_err();
        assert!(why.contains("per system call: only 0 in one"), "{why}");
        assert!(
            why.contains("reads or writes: only 3 in one") && why.contains("context switch: is not counted"),
            "{why}"
        );
        assert!(choose([&[], &[]]).is_err());
    }
}
