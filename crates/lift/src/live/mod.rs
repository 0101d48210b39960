// SPDX-License-Identifier: Apache-2.0
//! Lifts the processes of a run while they run, when that is worth its cost.
//!
//! ```text
//!   program   |== start ==|==================== runs =======================|
//!   watcher               | looks ... looks ... copies and maps ... looks   | ends
//!                           CPU time used < RATIO x cost | objects that were opened since
//! ```
//!
//! The watcher sleeps until the earliest time at which a lift could be worth it. Looking takes at most 1/1000
//! of a CPU; what lifts take is limited by [`hugelift_core::worth`]. It holds nothing that the program
//! needs, and may be killed at any time.

pub(crate) mod family;

use crate::attach::{Tried, lift_if};
use crate::options::{Seccomp, Verbosity};
use family::{Family, code_of};
use hugelift_core::policy::{Copies, Policy, SpanChoice};
use hugelift_core::printable::Untrusted;
use hugelift_core::snapshot::Part;
use hugelift_os::io::console::say;
use hugelift_os::proc::clock::own_cpu_time;
use hugelift_os::watch::watcher::{Program, Watch};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// The watcher uses at most one part in this many of a CPU for looking.
const SHARE: u32 = 1000;
/// CPU time for looking that it may use at once: the share is saved up to this.
const ADVANCE: Duration = Duration::from_millis(5);
/// It sleeps no shorter than this.
const SHORTEST: Duration = Duration::from_millis(20);
/// It sleeps no longer than this while the processes use CPU time: an object that is opened later is lifted
/// within about a second.
const LONGEST: Duration = Duration::from_millis(800);
/// It sleeps no longer than this while they use none.
const LONGEST_IDLE: Duration = Duration::from_secs(4);

/// Lifts the processes of a run while they run.
#[derive(Debug)]
pub(crate) struct LiveLift {
    /// The program, as messages name it.
    program: Untrusted,
    verbosity: Verbosity,
    policy: Policy,
    family: Family,
    began: Instant,
    /// CPU time of this process for looking, and for lifting.
    looking: Duration,
    lifting: Duration,
    last_delay: Duration,
    share: Share,
    /// When it looked last.
    turned: Instant,
}

/// The CPU time that may be used for looking: a bucket that fills by one part in [`SHARE`] of the time that passes,
/// up to [`ADVANCE`].
#[derive(Debug)]
struct Share {
    /// Seconds of CPU time that are left; negative if more was used.
    left: f64,
}

impl Share {
    /// Counts CPU time that was used, `passed` after the last time. Returns how long nothing more may be used.
    fn count(&mut self, used: Duration, passed: Duration) -> Duration {
        let filled = self.left + passed.as_secs_f64() / f64::from(SHARE);
        self.left = filled.min(ADVANCE.as_secs_f64()) - used.as_secs_f64();
        Duration::try_from_secs_f64(-self.left * f64::from(SHARE)).unwrap_or_default()
    }
}

impl LiveLift {
    /// Returns the task for the program `root`, which has just been started; `None` if the policy wants
    /// nothing that can be lifted while a program runs.
    pub(crate) fn new(
        root: u32,
        mark: Option<&str>,
        policy: &Policy,
        program: &Untrusted,
        verbosity: Verbosity,
    ) -> Option<LiveLift> {
        // Spans that reach over neighbours were chosen for the moment at which only the loader has run.
        let mut policy = Policy { copies: Copies::All, span: SpanChoice::Inner, ..policy.clone() };
        policy.parts.retain(|part| matches!(part, Part::Text | Part::Rodata));
        if policy.parts.is_empty() {
            return None;
        }
        Some(LiveLift {
            program: program.clone(),
            verbosity,
            policy,
            family: Family::new(root, mark),
            began: Instant::now(),
            looking: Duration::ZERO,
            lifting: Duration::ZERO,
            last_delay: SHORTEST,
            share: Share { left: ADVANCE.as_secs_f64() },
            turned: Instant::now(),
        })
    }

