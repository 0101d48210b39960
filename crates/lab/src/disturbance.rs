// SPDX-License-Identifier: Apache-2.0
//! Watches what other programs and the hypervisor take from an experiment while it measures.
//!
//! | source | says |
//! |---|---|
//! | `/proc/stat` (proc_stat(5)), less the CPU time of this process and its descendants | what other programs ran, in clock ticks |
//! | `steal` in `/proc/stat` | what the hypervisor took |
//! | `/proc/thread-self/schedstat` (Documentation/scheduler/sched-stats.rst) | how long the measuring thread waited for a CPU, in nanoseconds |
//! | `/proc/pressure/cpu` (Documentation/accounting/psi.rst) | how long any task waited for a CPU |
//! | `/proc/loadavg` | the load that people know |

use crate::results::disturbance::Disturbance;
use hugelift_measure::tree::cpu_of_descendants;
use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use std::time::{Duration, Instant};

/// The share of the CPUs' time, taken by other programs or the hypervisor, from which a step counts as
/// disturbed.
const MUCH: f64 = 0.05;

/// The share of its time that the measuring thread spends waiting for a CPU from which a step counts as
/// disturbed.
const LONG: f64 = 0.05;

/// `/proc/stat` counts in ticks, so a short step can seem to have this many ticks of others for each CPU.
const ROUNDING: f64 = 2.0;

/// Counters of the machine at one moment, in seconds.
#[derive(Clone, Copy, Debug)]
struct Counters {
    at: Instant,
    /// What all CPUs ran, without idle time and without stolen time.
    busy: f64,
    stolen: f64,
    /// The CPU time of this process and of everything that descends from it.
    own: f64,
    /// How long this thread has run, and has waited for a CPU.
    ran: f64,
    waited: f64,
    pressure: Option<f64>,
}

/// What a step lost to others.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Taken {
    /// Seconds of the step, multiplied by the CPUs of the machine.
    pub all: f64,
    /// CPU seconds of other programs.
    pub others: f64,
    /// Seconds that the hypervisor took.
    pub stolen: f64,
    /// Seconds that the measuring thread has run.
    pub ran: f64,
    /// Seconds that the measuring thread waited for a CPU.
    pub waited: f64,
    /// Seconds in which any task of the machine waited for a CPU; `None` without PSI.
    pub pressure: Option<f64>,
    /// Seconds of the step.
    pub wall: f64,
}

/// Watches one step.
#[derive(Debug)]
pub struct Watch(Option<Counters>);

impl Watch {
    /// Begins to watch.
    pub fn start() -> Watch {
        Watch(read())
    }

    /// Returns what was taken since the start; `None` if /proc does not say.
    pub fn taken(&self) -> Option<Taken> {
        let (before, now) = (self.0?, read()?);
        let wall = now.at.duration_since(before.at).as_secs_f64();
        let since = |of: fn(&Counters) -> f64| (of(&now) - of(&before)).max(0.0);
        let rounding = ROUNDING * tick() * cpus();
        Some(Taken {
            all: wall * cpus(),
            others: (since(|c| c.busy) - since(|c| c.own) - rounding).max(0.0),
            stolen: since(|c| c.stolen),
            ran: since(|c| c.ran),
            waited: since(|c| c.waited),
            pressure: now.pressure.zip(before.pressure).map(|(now, before)| (now - before).max(0.0)),
            wall,
        })
    }
}

impl Taken {
    /// Returns how disturbed the step was: the largest of its shares, each divided by its limit. From 1 on
    /// the step is disturbed.
    pub fn degree(&self) -> f64 {
        let share = |part: f64, all: f64| if all > 0.0 { part / all } else { 0.0 };
        let taken = share(self.others + self.stolen, self.all) / MUCH;
        // A thread that mostly sleeps while its tasks measure also waits for these, and runs very little. So
        // its waits are compared with the time of the step.
        taken.max(share(self.waited, self.wall.max(self.ran + self.waited)) / LONG)
    }

