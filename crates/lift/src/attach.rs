// SPDX-License-Identifier: Apache-2.0
//! Lifts a process that runs already, and gives it its files' own pages back.
//!
//! For code and read-only data one thread at a time is stopped, for the microseconds of a system call
//! ([`hugelift_os::trace::live`]). The bytes are copied from outside. For data all threads are stopped for a
//! moment. Anonymous memory is collapsed from outside, and nobody is stopped
//! ([`hugelift_os::watch::collapse`]).

mod help;
mod lift;

use lift::lift;
pub(crate) use lift::{Target, Tried, lift_if};

use crate::options::{PolicyOptions, Seccomp};
use hugelift_core::addr::{Range, human_bytes};
use hugelift_core::apply::Outcome;
use hugelift_core::collapse::{Budget, Collapsed};
use hugelift_core::plan::plan;
use hugelift_core::policy::{Backing, Policy, SpanChoice};
use hugelift_core::printable::Untrusted;
use hugelift_core::report::Report;
use hugelift_core::restore::{Replaced, replaced};
use hugelift_core::snapshot::{Part, Snapshot};
use hugelift_core::target::{Fault, Target as _};
use hugelift_os::proc::pagemap;
use hugelift_os::proc::procfs::{Process, Status};
use hugelift_os::proc::snapshot;
use hugelift_os::trace::lent::NotLent;
use hugelift_os::trace::live::{LIFTS_DATA, Live, Stops};
use hugelift_os::trace::ptrace;
use hugelift_os::trace::restore::restore as restore_copies;
use hugelift_os::watch::collapse::{Refused, collapse, collapse_by};
use hugelift_os::watch::watcher::Program;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use serde::Serialize;
use std::io;
use std::time::{Duration, Instant};

/// A process in messages: the name of its program and its id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name(Untrusted, u32);

impl Name {
    /// Reads the name of a process; the name is empty if there is no such process.
    pub fn of(pid: u32) -> Name {
        let comm = Process::new(pid).stat().map(|stat| stat.comm);
        Name(comm.unwrap_or_else(|_| Untrusted::from("")), pid)
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.as_os_str().is_empty() {
            true => write!(f, "process {}", self.1),
            false => write!(f, "{} (process {})", self.0, self.1),
        }
    }
}

/// A process that was chosen, and is still the same if it was started at that moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chosen {
    /// Its id.
    pub pid: u32,
    /// When it was started, in clock ticks since boot; `None` if that is not known, and not checked.
    pub start: Option<u64>,
}

impl Chosen {
    /// Chooses the process that has this id now.
    pub fn now(pid: u32) -> Chosen {
        Chosen { pid, start: Process::new(pid).stat().ok().map(|stat| stat.start) }
    }

    /// Checks that the id is not that of another process by now.
    ///
    /// # Errors
    /// One line that says so.
    pub(crate) fn check(self) -> Result<(), String> {
        match self.start == Chosen::now(self.pid).start || self.start.is_none() {
            true => Ok(()),
            false => Err("it has ended, and another process may have its id".into()),
        }
    }
}

/// What is asked of the lift of a running process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttachOptions {
    /// What to lift, and onto what.
    pub policy: PolicyOptions,
    /// What is done under a seccomp filter.
    pub seccomp: Seccomp,
    /// CPU time of hugelift that collapsing anonymous memory may take.
    pub cpu: Duration,
    /// Bytes of memory that collapsing anonymous memory may add.
    pub added: u64,
    /// Text and rodata get only what [`restore`] undoes: copies, no huge pages of the page cache.
    pub copies_only: bool,
}

/// What the change of a running process showed.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// What is huge now, or what was restored.
    pub lines: Vec<String>,
    /// What was not done although it might have been, a line each.
    pub complaints: Vec<String>,
    /// How often a thread was borrowed.
    pub borrowed: u64,
    /// The longest time for which one was stopped, in microseconds.
    pub longest_stop_us: u64,
    /// How often all threads were stopped, to replace data.
    pub all_stopped: u64,
    /// The longest time for which they were, from the first to the last, in microseconds.
    pub longest_stop_of_all_us: u64,
    /// From the first look at the process to the end, in milliseconds.
    pub took_ms: f64,
    /// Bytes of anonymous copies that were made, of ordinary memory.
    #[serde(skip)]
    pub(crate) copied: u64,
    /// Whether any code or constants were put on huge pages.
    #[serde(skip)]
    pub(crate) is_lifted: bool,
    /// Whether some of what was planned stays as it was.
    #[serde(skip)]
    pub(crate) is_partial: bool,
    /// What smaps shows afterwards.
    pub report: Report,
}

