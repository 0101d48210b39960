// SPDX-License-Identifier: Apache-2.0
//! Lifts a process that runs already, and gives it its files' own pages back.
//!
//! For code and read-only data one thread at a time is stopped, for the microseconds of a system call
//! ([`hugelift_inject::live`]). The bytes are copied from outside. For data all threads are stopped for a
//! moment. Anonymous memory is collapsed from outside, and nobody is stopped
//! ([`crate::watcher::collapse`]).

mod change;
mod chosen;
mod collapse;
mod give_back;
mod help;
mod lift;
mod map_anew;
mod open;
mod page_size;
mod switchable;
mod unused;

pub use change::Change;
pub use chosen::{Chosen, Name};
pub(crate) use collapse::collapse_once;
use collapse::{collapse_somehow, unchanged};
pub(crate) use give_back::{GivenBack, give_back};
pub use hugelift_inject::live::Pages;
pub(crate) use lift::{Target, Tried, lift_if};
pub use map_anew::{MappedAnew, map_anew};
pub use page_size::{Resized, map_by};
pub use switchable::{Switchable, huge_bytes, small_bytes, switchable};
pub use unused::give_back_unused;

use crate::options::{PolicyOptions, Seccomp};
use change::{millis, report};
use hugelift_core::addr::{Range, human_bytes};
use hugelift_core::collapse::Budget;
use hugelift_core::heat::follow::Code;
use hugelift_core::plan::plan;
use hugelift_core::policy::{Backing, Copies, Policy, SpanChoice};
use hugelift_core::restore::{Restored, replaced};
use hugelift_core::snapshot::{Part, Snapshot};
use hugelift_core::target::Target as _;
use hugelift_inject::live::{LIFTS_DATA, Left, Stops};
use hugelift_inject::restore::{NotRestored, restore as restore_copies};
use hugelift_linux::proc::pagemap;
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::proc::snapshot;
use open::{forbidden_calls, free_unused, in_tracer_as_a_whole, left, not_restored, open, read_process};
use std::time::{Duration, Instant};

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
    /// Which text and rodata may be copied.
    pub copies: Copies,
}

impl AttachOptions {
    fn policy(&self) -> Result<Policy, String> {
        Ok(Policy { copies: self.copies.clone(), ..self.policy.policy()? })
    }
}

/// Lifts text, read-only data and data of a running process, and collapses its anonymous memory.
///
/// # Errors
/// One line that says why the process cannot be changed. It is then as before.
pub fn attach(chosen: Chosen, options: &AttachOptions) -> Result<Change, String> {
    attach_reached(chosen.reached()?, options).map(|change| change.of(chosen))
}