    /// Returns whether other programs or the hypervisor disturbed the step.
    pub fn is_disturbed(&self) -> bool {
        self.degree() >= 1.0
    }
}

/// Adds up what steps lost.
#[derive(Clone, Debug, Default)]
pub struct Total {
    sum: Taken,
    load: f64,
    steps: u64,
    repeated: u64,
    disturbed: u64,
}

impl Total {
    /// Adds a step. `kept` is what the kept run of the step lost, `runs` is how often the step ran.
    pub fn add(&mut self, kept: &Taken, runs: u64) {
        let sum = &mut self.sum;
        sum.all += kept.all;
        sum.others += kept.others;
        sum.stolen += kept.stolen;
        sum.ran += kept.ran;
        sum.waited += kept.waited;
        sum.wall += kept.wall;
        sum.pressure = kept.pressure.map(|more| sum.pressure.unwrap_or(0.0) + more);
        self.steps += 1;
        self.repeated += runs.saturating_sub(1);
        self.disturbed += u64::from(kept.is_disturbed());
        self.load = self.load.max(load().unwrap_or(0.0));
    }

    /// Returns whether at least half of the steps were disturbed however often they were repeated.
    pub fn is_hopeless(&self) -> bool {
        self.steps >= FIRST && 2 * self.disturbed >= self.steps
    }

    /// Returns the shares of all steps; `None` if no step was watched.
    pub fn disturbance(&self) -> Option<Disturbance> {
        let sum = &self.sum;
        let percent = |part: f64, all: f64| if all > 0.0 { 100.0 * part / all } else { 0.0 };
        (self.steps > 0).then(|| Disturbance {
            load: self.load,
            others_percent: percent(sum.others, sum.all),
            stolen_percent: percent(sum.stolen, sum.all),
            waited_percent: percent(sum.waited, sum.ran + sum.waited),
            pressure_percent: sum.pressure.map(|seconds| percent(seconds, sum.wall)),
            steps: self.steps,
            repeated: self.repeated,
            disturbed: self.disturbed,
        })
    }
}

fn read() -> Option<Counters> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let (busy, stolen) = cpu_line(&stat)?;
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let mut nanoseconds = schedstat.split_whitespace().map_while(|n| n.parse::<f64>().ok());
    let pressure = std::fs::read_to_string("/proc/pressure/cpu").ok();
    Some(Counters {
        at: Instant::now(),
        busy: busy * tick(),
        stolen: stolen * tick(),
        own: own_cpu()?,
        ran: nanoseconds.next().unwrap_or(0.0) / 1e9,
        waited: nanoseconds.next().unwrap_or(0.0) / 1e9,
        pressure: pressure.and_then(|text| pressure_seconds(&text)),
    })
}

/// Returns the busy and the stolen ticks of all CPUs from the first line of `/proc/stat`.
fn cpu_line(stat: &str) -> Option<(f64, f64)> {
    let mut words = stat.lines().next()?.split_whitespace();
    (words.next()? == "cpu").then_some(())?;
    let ticks: Vec<f64> = words.map_while(|word| word.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; time of guests is in user and nice too.
    let &[user, nice, system, _, _, irq, softirq, steal, ..] = ticks.as_slice() else { return None };
    Some((user + nice + system + irq + softirq, steal))
}

/// Returns the seconds in which some task waited, from `/proc/pressure/cpu`.
fn pressure_seconds(text: &str) -> Option<f64> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    let total = some.split_whitespace().find_map(|word| word.strip_prefix("total="))?;
    Some(total.parse::<f64>().ok()? / 1e6)
}

