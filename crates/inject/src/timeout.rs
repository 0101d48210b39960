// SPDX-License-Identifier: Apache-2.0
//! What is left of the timeout of a thread that waits in epoll_wait(2). A stop ends this call with EINTR, and
//! made again it would wait for its whole timeout.
//!
//! ```text
//!   begins        asleep                    stop   made again
//!   |-------------|-------------------------|......|----------------|
//!                 se.exec_start             now                      ends
//! ```
//!
//! The kernel does not show when a call began. It shows when a sleeping thread last ran (`se.exec_start` in
//! `/proc/PID/task/TID/sched`, CONFIG_SCHED_DEBUG), in the time of the CPU on which it ran. The tracer moves to that
//! CPU for a moment to learn what time it is there.
//!
//! That time stands still while the CPU serves interrupts or, in a guest, another guest (CONFIG_IRQ_TIME_ACCOUNTING,
//! CONFIG_PARAVIRT_TIME_ACCOUNTING). By this share of the wait the rest of a timeout may be too long.

use crate::arch::Regs;
use crate::ptrace::Tid;
use crate::waits;
use hugelift_linux::proc::procfs::Process;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use std::time::{Duration, Instant};

/// A wait that ends sooner is left alone: the thread may have begun the next one before it is stopped.
const TOO_SHORT: Duration = Duration::from_millis(2);

/// A wait of one thread that ends by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TimedWait {
    /// When its timeout ends.
    ends: Instant,
    /// How often the thread has gone to sleep, with this wait.
    sleeps: u64,
    /// The timeout that the thread asks for now.
    asked: Duration,
}

impl TimedWait {
    /// Finds the end of the wait in which thread `tid` sleeps, for `timeout` from its beginning. `known` is the last
    /// wait of it that was found or begun again. `None` if the kernel does not show enough, or if it ends very soon.
    pub(crate) fn find(pid: i32, tid: Tid, timeout: Duration, known: Option<TimedWait>) -> Option<TimedWait> {
        let sleeps = sleeps(pid, tid)?;
        // If it was begun again, its timeout was rounded up, and it has begun a little later.
        let is_same = |known: &TimedWait| known.sleeps == sleeps && known.asked == timeout;
        let wait = match known.filter(is_same) {
            Some(known) => known,
            None => TimedWait::examine(pid, tid, timeout, sleeps)?,
        };
        (wait.ends >= Instant::now() + TOO_SHORT).then_some(wait)
    }

    /// Finds out when a thread that has gone to sleep `sleeps` times wakes up, unless it has done so meanwhile.
    fn examine(pid: i32, tid: Tid, timeout: Duration, sleeps: u64) -> Option<TimedWait> {
        let cpu = Process::new(pid.cast_unsigned()).last_cpu_of_thread(tid)?;
        let last_ran = last_ran(&format!("/proc/{pid}/task/{tid}/sched"))?;
        let (now, time) = time_of(usize::try_from(cpu).ok()?)?;
        let waited = time.checked_sub(last_ran)?;
        let ends = now.checked_sub(waited)?.checked_add(timeout)?;
        let is_asleep = self::sleeps(pid, tid) == Some(sleeps);
        is_asleep.then_some(TimedWait { ends, sleeps, asked: timeout })
    }

    /// Returns whether the thread, which has been stopped, was still in this wait.
    pub(crate) fn was_stopped(&self, pid: i32, tid: Tid) -> bool {
        sleeps(pid, tid) == Some(self.sleeps + 1)
    }

    /// Returns whether it is a wait in this call, with this timeout in milliseconds as the fourth argument.
    pub(crate) fn is_in(&self, number: i64, timeout: u64) -> bool {
        waits::has_timeout_in_register(number) && self.asked.as_millis() == u128::from(timeout as u32)
    }

    /// Returns the rest of the timeout in milliseconds, as epoll_wait(2) takes it: never too short, and never 0. A
    /// program that keeps the register for its next call would then wait no more.
    pub(crate) fn rest(&self) -> u64 {
        let left = self.ends.saturating_duration_since(Instant::now());
        left.as_micros().div_ceil(1000).clamp(1, i32::MAX as u128) as u64
    }

    /// Returns the same wait for a stopped thread that begins it again, for `rest` milliseconds, when it goes on.
    pub(crate) fn again(&self, pid: i32, tid: Tid, rest: u64) -> Option<TimedWait> {
        Some(TimedWait { sleeps: sleeps(pid, tid)? + 1, asked: Duration::from_millis(rest), ..*self })
    }
}

