// SPDX-License-Identifier: Apache-2.0
//! Lifts the processes of a run while they run, when that is worth its cost.
//!
//! ```text
//!   program   |== start ==|==================== runs =======================|
//!   watcher               | polls ... polls ... copies and maps ... polls   | ends
//!                           CPU time used < RATIO x cost | objects that were opened since
//! ```
//!
//! The watcher sleeps until the earliest time at which a lift could be worth it. Polling takes at most 1/1000
//! of a CPU; what lifts take is limited by [`hugelift_core::worth`]. It holds nothing that the program
//! needs, and may be killed at any time.
//!
//! `hugelift attach --watch` watches processes that run already in the same way ([`crate::watch`]).

mod accounts;
mod anonymous;
mod apart;
mod cold;
pub(crate) mod ends;
pub(crate) mod event;
mod hot;
mod member;
pub(crate) mod membership;
mod pressure;
mod process;
pub(crate) mod process_set;
mod share;
mod zeros;

use crate::attach::{Chosen, Target, Tried, lift_if};
use crate::options::{LiftOptions, Seccomp, Verbosity};
use crate::watcher::process::{Program, Watch};
use anonymous::{Anonymous, Turn};
use apart::{Apart, Attempt, Done};
use ends::{Ends, Woken};
use event::{Event, Summary, Tell, line_of_run};
use hot::Hot;
use hugelift_core::collapse::Budget;
use hugelift_core::heat::follow::Limits;
use hugelift_core::policy::{Copies, Policy, SpanChoice};
use hugelift_core::printable::Untrusted;
use hugelift_core::snapshot::Part;
use hugelift_linux::io::console::say;
use hugelift_linux::proc::clock::own_cpu_time;
use hugelift_linux::proc::turn::turn_of_change;
use process::{code_of, owner};
use process_set::ProcessSet;
use share::Share;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::{Duration, Instant};
use zeros::Zeros;

/// It sleeps no shorter than this.
const SHORTEST: Duration = Duration::from_millis(20);
/// It sleeps no longer than this while the processes use CPU time: an object that is opened later is lifted
/// within about a second.
const LONGEST: Duration = Duration::from_millis(800);
/// It sleeps no longer than this while they use none.
const LONGEST_IDLE: Duration = Duration::from_secs(4);

/// What is wanted of the processes that are watched.
#[derive(Debug)]
pub(crate) struct Wanted {
    policy: Policy,
    seccomp: Seccomp,
    /// The first check of each process is explained.
    explains: bool,
    anonymous: Option<Anonymous>,
    /// Only the code in use is copied.
    hot: Option<Hot>,
}

impl Wanted {
    /// Returns what `policy` wants of text and rodata, without anonymous memory.
    pub(crate) fn new(policy: &Policy, seccomp: Seccomp) -> Wanted {
        // Huge pages that a part fills only partly were lifted at the start, if they were asked for.
        let mut policy = Policy { copies: Copies::All, span: SpanChoice::Inner, ..policy.clone() };
        policy.parts.retain(|part| matches!(part, Part::Text | Part::Rodata));
        Wanted { policy, seccomp, explains: false, anonymous: None, hot: None }
    }

    /// Also wants the parts among `parts` that programs write to: RELRO and data.
    #[must_use]
    pub(crate) fn written(mut self, parts: &[Part]) -> Wanted {
        self.policy.parts.extend(parts.iter().filter(|part| part.is_writable()));
        self
    }

    /// Also wants that the first check of each process is explained.
    #[must_use]
    pub(crate) fn explained(self) -> Wanted {
        Wanted { explains: true, ..self }
    }

    /// Also wants anonymous memory of these parts collapsed, at once if it is `eager`.
    #[must_use]
    pub(crate) fn anonymous(self, parts: Vec<Part>, budget: Budget, eager: bool) -> Wanted {
        let anonymous = (!parts.is_empty()).then(|| Anonymous::new(parts, self.seccomp, budget, eager));
        Wanted { anonymous, ..self }
    }

    /// Wants copies of the code in use alone, if there are such limits.
    #[must_use]
    pub(crate) fn hot(self, limits: Option<Limits>) -> Wanted {
        Wanted { hot: limits.map(Hot::new), ..self }
    }
}