/// Lifts text, read-only data and data of a running process, and collapses its anonymous memory.
///
/// # Errors
/// One line that says why the process cannot be changed. It is then as before.
pub fn attach(chosen: Chosen, options: &AttachOptions) -> Result<Change, String> {
    let pid = chosen.pid;
    let began = Instant::now();
    let mut policy = options.policy.policy()?;
    let Running { mapped, anonymous, notes } = Running::of(&mut policy, options.copies_only);
    policy.parts = mapped;
    let seccomp = options.seccomp;
    let mut change = match policy.parts.is_empty() {
        true => look(pid).and_then(|_| unchanged(pid))?,
        false => lift(chosen, &policy, seccomp)?,
    };
    if !anonymous.is_empty() {
        let budget = Budget { cpu: options.cpu, added: options.added, spare: options.policy.spare };
        let collapsed = chosen.check().and_then(|()| collapse_somehow(chosen, seccomp, &anonymous, &budget));
        match collapsed {
            Ok((collapsed, stops)) => {
                change.count(stops);
                change.lines.extend(collapsed.to_string().lines().map(String::from));
            }
            Err(refused) if change.lines.is_empty() => return Err(refused),
            Err(refused) => change.complaints.push(refused),
        }
        change.report = unchanged(pid)?.report;
        change.took_ms = millis(began.elapsed());
    }
    change.complaints.extend(notes.into_iter().map(String::from));
    Ok(change)
}

/// Says what [`attach`] would do, and changes nothing.
///
/// # Errors
/// See [`attach`].
pub fn preview(chosen: Chosen, options: &AttachOptions) -> Result<Change, String> {
    let mut policy = options.policy.policy()?;
    let Running { mapped, anonymous, notes } = Running::of(&mut policy, options.copies_only);
    policy.parts = mapped;
    let mut change = match policy.parts.is_empty() {
        true => look(chosen.pid).and_then(|_| unchanged(chosen.pid))?,
        false => lift::preview(chosen, &policy)?,
    };
    if !anonymous.is_empty() {
        let parts: Vec<String> = anonymous.iter().map(ToString::to_string).collect();
        change.lines.push(format!(
            "would collapse {} with at most {:.1} s of CPU time, and add at most {}",
            parts.join(", "),
            options.cpu.as_secs_f64(),
            human_bytes(options.added)
        ));
    }
    change.complaints.extend(notes.into_iter().map(String::from));
    Ok(change)
}

/// What a policy means for a process that runs.
pub(crate) struct Running {
    /// The parts that are copied or mapped.
    pub(crate) mapped: Vec<Part>,
    /// The parts that are collapsed.
    pub(crate) anonymous: Vec<Part>,
    /// A line for each wish that only a start can fulfil.
    pub(crate) notes: Vec<&'static str>,
}

impl Running {
    /// Takes out of a policy what cannot be done to a process that runs and, if only copies are wanted, what
    /// [`restore`] does not undo.
    pub(crate) fn of(policy: &mut Policy, copies_only: bool) -> Running {
        let wanted = policy.parts.clone();
        let of = |parts: &[Part]| wanted.iter().copied().filter(|p| parts.contains(p)).collect::<Vec<Part>>();
        let written: &[Part] = match (copies_only, LIFTS_DATA) {
            (true, _) => &[],
            (false, true) => &[Part::Relro, Part::Data],
            (false, false) => &[Part::Relro],
        };
        if copies_only {
            policy.backings.retain(|backing| *backing != Backing::Pagecache);
        }
        let keeps_data = (!LIFTS_DATA && wanted.contains(&Part::Data)).then_some(DATA_STAYS);
        let notes = [leave_out_edges(policy), leave_out_pools(policy), keeps_data];
        Running {
            mapped: of(&[&[Part::Text, Part::Rodata], written].concat()),
            anonymous: of(&[Part::Bss, Part::Heap, Part::Stack, Part::Anon]),
            notes: notes.into_iter().flatten().collect(),
        }
    }
}