/// Returns registers that make a call again with the rest of its timeout, in milliseconds. They stay changed after
/// the call: a C function that makes it need not keep them for its caller.
pub(crate) fn shortened(again: Regs, rest: Option<u64>) -> Regs {
    rest.map_or(again, |rest| again.with_fourth_argument(rest))
}

/// Returns how often a thread has gone to sleep.
fn sleeps(pid: i32, tid: Tid) -> Option<u64> {
    Process::new(pid.cast_unsigned()).status_of_thread(tid).ok()?.sleeps
}

/// Returns when a thread last ran, in the time of its CPU.
fn last_ran(path: &str) -> Option<Duration> {
    parse(&std::fs::read_to_string(path).ok()?)
}

/// Parses the line `se.exec_start : 1729839.215432`, in milliseconds. It is 0 if the thread has been moved to
/// another CPU since.
fn parse(text: &str) -> Option<Duration> {
    let line = text.lines().find_map(|line| line.strip_prefix("se.exec_start"))?;
    let (millis, nanos) = line.trim_start().strip_prefix(':')?.trim().split_once('.')?;
    let nanos = nanos.parse::<u64>().ok().filter(|_| nanos.len() == 6)?;
    let time = Duration::from_millis(millis.parse().ok()?).checked_add(Duration::from_nanos(nanos))?;
    (!time.is_zero()).then_some(time)
}

/// Returns what time it is now, for this process and for a CPU.
fn time_of(cpu: usize) -> Option<(Instant, Duration)> {
    let own = Pid::from_raw(0);
    let before = sched_getaffinity(own).ok()?;
    let mut one = CpuSet::new();
    one.set(cpu).ok()?;
    sched_setaffinity(own, &one).ok()?;
    // This makes the kernel count the time of this thread up to now.
    let counted = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    let now = Instant::now();
    let time = last_ran("/proc/thread-self/sched");
    sched_setaffinity(own, &before).ok()?;
    counted.ok()?;
    Some((now, time?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn lines_of_the_kernel() {
        let text = "sleep (10676, #threads: 1)\n----\nse.exec_start                :       1729839.215432\nse.vruntime : 1.0\n";
        assert_eq!(parse(text), Some(Duration::from_nanos(1_729_839_215_432)));
        for bad in [
            "",
            "se.exec_start : 0.000000",
            "se.exec_start : 5",
            "se.exec_start 5.000000",
            "se.exec_start : 5.1",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_end_of_a_wait() {
        const TIMEOUT: Duration = Duration::from_secs(30);
        let (send, receive) = channel();
        let (end, wait) = channel::<()>();
        let sleeper = std::thread::spawn(move || {
            send.send((nix::unistd::gettid().as_raw(), Instant::now())).unwrap();
            let _ = wait.recv_timeout(TIMEOUT);
        });
        let (tid, began) = receive.recv().unwrap();
        let pid = std::process::id().cast_signed();
        let process = Process::new(pid.cast_unsigned());
        while process.stat_of_thread(tid).unwrap().state != 'S' {
            std::thread::sleep(Duration::from_millis(1));
        }
        let asleep = Instant::now();
        std::thread::sleep(Duration::from_millis(200));
        let found = TimedWait::find(pid, tid, TIMEOUT, None);
        let longest = asleep.elapsed();
        let late = TimedWait::find(pid, tid, Duration::from_millis(100), None);
        drop(end);
        sleeper.join().unwrap();
        if last_ran("/proc/thread-self/sched").is_none() {
            println!("SKIP: this kernel has no /proc/PID/sched (CONFIG_SCHED_DEBUG)");
            return;
        }
        // It began to sleep between `began` and `asleep`. The CPU's time may have stood still for half of the wait.
        let found = found.expect("it sleeps");
        // The scheduler's clock is not adjusted as the other one is.
        let least = began + TIMEOUT - Duration::from_millis(1);
        assert!(found.ends >= least, "too early: {:?}", least - found.ends);
        assert!(
            found.ends <= asleep + TIMEOUT + longest / 2,
            "too late: {:?}",
            found.ends - asleep - TIMEOUT
        );
        assert_eq!(late, None, "it should have woken up");
    }
}