    /// Looks at all processes, and lifts those for which it is worth it now. Returns the time until the next
    /// look; `None` if all have ended.
    fn turn(&mut self) -> Option<Duration> {
        let before = own_cpu_time();
        let used = self.family.refresh();
        let due = self.family.due();
        let looking = own_cpu_time().saturating_sub(before);
        self.looking += looking;
        let pause = self.share.count(looking, self.turned.elapsed());
        self.turned = Instant::now();
        for pid in due {
            if self.family.is_due(pid) {
                self.lift(pid);
            }
        }
        if self.family.is_empty() {
            self.sum_up();
            return None;
        }
        self.last_delay = self.delay(used);
        Some(self.last_delay.max(pause))
    }

    fn lift(&mut self, pid: u32) {
        let before = own_cpu_time();
        // Read first: the process may open an object meanwhile.
        let code = code_of(pid);
        let accounts = self.family.accounts_of(pid);
        let affords = move |cost| accounts.iter().all(|account| account.affords(cost));
        let Some(start) = self.family.start_of(pid) else { return };
        let tried = lift_if((pid, start), &self.policy, Seccomp::Auto, affords);
        let spent = own_cpu_time().saturating_sub(before);
        self.lifting += spent;
        tracing::debug!(pid, ?tried, ?accounts, ?spent, "a running process");
        match tried {
            Ok(Tried { line, wants }) => {
                self.family.looked(pid, code, spent, line.is_some(), wants);
                if let Some(line) = line {
                    let cpu = self.family.cpu_of(pid).as_secs_f64();
                    self.tell(&format!(
                        "process {pid}: {line}, copied or mapped while it ran, after {cpu:.1} s of CPU time"
                    ));
                }
            }
            Err(why) => {
                if self.family.refused(pid, spent) {
                    self.tell(&format!("process {pid} is not lifted while it runs: {why}"));
                }
            }
        }
    }

    /// Returns the time until the next look.
    fn delay(&self, used: Duration) -> Duration {
        // All CPUs may work for one program.
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let cpus = u32::try_from(cpus).unwrap_or(u32::MAX);
        let needed = self.family.lacks_at_least().map_or(LONGEST, |lacks| lacks / cpus);
        match used.is_zero() {
            true => (self.last_delay * 2).clamp(SHORTEST, LONGEST_IDLE),
            false => needed.clamp(SHORTEST, LONGEST),
        }
    }

    /// Reports the CPU time of this process, unless it had next to nothing to do.
    fn sum_up(&self) {
        let passed = self.began.elapsed();
        if passed < Duration::from_secs(1) && self.lifting.is_zero() {
            return;
        }
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let share = 100.0 * self.looking.as_secs_f64() / passed.as_secs_f64();
        self.tell(&format!(
            "hugelift watched for {:.1} s with {:.1} ms of CPU time ({share:.2} %), and used {:.1} ms of \
             CPU time for lifts",
            passed.as_secs_f64(),
            millis(self.looking),
            millis(self.lifting),
        ));
    }

    fn tell(&self, line: &str) {
        if self.verbosity >= Verbosity::Summary {
            say(&format!("{}: {line}", self.program));
        }
    }
}

impl Watch for LiveLift {
    /// Messages are written only with -v. Otherwise a reader of the program's stderr need not wait for this
    /// process's end.
    fn descriptors(&self) -> Vec<RawFd> {
        if self.verbosity >= Verbosity::Summary { vec![libc::STDERR_FILENO] } else { Vec::new() }
    }

    fn first_delay(&self) -> Duration {
        self.delay(Duration::from_millis(1))
    }

    fn tick(&mut self, _: &Program) -> Option<Duration> {
        self.turn()
    }

    /// Goes on if the program has left processes behind.
    fn ended(&mut self, _: &Program) -> Option<Duration> {
        self.turn()
    }
}
