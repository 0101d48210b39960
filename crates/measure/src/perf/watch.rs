// SPDX-License-Identifier: Apache-2.0
//! All that can be counted of some threads: by the PMU, where there is one, and by the kernel.

use super::counters::{Counters, Later, Start};
use super::hardware::{Hardware, NoHardware, cpus};
use super::kernel_counts::KernelCounts;
use crate::pmu::counts::{About, Counts};
use crate::pmu::report::{Origin, StatReport};
use hugelift_heat::refusal::PerfError;
use hugelift_linux::proc::procfs::Process;
use std::time::Instant;

/// The counters of one program, or the reason why there are none of the PMU.
#[derive(Debug)]
pub struct Watch {
    hardware: Result<Counting, String>,
    about: About,
    kernel: KernelCounts,
    began: Instant,
}

#[derive(Debug)]
struct Counting {
    hardware: Hardware,
    counters: Counters,
}

/// Why there are no hardware counts.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Perf(#[from] PerfError),
    #[error(transparent)]
    Hardware(#[from] NoHardware),
}

impl Watch {
    /// Opens the counters of threads, and of what `later` says. `process` is the one that page faults are read from if
    /// perf_event_open(2) is refused.
    ///
    /// # Errors
    /// [`PerfError::Vanished`] and [`PerfError::Files`] only.
    pub fn open(
        process: Option<Process>,
        threads: &[i32],
        start: Start,
        later: Later,
    ) -> Result<Watch, PerfError> {
        let cpus = cpus();
        let hardware = match Counting::open(&cpus, threads, start, later) {
            Err(Refusal::Perf(error @ (PerfError::Vanished | PerfError::Files { .. }))) => return Err(error),
            Err(refusal) => Err(refusal.to_string()),
            Ok(hardware) => Ok(hardware),
        };
        let kernel = KernelCounts::open(process, threads, start, later)?;
        let about = About {
            cpu: cpus.into_iter().next(),
            model: hardware.as_ref().ok().map(|counting| counting.hardware.model),
            pmu: hardware.as_ref().ok().map(|counting| counting.hardware.pmu.clone()),
            no_pmu: hardware.as_ref().err().cloned(),
            user_only: hardware.as_ref().is_ok_and(|counting| counting.counters.user_only),
            notes: kernel.notes.clone(),
        };
        Ok(Watch { hardware, about, kernel, began: Instant::now() })
    }

    /// Opens the counters of the program that this thread starts next, from its execve(2) on, with all that it starts. This thread
    /// itself is not counted: the program that it executes is always another process's.
    ///
    /// A further program may not be counted. If the scheduler switches from this thread to its child before the execve(2), the kernel
    /// lets the two exchange their events (`perf_event_context_sched_out` in kernel/events/core.c). The request to count from an
    /// execve(2) is used up then, also for later children.
    ///
    /// # Errors
    /// As [`Watch::open`].
    pub fn of_next_program() -> Result<Watch, PerfError> {
        Watch::open(None, &[nix::unistd::gettid().as_raw()], Start::Exec, Later::Processes)
    }

    /// Starts counting.
    pub fn enable(&mut self) {
        self.began_now();
        self.kernel.enable();
        if let Ok(hardware) = &self.hardware {
            hardware.counters.enable();
        }
    }

    /// Says that counting has begun by itself.
    pub fn began_now(&mut self) {
        self.began = Instant::now();
    }

    /// Returns when counting began.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Returns what the counts are of.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> Counts {
        let groups = self.hardware.as_ref().map_or_else(|_| Vec::new(), |counting| counting.counters.read());
        Counts { groups, kernel: self.kernel.read() }
    }

    /// Stops counting, and reports.
    pub fn report(&self, subject: String) -> StatReport {
        if let Ok(hardware) = &self.hardware {
            hardware.counters.disable();
        }
        self.kernel.disable();
        let seconds = self.began.elapsed().as_secs_f64();
        let mut report = self.counts().report(&self.about, Origin::Measured, subject);
        report.seconds = Some(seconds);
        report
    }
}

impl Counting {
    fn open(
        cpus: &[crate::pmu::Cpu],
        threads: &[i32],
        start: Start,
        later: Later,
    ) -> Result<Counting, Refusal> {
        let hardware = Hardware::find(cpus)?;
        let counters = hardware.open(threads, start, later)?;
        Ok(Counting { hardware, counters })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Returns the page faults that were counted, and whether this machine counts them.
    fn faults(watch: &Watch) -> Option<u64> {
        let counts = watch.counts();
        counts.kernel.iter().find(|count| count.key == "minor_faults").map(|count| count.value)
    }

    #[test]
    fn issue_34_6_a_program_and_its_children_are_counted_and_this_thread_is_not() {
        // Others wait for any child of this process.
        let _alone = crate::child::alone();
        let of = |words: &[&str]| -> Option<u64> {
            let watch = Watch::of_next_program().unwrap();
            let touched = vec![1u8; 32 << 20];
            assert_eq!(faults(&watch)?, 0, "this thread was counted");
            assert!(Command::new(words[0]).args(&words[1..]).status().unwrap().success());
            let all = faults(&watch).unwrap();
            // Another thread is not one of the program.
            std::thread::scope(|scope| drop(scope.spawn(|| drop(touched)).join()));
            assert_eq!(faults(&watch).unwrap(), all);
            Some(all)
        };
        let Some(one) = of(&["true"]) else {
            return println!("SKIP: perf_event_open is not permitted here");
        };
        let many = of(&["sh", "-c", "true; (true; true); true"]).unwrap();
        assert!(one > 10 && many > one + 20, "{one}, {many}");
    }
}