fn attach_reached(chosen: Chosen, options: &AttachOptions) -> Result<Change, String> {
    let pid = chosen.pid;
    let began = Instant::now();
    let mut policy = options.policy()?;
    let Running { mapped, anonymous, notes } = Running::of(&mut policy, options.copies_only);
    policy.parts = mapped;
    let seccomp = options.seccomp;
    let mut change = match policy.parts.is_empty() {
        true => read_process(pid).and_then(|_| unchanged(pid))?,
        false => lift::lift(chosen, &policy, seccomp, !anonymous.is_empty())?,
    };
    if !anonymous.is_empty() {
        let budget = Budget { cpu: options.cpu, added: options.added, spare: options.policy.spare };
        let collapsed =
            chosen.check().and_then(|()| collapse_somehow(chosen, seccomp, &anonymous, &[], &budget));
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

/// Checks that [`attach`] could make the copies again that a process has, if they were undone.
///
/// # Errors
/// One line: how much of them it could not make, and why.
pub fn could_lift_again(chosen: Chosen, options: &AttachOptions) -> Result<(), String> {
    let mut policy = options.policy()?;
    policy.parts = Running::of(&mut policy, options.copies_only).mapped;
    lift::again(chosen, &policy, options.seccomp)
}

/// Returns what [`attach`] would copy of the text, if it could copy all: it matters which of that is in use.
///
/// # Errors
/// One line: the process cannot be read, or the policy is malformed.
pub fn code_to_copy(chosen: Chosen, options: &AttachOptions) -> Result<Code, String> {
    let mut policy = options.policy()?;
    policy.parts = Running::of(&mut policy, options.copies_only).mapped;
    lift::code_to_copy(chosen.reached()?, &policy)
}

/// Says what [`attach`] would do, and changes nothing.
///
/// # Errors
/// See [`attach`].
pub fn preview(chosen: Chosen, options: &AttachOptions) -> Result<Change, String> {
    preview_reached(chosen.reached()?, options).map(|change| change.of(chosen))
}

fn preview_reached(chosen: Chosen, options: &AttachOptions) -> Result<Change, String> {
    let mut policy = options.policy()?;
    let Running { mapped, anonymous, notes } = Running::of(&mut policy, options.copies_only);
    policy.parts = mapped;
    let mut change = match policy.parts.is_empty() {
        true => read_process(chosen.pid).and_then(|_| unchanged(chosen.pid))?,
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
    /// The parts that are collapsed: anonymous and shared memory.
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
            anonymous: of(&[Part::Bss, Part::Heap, Part::Stack, Part::Anon, Part::Jit, Part::Shm]),
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
        "the data of a running process cannot be put on pages of the pool: the library that guards such data against \
         fork(2) is loaded only when a program starts ('hugelift run --data-backing hugetlb')",
    )
}

/// Maps the files' own pages back where text and read-only data of a running process are copies.
///
/// # Errors
/// See [`attach`].
pub fn restore(chosen: Chosen, seccomp: Seccomp) -> Result<Change, String> {
    restore_reached(chosen.reached()?, seccomp).map(|change| change.of(chosen))
}

fn restore_reached(chosen: Chosen, seccomp: Seccomp) -> Result<Change, String> {
    let pid = chosen.pid;
    let began = Instant::now();
    let (_, before) = read_process(pid)?;
    let copies = replaced(&before);
    let has_unused = Left::find(pid, &before).bytes() > 0;
    let mut freed = None;
    let (results, stops, mut complaints) = match copies.is_empty() && !has_unused {
        true => (Vec::new(), Stops::default(), Vec::new()),
        false => in_tracer_as_a_whole(|| {
            let mut live = open(chosen, &before.mappings, seccomp)?;
            freed = free_unused(&mut live, pid, &before);
            let results = restore_copies(&mut live, Process::new(pid), &before, &copies);
            let complaints = forbidden_calls(&live).chain(left(live.scratch().all())).collect();
            Ok((results, live.stops(), complaints))
        })?,
    };
    let total = copies.iter().map(|copy| copy.range.len()).sum();
    let mut restored = Restored { copied_bytes: total, ..Restored::default() };
    for (copy, result) in copies.iter().zip(&results) {
        match result {
            Ok(()) => restored.restored_bytes += copy.range.len(),
            Err(why) => {
                if matches!(why, NotRestored::Differs { .. }) {
                    restored.differing_bytes += copy.range.len();
                }
                complaints.push(not_restored(&before, copy, &why.to_string()));
            }
        }
    }
    let line = match total {
        0 => "no text and no rodata of it is a copy: nothing to restore".into(),
        _ => format!(
            "{} of {} of copied text and rodata are pages of their files again",
            human_bytes(restored.restored_bytes),
            human_bytes(total)
        ),
    };
    let kept = kept(pid, &before);
    let after = snapshot::live(Some(pid), 0).map_err(|e| e.to_string())?;
    let report = report(pid, &after, &plan(&after, &Policy::default()), None)?;
    let lines = std::iter::once(line + &freed.unwrap_or_default()).chain(kept).collect();
    let change = Change::new(lines, complaints, stops, began.elapsed(), report);
    Ok(Change { restored: Some(restored), ..change })
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