/// Lifts processes while they run.
pub(crate) struct LiveLift {
    processes: ProcessSet,
    wanted: Wanted,
    tell: Tell,
    /// Whether messages are written to stderr.
    speaks: bool,
    /// Nothing that was to be said was lost.
    is_heard: bool,
    apart: Apart,
    zeros: Zeros,
    began: Instant,
    /// CPU time of this process for polling, for lifting, and for samples.
    polling: Duration,
    lifting: Duration,
    sampling: Duration,
    lifted: u64,
    last_delay: Duration,
    share: Share,
    /// When it polled last.
    turned: Instant,
    /// It must not poll again before this time.
    free: Instant,
    ends: Ends,
}

impl LiveLift {
    /// Returns the task for the program `root`, which has just been started; `None` if the policy wants
    /// nothing that can be lifted while a program runs.
    pub(crate) fn of_run(
        root: u32,
        mark: Option<&str>,
        policy: &Policy,
        program: &Untrusted,
        options: &LiftOptions,
    ) -> Option<LiveLift> {
        let is_collapsed = |part: &Part| matches!(part, Part::Anon | Part::Jit | Part::Shm);
        let anonymous: Vec<Part> = policy.parts.iter().copied().filter(is_collapsed).collect();
        let budget = Budget { spare: policy.spare, ..Budget::default() };
        let wanted =
            Wanted::new(policy, Seccomp::Auto).anonymous(anonymous, budget, false).hot(options.copies_hot());
        if wanted.policy.parts.is_empty() && wanted.anonymous.is_none() {
            return None;
        }
        let (program, speaks) = (program.clone(), options.verbosity >= Verbosity::Summary);
        let tell = move |event: Event<'_>| {
            if speaks && let Some(line) = line_of_run(&event) {
                say(&format!("{program}: {line}"));
            }
            true
        };
        Some(LiveLift { speaks, ..LiveLift::new(ProcessSet::of_run(root, mark), wanted, Box::new(tell)) })
    }

    /// Returns the task for a set of processes.
    pub(crate) fn new(processes: ProcessSet, wanted: Wanted, tell: Tell) -> LiveLift {
        let now = Instant::now();
        LiveLift {
            processes,
            wanted,
            tell,
            speaks: false,
            is_heard: true,
            apart: Apart::default(),
            zeros: Zeros::default(),
            began: now,
            polling: Duration::ZERO,
            lifting: Duration::ZERO,
            sampling: Duration::ZERO,
            lifted: 0,
            last_delay: SHORTEST,
            share: Share::default(),
            turned: now,
            free: now,
            ends: Ends::default(),
        }
    }

    /// Says something.
    fn say(&mut self, event: Event<'_>) {
        self.is_heard &= (self.tell)(event);
    }

    /// Returns whether all that was to be said could be said.
    pub(crate) fn is_heard(&self) -> bool {
        self.is_heard
    }

    /// Polls all processes, and lifts those for which it is worth it now, until `stops` says so. Returns the
    /// time until the next poll; `None` if all have ended.
    pub(crate) fn turn(&mut self, stops: &dyn Fn() -> bool) -> Option<Duration> {
        let before = own_cpu_time();
        self.apart.reap();
        let used = self.processes.refresh();
        let sampling = self.sample();
        let lifts = !self.wanted.policy.parts.is_empty();
        let due = if lifts { self.processes.due() } else { Vec::new() };
        for (pid, why) in self.processes.take_unreadable() {
            self.say(Event::Refused { pid, why: &why });
        }
        self.ends.set(&self.processes.pids());
        let polling = own_cpu_time().saturating_sub(before).saturating_sub(sampling);
        self.polling += polling;
        let pause = self.share.count(polling, self.turned.elapsed());
        tracing::debug!(?polling, ?pause, members = self.count(), "polled the processes");
        self.turned = Instant::now();
        self.free = self.turned + pause;
        self.give_back(stops);
        self.give_back_zeros();
        for pid in due {
            if stops() || !self.is_heard {
                break;
            }
            if self.processes.is_due(pid) {
                self.lift(pid);
            }
        }
        self.collapse(stops);
        if self.processes.is_over() {
            return None;
        }
        self.last_delay = self.delay(used);
        Some(self.last_delay.max(pause))
    }

    /// Reads the samples of the code in use, if only that is copied. Returns the CPU time that this took.
    fn sample(&mut self) -> Duration {
        let Some(hot) = &mut self.wanted.hot else { return Duration::ZERO };
        let before = own_cpu_time();
        if let Some(why) = hot.turn(&mut self.processes) {
            self.is_heard &= (self.tell)(Event::Note(&why));
        }
        if let Some(why) = hot.lacks_pressure() {
            self.is_heard &= (self.tell)(Event::Detail(&why));
        }
        let sampling = own_cpu_time().saturating_sub(before);
        self.sampling += sampling;
        sampling
    }

    fn lift(&mut self, pid: u32) {
        let Some(_turn) = turn_of_change(pid) else {
            tracing::debug!(pid, "it is compared");
            return self.processes.postpone(pid);
        };
        let before = own_cpu_time();
        // Read first: the process may open an object meanwhile.
        let code = code_of(pid);
        let Some(start) = self.processes.start_of(pid) else { return };
        let done = self.work_on(pid, |live| live.try_lift(pid, start));
        let spent = own_cpu_time().saturating_sub(before) + done.cpu;
        self.lifting += spent;
        self.is_heard &= done.is_heard;
        tracing::debug!(pid, ?done, ?spent, "a running process");
        match done.result {
            Ok(attempt) => {
                if let (Some(hot), Some(code)) = (&mut self.wanted.hot, &attempt.code) {
                    hot.found(&self.processes, pid, code.clone());
                }
                self.lifted += u64::from(self.processes.tried(pid, code, spent, &attempt));
                // Why is said with what was lifted.
                if attempt.is_partial && attempt.wants.is_none() {
                    let _ = self.processes.refused(pid, Duration::ZERO);
                }
            }
            Err(why) => {
                if self.processes.refused(pid, spent) {
                    self.say(Event::Refused { pid, why: &why });
                }
            }
        }
    }

    /// Lifts a process, if that is worth it, and says what was done. What a borrowed thread has done after an attempt was
    /// given up is seen, and said, by the next one.
    fn try_lift(&mut self, pid: u32, start: u64) -> Done {
        let told = self.processes.told(pid);
        let hot = self.wanted.hot.as_ref();
        let hot_policy = hot.map(|hot| Policy { copies: hot.copies(pid), ..self.wanted.policy.clone() });
        let samples = hot.and_then(|hot| hot.says(pid));
        let target = Target {
            chosen: Chosen { pid, start: Some(start) },
            policy: hot_policy.as_ref().unwrap_or(&self.wanted.policy),
            seccomp: self.wanted.seccomp,
            copied: self.processes.copied(),
            explains: told.is_unclear || self.wanted.explains && !told.is_known,
            collapses: self.wanted.anonymous.is_some(),
        };
        let tried = lift_if(target, self.processes.affords(pid));
        let result = tried.map(|Tried { change, lifted, wants, code }| {
            let attempt = Attempt { is_lifted: lifted, wants, code, ..Attempt::default() };
            let Some(mut change) = change else { return attempt };
            if let (Some(samples), Some(line), None) = (&samples, change.lines.first_mut(), wants) {
                line.push_str(samples);
            }
            let change = &change;
            let huge = change.huge_bytes(&self.wanted.policy.parts);
            let is_lifted = lifted || told.is_unclear && huge > told.huge;
            let (is_partial, cpu) = (change.is_partial, self.processes.cpu_of(pid));
            // One that lacks huge pages is tried again and again.
            if !(told.is_unclear && is_partial && huge == told.huge) {
                self.say(match is_lifted {
                    true => Event::Lifted { pid, change, cpu },
                    false => Event::Nothing { pid, change },
                });
            }
            Attempt { is_lifted, is_partial, copied: change.copied, huge: Some(huge), ..attempt }
        });
        Done { result, cpu: Duration::ZERO, is_heard: self.is_heard }
    }

    /// Does work on a process, in a child whose CPU time it counts if the process is another user's ([`other_user`]).
    fn work_on(&mut self, pid: u32, work: impl FnOnce(&mut LiveLift) -> Done) -> Done {
        let Some(user) = other_user(pid) else { return work(self) };
        let mut apart = std::mem::take(&mut self.apart);
        let done = apart.run(user, || {
            let done = work(self);
            Done { cpu: own_cpu_time(), ..done }
        });
        self.apart = apart;
        done
    }

    /// Collapses anonymous memory of the processes whose turn it is.
    fn collapse(&mut self, stops: &dyn Fn() -> bool) {
        let Some(anonymous) = &mut self.wanted.anonymous else { return };
        anonymous.retain(&self.processes);
        for pid in anonymous.due(&self.processes) {
            if stops() || !self.is_heard {
                return;
            }
            if self.zeros.is_short(pid) {
                continue;
            }
            // It is compared: that comes first.
            let Some(_turn) = turn_of_change(pid) else { continue };
            let before = own_cpu_time();
            let turn = anonymous.turn(&self.processes, pid);
            let spent = own_cpu_time().saturating_sub(before);
            self.lifting += spent;
            self.processes.spend(pid, spent);
            tracing::debug!(pid, ?turn, ?spent, "anonymous memory");
            match &turn {
                Turn::Collapsed(change) => self.is_heard &= (self.tell)(Event::Collapsed { pid, change }),
                Turn::Nothing => {}
                Turn::Refused(why) => self.is_heard &= (self.tell)(Event::Refused { pid, why }),
            }
        }
        if let Some(line) = anonymous.exhausted() {
            self.is_heard &= (self.tell)(Event::Note(&line));
        }
    }

    /// Returns the time until the next poll.
    fn delay(&self, used: Duration) -> Duration {
        // All CPUs may work for one program.
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let cpus = u32::try_from(cpus).unwrap_or(u32::MAX);
        let needed = self.processes.lacks_at_least().map_or(LONGEST, |lacks| lacks / cpus);
        let chooses = self.wanted.hot.as_ref().is_some_and(Hot::chooses);
        let longest = if chooses { hot::CHOOSING } else { LONGEST };
        let idle = if self.processes.is_open() { LONGEST } else { LONGEST_IDLE };
        match used.is_zero() {
            true => (self.last_delay * 2).clamp(SHORTEST, idle),
            false => needed.clamp(SHORTEST, longest),
        }
    }

    /// Waits for `time`, or until all processes have ended or `other` can be read.
    pub(crate) fn wait(&mut self, time: Duration, other: Option<BorrowedFd>) -> Woken {
        let until = Instant::now() + time;
        match self.ends.wait(time, other) {
            // A program that starts one short process after the other must not wake it all the time.
            Woken::AllEnded => {
                let free = self.free.min(until);
                match self.ends.wait(free.saturating_duration_since(Instant::now()), other) {
                    Woken::Time => Woken::AllEnded,
                    woken => woken,
                }
            }
            woken => woken,
        }
    }

    /// Returns whether no process is left, and none can come.
    pub(crate) fn is_over(&self) -> bool {
        self.processes.is_over()
    }

    /// Returns how many processes are watched.
    pub(crate) fn count(&self) -> usize {
        self.processes.pids().len()
    }

    /// Returns what it took so far.
    pub(crate) fn summary(&self) -> Summary {
        let LiveLift { polling, lifting, sampling, lifted, .. } = *self;
        Summary { watched: self.began.elapsed(), polling, lifting, sampling, lifted }
    }

    /// Does a turn for a run, and reports the CPU time of this process at the end, unless it had next to nothing
    /// to do.
    fn turn_of_run(&mut self) -> Option<Duration> {
        let next = self.turn(&|| false);
        let summary = self.summary();
        let is_worth_a_line = summary.watched >= Duration::from_secs(1) || !summary.lifting.is_zero();
        if next.is_none() && is_worth_a_line {
            self.say(Event::Note(&summary.to_string()));
        }
        next
    }
}

/// Returns the user of a process, if that is not root and the watcher has the rights of root: what such a user arranges
/// must not make the watcher wait.
fn other_user(pid: u32) -> Option<u32> {
    let is_root = nix::unistd::geteuid().is_root();
    owner(pid).filter(|user| is_root && *user != 0)
}

impl Watch for LiveLift {
    /// Messages are written only with -v. Otherwise a reader of the program's stderr need not wait for this
    /// process's end.
    fn descriptors(&self) -> Vec<RawFd> {
        if self.speaks { vec![libc::STDERR_FILENO] } else { Vec::new() }
    }

    fn first_delay(&self) -> Duration {
        self.delay(Duration::from_millis(1))
    }

    fn tick(&mut self, _: &Program) -> Option<Duration> {
        self.turn_of_run()
    }

    /// Goes on if the program has left processes behind.
    fn ended(&mut self, _: &Program) -> Option<Duration> {
        self.turn_of_run()
    }

    fn rest(&mut self, time: Duration) -> bool {
        self.wait(time, None) != Woken::Time
    }
}