/// Said where data was to be lifted on an architecture on which a running process keeps it.
const DATA_STAYS: &str = "data of a running process stay on small pages on this architecture: hugelift cannot resume \
                          each thread from any place in its code; 'hugelift run --parts data' lifts them at the start";

/// Leaves out huge pages that a part fills only partly: what else may lie in them is known only at the moment at which
/// just the loader has run. Returns a line if they were asked for.
fn leave_out_edges(policy: &mut Policy) -> Option<&'static str> {
    let asked = std::mem::replace(&mut policy.span, SpanChoice::Inner);
    (asked != SpanChoice::Inner).then_some(
        "the first and last partial huge page of each part stay as they are while a process runs, as it may use the \
         memory beside them; 'hugelift run --span outer' lifts them at the start",
    )
}

/// Leaves the pools out of what data may get: a child of fork(2) that finds the pool empty is killed, unless the
/// program was started with the library that guards it. Returns a line if pools were asked for.
fn leave_out_pools(policy: &mut Policy) -> Option<&'static str> {
    let writes = policy.parts.contains(&Part::Data);
    let had = policy.data_backings.len();
    policy.data_backings.retain(|backing| *backing != Backing::Hugetlb);
    let is_left_out = writes && policy.data_backings.len() < had;
    is_left_out.then_some(
        "data of a running process get no pages of the pool: their guard of fork(2) is loaded at a start alone \
         ('hugelift run --data-backing hugetlb')",
    )
}

/// Collapses anonymous memory from outside or, without the right for that, by a borrowed thread.
fn collapse_somehow(
    chosen: Chosen,
    seccomp: Seccomp,
    parts: &[Part],
    budget: &Budget,
) -> Result<(Collapsed, Stops), String> {
    match collapse(chosen.pid, parts, budget) {
        Err(Refused::Denied { .. }) => in_tracer(|| collapse_inside(chosen, seccomp, parts, budget)),
        other => other.map(|done| (done, Stops::default())).map_err(|refused| refused.to_string()),
    }
}

/// Collapses anonymous memory once. Also returns the process as it is afterwards, if any of it has become huge.
///
/// # Errors
/// One line that says why nothing of it can be collapsed.
pub(crate) fn collapse_once(
    chosen: Chosen,
    seccomp: Seccomp,
    parts: &[Part],
    budget: &Budget,
) -> Result<(Collapsed, Option<Change>), String> {
    let began = Instant::now();
    let (collapsed, stops) = collapse_somehow(chosen, seccomp, parts, budget)?;
    // It may have ended meanwhile.
    let now = if collapsed.huge > 0 { unchanged(chosen.pid).ok() } else { None };
    let change = now.map(|mut change| {
        change.count(stops);
        change.lines.extend(collapsed.to_string().lines().next().map(String::from));
        change.took_ms = millis(began.elapsed());
        change
    });
    Ok((collapsed, change))
}

/// Reports a process as it is.
fn unchanged(pid: u32) -> Result<Change, String> {
    let began = Instant::now();
    let now = snapshot::live(Some(pid), 0).map_err(|e| e.to_string())?;
    let report = report(pid, &now, &plan(&now, &Policy::default()), None)?;
    Ok(change(Vec::new(), Vec::new(), Stops::default(), began.elapsed(), report))
}