/// Returns the CPU seconds of this process, of the children that it has waited for, and of all living
/// descendants.
fn own_cpu() -> Option<f64> {
    let used = |usage: Usage| {
        let time = usage.user_time() + usage.system_time();
        time.num_microseconds() as f64 / 1e6
    };
    let of = |who| getrusage(who).ok().map(used);
    Some(of(UsageWho::RUSAGE_SELF)? + of(UsageWho::RUSAGE_CHILDREN)? + cpu_of_descendants().ok()?)
}

fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// Returns the seconds of a clock tick.
fn tick() -> f64 {
    1.0 / hugelift_linux::proc::clock::ticks_per_second() as f64
}

/// Returns the number of online CPUs of the machine: `/proc/stat` counts all of them.
fn cpus() -> f64 {
    let online = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
    online.filter(|&cpus| cpus > 0).unwrap_or(1) as f64
}

/// After this many steps it can be said whether repetitions help.
const FIRST: u64 = 4;

/// How often a disturbed step is run again.
pub const AGAIN: u64 = 3;

/// How long a repetition waits first, so that a short burst of work can end.
pub const PAUSE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_prints() {
        let stat = "cpu  10 20 30 1000 5 1 2 7 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(cpu_line(stat), Some((63.0, 7.0)));
        for bad in ["", "cpu 1 2\n", "intr 1 2 3 4 5 6 7 8 9\n", "cpu  1 2 3 x 5 6 7 8\n"] {
            assert_eq!(cpu_line(bad), None, "{bad}");
        }
        let psi = "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 total=1\n";
        assert_eq!(pressure_seconds(psi), Some(2.5));
        assert_eq!(pressure_seconds("full total=1\n"), None);
    }

    #[test]
    fn own_work_is_not_that_of_others() {
        let watch = Watch::start();
        let began = Instant::now();
        // At the lowest priority, beside other work, a thread may get almost nothing in this time.
        while began.elapsed() < Duration::from_millis(300) || watch.taken().unwrap().ran <= 0.01 {
            assert!(began.elapsed() < Duration::from_secs(60), "this thread has not run");
            std::hint::spin_loop();
        }
        let taken = watch.taken().unwrap();
        // Other tests run at the same time, but in this process.
        assert!(taken.ran > 0.01 && taken.wall >= 0.3 && taken.all >= taken.wall, "{taken:?}");
        let one = |others, stolen, waited| Taken {
            all: 2.0,
            wall: 1.0,
            ran: 1.0,
            others,
            stolen,
            waited,
            pressure: None,
        };
        assert!(!one(0.05, 0.04, 0.05).is_disturbed());
        assert!(one(0.2, 0.0, 0.0).is_disturbed());
        assert!(one(0.0, 0.2, 0.0).is_disturbed());
        assert!(one(0.0, 0.0, 0.1).is_disturbed());
        // It slept in most of the step.
        assert!(!Taken { ran: 0.01, ..one(0.0, 0.0, 0.02) }.is_disturbed());
        assert!(!Taken::default().is_disturbed());
    }

    #[test]
    fn the_total_is_that_of_the_steps_that_were_kept() {
        let mut total = Total::default();
        assert_eq!(total.disturbance(), None);
        let calm = Taken { all: 2.0, wall: 1.0, ran: 1.0, pressure: Some(0.0), ..Taken::default() };
        total.add(&calm, 3);
        total.add(&Taken { others: 1.0, stolen: 0.5, waited: 1.0, pressure: Some(0.5), ..calm }, 1);
        let found = total.disturbance().unwrap();
        assert_eq!((found.steps, found.repeated, found.disturbed), (2, 2, 1));
        assert_eq!((found.others_percent, found.stolen_percent), (25.0, 12.5));
        assert_eq!((found.pressure_percent, found.waited_percent.round()), (Some(25.0), 33.0));
        // Two steps say too little. Of four, two are half.
        assert!(!total.is_hopeless());
        total.add(&Taken { others: 1.0, ..calm }, 4);
        total.add(&calm, 1);
        assert!(total.is_hopeless());
        total.add(&calm, 1);
        assert!(!total.is_hopeless());
    }
}
