// SPDX-License-Identifier: Apache-2.0
//! How often a process waits, and whether it does at all. The CPU time per second of one that never does is the same however fast it runs: it is what
//! the scheduler gives it, and tells nothing about its work.

use hugelift_linux::proc::procfs::Process;
use std::collections::HashMap;

/// A thread whose part of the CPU time is smaller does not make a process one that waits: many programs have a thread that
/// wakes up now and then.
const SMALL: f64 = 0.05;

/// What the threads of a process have done so far, by their ids.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Threads(HashMap<i32, Done>);

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Done {
    /// CPU time in nanoseconds.
    cpu: u64,
    /// How often it has given up its CPU to wait for something.
    waits: u64,
}

impl Threads {
    /// Adds the threads of another process.
    #[must_use]
    pub fn and(mut self, other: Threads) -> Threads {
        self.0.extend(other.0);
        self
    }

    /// Reads the threads of a process: schedstat (Documentation/scheduler/sched-stats.rst in Linux) and
    /// `voluntary_ctxt_switches` in status (proc_pid_status(5)).
    pub fn read(pid: u32) -> Threads {
        let process = Process::new(pid);
        let done = |thread: i32| -> Option<(i32, Done)> {
            let schedule = text(&process, thread, "schedstat")?;
            let cpu = schedule.split_whitespace().next()?.parse().ok()?;
            Some((thread, Done { cpu, waits: waits(&process, thread)? }))
        };
        Threads(process.threads().into_iter().filter_map(done).collect())
    }
}

fn text(process: &Process, thread: i32, file: &str) -> Option<String> {
    String::from_utf8(process.read(&format!("task/{thread}/{file}")).ok()?).ok()
}

fn waits(process: &Process, thread: i32) -> Option<u64> {
    let status = text(process, thread, "status")?;
    status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()
}

/// Counts how often the threads of a process have waited.
#[derive(Clone, Default, Debug)]
pub struct Waits {
    /// The last count of each thread.
    threads: HashMap<i32, u64>,
    /// What was last read of threads that have ended.
    ended: u64,
}

impl Waits {
    /// Reads the count so far. It never falls when a thread ends, as a sum over the threads would; of such a thread it lacks
    /// what came after the last reading. `None`: the process has ended.
    pub fn count(&mut self, pid: u32) -> Option<u64> {
        let process = Process::new(pid);
        let of_thread = |thread: i32| Some((thread, waits(&process, thread)?));
        self.add(process.threads().into_iter().filter_map(of_thread).collect())
    }

    fn add(&mut self, now: HashMap<i32, u64>) -> Option<u64> {
        if now.is_empty() {
            return None;
        }
        // A count that fell is that of another thread with the same id.
        let is_over = |thread: &i32, count: &u64| now.get(thread).is_none_or(|new| new < count);
        self.ended +=
            self.threads.iter().filter(|(id, count)| is_over(id, count)).map(|(_, count)| count).sum::<u64>();
        self.threads = now;
        Some(self.ended + self.threads.values().sum::<u64>())
    }
}

/// Returns whether threads that did not wait between two readings have used nearly all of the CPU time.
pub fn never_waited(before: &Threads, after: &Threads) -> bool {
    let (mut all, mut of_those_that_waited) = (0, 0);
    for (thread, now) in &after.0 {
        let then = before.0.get(thread).copied().unwrap_or_default();
        let used = now.cpu.saturating_sub(then.cpu);
        all += used;
        if now.waits > then.waits {
            of_those_that_waited += used;
        }
    }
    // Without these figures in the kernel, nothing is said.
    all > 0 && (of_those_that_waited as f64) < SMALL * all as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    fn threads(all: &[(i32, u64, u64)]) -> Threads {
        Threads(all.iter().map(|(id, cpu, waits)| (*id, Done { cpu: *cpu, waits: *waits })).collect())
    }

    fn cpu(threads: &Threads) -> u64 {
        threads.0.values().map(|done| done.cpu).sum()
    }

    #[test]
    fn issue_31_6_only_threads_that_do_work_count() {
        let before = threads(&[(1, 1000, 5), (2, 0, 7)]);
        for (after, never) in [
            (&[(1, 2000, 5), (2, 0, 7)][..], true),
            // A thread that wakes up now and then.
            (&[(1, 2000, 5), (2, 20, 17)], true),
            (&[(1, 2000, 5), (2, 200, 17)], false),
            (&[(1, 2000, 6)], false),
            // A new thread.
            (&[(1, 2000, 5), (3, 500, 1)], false),
            (&[(1, 1000, 5)], false),
            (&[], false),
        ] {
            assert_eq!(never_waited(&before, &threads(after)), never, "{after:?}");
        }
    }

    #[test]
    fn issue_31_6_the_waits_of_a_thread_that_ends_are_kept() {
        let mut waits = Waits::default();
        for (now, sum) in [
            (&[(1, 10), (2, 5)][..], Some(15)),
            (&[(1, 12)], Some(17)),
            // Another thread has the id of the one that ended.
            (&[(1, 12), (2, 1)], Some(18)),
            (&[(1, 3), (2, 1)], Some(21)),
            (&[], None),
        ] {
            assert_eq!(waits.add(now.iter().copied().collect()), sum, "{now:?}");
        }
    }

    #[test]
    fn issue_31_6_a_loop_never_waits_and_one_that_sleeps_does() {
        let _alone = crate::child::alone();
        for (script, never) in [("while :; do :; done", true), ("while :; do sleep 0.01; done", false)] {
            let mut child = Command::new("sh").args(["-c", script]).stdin(Stdio::null()).spawn().expect("sh");
            let begun = Instant::now();
            // The start of a shell waits. It is over when some CPU time was used.
            while cpu(&Threads::read(child.id())) < 20_000_000 {
                assert!(begun.elapsed() < Duration::from_secs(20), "{script} does nothing");
                std::thread::sleep(Duration::from_millis(20));
            }
            let mut before = Threads::default();
            let mut found = None;
            while found.is_none() && begun.elapsed() < Duration::from_secs(20) {
                before = Threads::read(child.id());
                std::thread::sleep(Duration::from_millis(300));
                let after = Threads::read(child.id());
                found = (cpu(&after) > cpu(&before)).then(|| never_waited(&before, &after));
            }
            let _ = child.kill();
            let _ = child.wait();
            assert_eq!(found, Some(never), "{script}: {before:?}");
        }
    }
}