/// Maps the files' own pages back where text and read-only data of a running process are copies.
///
/// # Errors
/// See [`attach`].
pub fn restore(chosen: Chosen, seccomp: Seccomp) -> Result<Change, String> {
    let pid = chosen.pid;
    let began = Instant::now();
    let (_, before) = look(pid)?;
    let copies = replaced(&before);
    let (results, stops, mut complaints) = match copies.is_empty() {
        true => (Vec::new(), Stops::default(), Vec::new()),
        false => in_tracer(|| {
            let mut live = open(chosen, &before, seccomp)?;
            let results = restore_copies(&mut live, Process::new(pid), &before, &copies);
            let complaints = forbidden_calls(&live).chain(left(live.scratch().all())).collect();
            Ok((results, live.stops(), complaints))
        })?,
    };
    let mut restored = 0;
    for (copy, result) in copies.iter().zip(&results) {
        match result {
            Ok(()) => restored += copy.range.len(),
            Err(why) => complaints.push(not_restored(&before, copy, &why.to_string())),
        }
    }
    let total: u64 = copies.iter().map(|copy| copy.range.len()).sum();
    let line = match total {
        0 => "no text and no rodata of it is a copy: nothing to restore".into(),
        _ => format!(
            "{} of {} of copied text and rodata are pages of their files again",
            human_bytes(restored),
            human_bytes(total)
        ),
    };
    let kept = kept(pid, &before);
    let after = snapshot::live(Some(pid), 0).map_err(|e| e.to_string())?;
    let report = report(pid, &after, &plan(&after, &Policy::default()), None)?;
    Ok(change(std::iter::once(line).chain(kept).collect(), complaints, stops, began.elapsed(), report))
}

/// Runs `work` in a thread of its own. Whatever that thread still traces at its end, the kernel lets go: so nothing
/// that can wait is done in it.
fn in_tracer<T: Send>(work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    // The timer that limits the waits must interrupt that thread.
    let alarm = SigSet::from(Signal::SIGALRM);
    alarm.thread_block().map_err(|e| format!("sigprocmask: {e}"))?;
    // Ctrl-Z must not stop hugelift while it holds threads.
    let stops = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU].into_iter().collect::<SigSet>();
    let before = stops.thread_swap_mask(SigmaskHow::SIG_BLOCK).map_err(|e| format!("sigprocmask: {e}"))?;
    let done = std::thread::scope(|scope| {
        let tracer = std::thread::Builder::new().name("tracer".into()).spawn_scoped(scope, work);
        let tracer = tracer.map_err(|e| format!("cannot start a thread: {e}; see 'ulimit -u'"))?;
        tracer.join().unwrap_or_else(|_| Err("the tracer ended early; the process goes on".into()))
    });
    let _ = before.thread_set_mask();
    done
}

/// Returns a line for each call that a seccomp filter has forbidden.
fn forbidden_calls(live: &Live) -> impl Iterator<Item = String> {
    live.refusals().iter().map(|refusal| format!("its seccomp filter {refusal}"))
}

/// Collapses anonymous memory without the right to do so from outside: a borrowed thread asks for it, and is
/// stopped for as long as the kernel copies a block.
fn collapse_inside(
    chosen: Chosen,
    seccomp: Seccomp,
    parts: &[Part],
    budget: &Budget,
) -> Result<(Collapsed, Stops), String> {
    let pid = chosen.pid;
    let (_, now) = look(pid)?;
    let program = Program::open(pid).map_err(|e| format!("/proc/{pid}/pagemap: {e}"))?;
    let mut live = open(chosen, &now, seccomp)?;
    let mut how = |block: Range| match live.collapse(block) {
        Err(Fault::Call { errno, .. }) => Err(io::Error::from_raw_os_error(errno)),
        other => other.map_err(|fault| io::Error::other(fault.to_string())),
    };
    let collapsed = collapse_by(&program, &now, parts, budget, &mut how).map_err(|e| e.to_string())?;
    Ok((collapsed, live.stops()))
}

/// Says what could not be unmapped.
fn left(leftovers: &[Range]) -> Option<String> {
    let bytes: u64 = leftovers.iter().map(|range| range.len()).sum();
    (bytes > 0).then(|| format!("{} of unused copies could not be unmapped", human_bytes(bytes)))
}

/// Returns a line about data and RELRO that are on huge pages. Their copy is the program's data: what it has
/// written is in no file.
fn kept(pid: u32, before: &Snapshot) -> Option<String> {
    let extents = before.extents().into_iter();
    let copies = extents.filter(|e| matches!(e.part, Part::Data | Part::Relro) && !e.file_backed);
    let huge = |range: Range| pagemap::huge_bytes_at_least(pid.cast_signed(), range).unwrap_or(0);
    let bytes: u64 = copies.map(|extent| huge(extent.range)).sum();
    (bytes > 0).then(|| {
        format!(
            "{} of data and relro keep their huge pages: they hold what the program wrote",
            human_bytes(bytes)
        )
    })
}

