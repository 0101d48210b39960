// SPDX-License-Identifier: Apache-2.0
//! The CPU time of a process, to the microsecond.
//!
//! The clock of a process (clock_getcpuclockid(3)) shows the time of a thread that runs just now as of the last tick of the kernel,
//! which is up to 4 ms ago with 250 ticks a second (`thread_group_cputime` in kernel/sched/cputime.c). Over a period of 50 ms
//! that is an error of some percent, and not one of chance: it depends on when in a tick hugelift reads, which each kind of switch
//! shifts in its own way. A counter of the task clock (perf_event_open(2), `PERF_COUNT_SW_TASK_CLOCK`) is read on the CPU
//! where the thread runs, and is exact. It needs no PMU.

use crate::perf::counters::{Code, Counters};
use hugelift_linux::proc::clock::cpu_time;
use hugelift_linux::proc::procfs::Process;
use std::io;
use std::time::{Duration, Instant};

/// The longest time that is allowed for CPU time and count of a process. Reading them takes some microseconds for each thread.
const AT_ONCE: Duration = Duration::from_micros(100);
/// How often they are read at most to keep that.
const READ_AGAIN: usize = 4;

/// Reads the CPU time of a process.
#[derive(Debug)]
pub struct CpuClock {
    pid: u32,
    /// What the process had used when the counters were opened, and the counters; `None` where they are not permitted.
    exact: Option<(Duration, Counters)>,
}

impl CpuClock {
    /// Opens the counters of all its threads, also of those that it starts later.
    pub fn open(pid: u32) -> CpuClock {
        let threads = Process::new(pid).threads();
        let counters = Counters::open_for_process(&[vec![Code::TASK_CLOCK]], &threads).ok();
        counters.iter().for_each(Counters::enable);
        CpuClock { pid, exact: cpu_time(pid).ok().zip(counters) }
    }

    /// Returns the CPU time that all threads of the process have used, also of those that have ended.
    ///
    /// # Errors
    /// There is no such process.
    pub fn now(&self) -> io::Result<Duration> {
        let to_the_tick = cpu_time(self.pid)?;
        let Some((before, counters)) = &self.exact else { return Ok(to_the_tick) };
        let since = counters.read().first().and_then(|group| group.first().copied().flatten());
        Ok(*before + Duration::from_nanos(since.map_or(0, |count| count.value)))
    }

    /// Reads the CPU time, and by `count` something else at the same moment, as nearly as possible: on a busy machine this thread
    /// may lose its CPU between the two, and then they are read again. `None` if the process has ended.
    pub fn with<T>(&self, count: impl Fn() -> T) -> Option<(Duration, T)> {
        let mut best: Option<(Duration, _)> = None;
        for _ in 0..READ_AGAIN {
            let began = Instant::now();
            let read = (self.now().ok()?, count());
            let took = began.elapsed();
            if best.as_ref().is_none_or(|(least, _)| took < *least) {
                best = Some((took, read));
            }
            if took <= AT_ONCE {
                break;
            }
        }
        best.map(|(_, read)| read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A child computes all the time, while this process reads its clock. On a busy machine it has no CPU for a while.
    #[test]
    fn issue_31_8_the_time_of_a_thread_that_runs_is_known() {
        // Its own time a process knows at any moment.
        let _alone = crate::child::alone();
        let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("sh");
        let clock = CpuClock::open(busy.id());
        let mut last = clock.now().expect("the child");
        let (mut least, began) = (Duration::MAX, Instant::now());
        // A machine may be so busy that a thread does not run more often than the clock ticks.
        while began.elapsed() < Duration::from_millis(400)
            || least >= Duration::from_millis(1) && began.elapsed() < Duration::from_secs(20)
        {
            let now = clock.now().expect("the child");
            assert!(now >= last, "{now:?} after {last:?}");
            if now > last {
                least = least.min(now - last);
            }
            last = now;
            std::thread::sleep(Duration::from_micros(100));
        }
        busy.kill().expect("its end");
        busy.wait().expect("its end");
        if clock.exact.is_none() {
            return println!("SKIP: perf_event_open is not permitted here");
        }
        // Each step of the clock that ticks is of 4 ms, as there are 250 in a second, or 1 ms.
        assert!(least < Duration::from_millis(1), "{least:?}");
        assert!(CpuClock::open(1 << 23).now().is_err());
    }
}