fn not_restored(before: &Snapshot, copy: &Replaced, why: &str) -> String {
    let path = before.objects.get(copy.object).map(|o| Untrusted::from(&o.path));
    let path = path.unwrap_or_else(|| Untrusted::from(""));
    format!("{} of {} of {path} not restored: {why}", human_bytes(copy.range.len()), copy.part)
}

fn change(
    lines: Vec<String>,
    complaints: Vec<String>,
    stops: Stops,
    took: Duration,
    report: Report,
) -> Change {
    Change {
        lines,
        complaints,
        borrowed: stops.count,
        longest_stop_us: micros(stops.longest),
        all_stopped: stops.all,
        longest_stop_of_all_us: micros(stops.longest_of_all),
        took_ms: millis(took),
        copied: 0,
        is_lifted: false,
        is_partial: false,
        report,
    }
}

impl Change {
    /// Adds the stops of a further step.
    fn count(&mut self, stops: Stops) {
        self.borrowed += stops.count;
        self.longest_stop_us = self.longest_stop_us.max(micros(stops.longest));
        self.all_stopped += stops.all;
        self.longest_stop_of_all_us = self.longest_stop_of_all_us.max(micros(stops.longest_of_all));
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Reads a process that can be changed.
fn look(pid: u32) -> Result<(Status, Snapshot), String> {
    let process = Process::new(pid);
    let status = process.status().map_err(|e| e.to_string())?;
    refuse(pid, &status)?;
    let snapshot = snapshot::live(Some(pid), 0).map_err(|e| e.to_string())?;
    if snapshot.objects.is_empty() {
        process.check_memory().map_err(|e| e.to_string())?;
        return Err("it maps no 64-bit ELF program".into());
    }
    Ok((status, snapshot))
}

/// Returns why a process must not be changed.
fn refuse(pid: u32, status: &Status) -> Result<(), String> {
    if pid == std::process::id() {
        return Err("hugelift does not change itself".into());
    }
    if status.kernel_thread == Some(true) {
        return Err("it is a thread of the kernel, which has no memory of its own".into());
    }
    if let Some(tracer @ 1..) = status.tracer {
        return Err(format!("it is traced by {}; end the tracer and try again", Name::of(tracer)));
    }
    let state = Process::new(pid).stat().map(|stat| stat.state);
    match state {
        Ok(state @ ('T' | 't')) => {
            Err(format!("it is stopped (state {state}); send it SIGCONT (kill -CONT {pid}) and try again"))
        }
        Ok('Z' | 'X') if Process::new(pid).threads().len() <= 1 => {
            Err("it has ended, and its parent has not yet waited for it".into())
        }
        _ => Ok(()),
    }
}

/// Says why no thread was borrowed, and what helps if a right is missing.
fn with_help(why: &NotLent) -> String {
    match why {
        NotLent::Trace(ptrace::Error::Os { source, .. })
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            format!("{why}; run hugelift as root (sudo), or see kernel.yama.ptrace_scope")
        }
        _ => why.to_string(),
    }
}

/// Prepares a process, and shows that a thread of it can be borrowed.
fn open(chosen: Chosen, snapshot: &Snapshot, seccomp: Seccomp) -> Result<Live, String> {
    let live = Live::new(chosen.pid, &snapshot.mappings, seccomp == Seccomp::Try);
    let mut live = live.map_err(|why| with_help(&why))?;
    // What leads to it is open now: from here on no other process can be meant.
    chosen.check()?;
    let got = live.borrow(|lent| lent.call(libc::SYS_getpid, [0; 6]));
    match got.map_err(|why| with_help(&why))? {
        ..0 => Err("a system call in it failed that cannot fail: a seccomp filter may refuse it".into()),
        _ => Ok(live),
    }
}

fn report(
    pid: u32,
    snapshot: &Snapshot,
    plan: &hugelift_core::plan::Plan,
    outcome: Option<&Outcome>,
) -> Result<Report, String> {
    let usage = Process::new(pid).smaps().map_err(|e| e.to_string())?;
    let mut report = Report::new(snapshot, Some(&usage), plan, outcome);
    report.pid = Some(pid);
    Ok(report)
}
