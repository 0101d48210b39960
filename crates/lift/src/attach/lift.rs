// SPDX-License-Identifier: Apache-2.0
//! The lift of text, read-only data and data of a running process: all that the policy wants, or what is worth its
//! cost.

use super::change::{Change, report};
use super::chosen::{Chosen, Name};
use super::give_back::{is_memory_alone, pages_of};
use super::help;
use super::open::{forbidden_calls, free_unused, in_tracer_as_a_whole, left, open, read_process};
use crate::dry_run::what;
use crate::options::Seccomp;
use hugelift_core::addr::{self, Range, human_bytes};
use hugelift_core::advice::About;
use hugelift_core::apply::{Outcome, apply, lifted};
use hugelift_core::budget;
use hugelift_core::complaints::complaints;
use hugelift_core::heat::follow::Code;
use hugelift_core::plan::{Plan, Span, plan};
use hugelift_core::policy::{Backing, Copies, Policy};
use hugelift_core::report::summary::summary;
use hugelift_core::restore::{replaced, without};
use hugelift_core::skip::{Reason, Skip};
use hugelift_core::snapshot::{Part, Snapshot, ThpOff};
use hugelift_core::worth;
use hugelift_inject::filter::Way;
use hugelift_inject::live::{Live, Stops};
use hugelift_linux::machine;
use hugelift_linux::machine::thp_switch::Allowance;
use hugelift_linux::proc::pagemap;
use hugelift_linux::proc::procfs::Status;
use hugelift_pages::pagecache;
use hugelift_pages::store;
use hugelift_pages::store::Moment;
use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Lifts all that the policy wants.
/// `collapses`: its anonymous memory is collapsed besides.
pub(super) fn lift(
    chosen: Chosen,
    asked: &Policy,
    seccomp: Seccomp,
    collapses: bool,
) -> Result<Change, String> {
    let (lift, before) = Lift::examine(chosen, asked, seccomp)?;
    let lift = Lift { collapses, ..lift };
    let prepared = lift.prepare(before, &lift.policy);
    lift.carry_out(prepared)
}

/// A process that is watched, and what is wanted of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    /// Which one it is.
    pub(crate) chosen: Chosen,
    /// What is to be lifted.
    pub(crate) policy: &'a Policy,
    /// What is done under a seccomp filter.
    pub(crate) seccomp: Seccomp,
    /// Bytes of anonymous copies that other watched processes have already.
    pub(crate) copied: u64,
    /// Whether to examine it closely also if there is nothing to lift.
    pub(crate) explains: bool,
    /// Its anonymous memory is collapsed besides.
    pub(crate) collapses: bool,
}

/// What became of a lift that must be worth its cost.
#[derive(Debug)]
pub(crate) struct Tried {
    /// The process afterwards; `None` if it was not changed, and no explanation was wanted.
    pub(crate) change: Option<Change>,
    /// Something was lifted.
    pub(crate) lifted: bool,
    /// The CPU time that lifting the rest would take, if there is a rest.
    pub(crate) wants: Option<Duration>,
    /// What of its code could still be copied, if the policy copies only the code in use.
    pub(crate) code: Option<Code>,
}

/// Lifts what is worth it: `affords` says so of a CPU time. What is huge already, in the page cache or in the
/// store, costs little; the rest must be copied.
///
/// # Errors
/// See [`super::attach`].
pub(crate) fn lift_if(target: Target<'_>, affords: impl Fn(Duration) -> bool) -> Result<Tried, String> {
    let chosen = target.chosen;
    let tried = lift_reached_if(Target { chosen: chosen.reached()?, ..target }, affords)?;
    Ok(Tried { change: tried.change.map(|change| change.of(chosen)), ..tried })
}

fn lift_reached_if(target: Target<'_>, affords: impl Fn(Duration) -> bool) -> Result<Tried, String> {
    let Target { chosen, policy, seccomp, copied, explains, collapses } = target;
    let (mut lift, mut before) = Lift::examine(chosen, policy, seccomp)?;
    lift.collapses = collapses;
    lift.policy.spare = budget::less_copied(&mut before.machine, lift.policy.spare, copied);
    let free = Policy { copies: Copies::Later, ..lift.policy.clone() };
    let mapped = lift.prepare(before, &free);
    let bytes: u64 = mapped.plan.spans.iter().map(|span| span.range.len()).sum();
    let hot = match &policy.copies {
        Copies::Hot(hot) => Some(hot),
        Copies::All | Copies::Later => None,
    };
    let mut code = hot.map(|_| code_of(chosen.pid, &mapped));
    let later: u64 = match (hot, &code) {
        (Some(hot), Some(code)) => code.left_of(hot),
        _ => left_to_copy(&mapped.plan).map(|skip| skip.range.len()).sum(),
    };
    let is_all = code.as_ref().is_none_or(|code| code.left.is_empty());
    let (of_mapped, of_all) = (worth::cost(0, bytes), worth::cost(later, bytes));
    let unchanged = |wants, code| Ok(Tried { change: None, lifted: false, wants, code });
    let (prepared, wants) = match (bytes, later) {
        (0, 0) if explains && is_all => (mapped, None),
        (0, 0) => return unchanged(None, code),
        (_, 1..) if affords(of_all) => (lift.prepare(mapped.before, &lift.policy), None),
        (1.., _) if affords(of_mapped) => (mapped, (later > 0).then(|| worth::cost(later, 0))),
        (0, _) => return unchanged(Some(of_all), code),
        _ => return unchanged(Some(of_mapped), code),
    };
    let is_planned = !prepared.plan.spans.is_empty();
    let change = lift.carry_out(prepared)?;
    let is_lifted = change.is_lifted;
    if !is_lifted && (later > 0 || is_planned) {
        // Memory is short, or no thread could be borrowed, for example. That may change.
        return Err(change.complaints.into_iter().chain(change.lines).next().unwrap_or_default());
    }
    if let (Some(hot), Some(code), None, false) = (hot, &mut code, wants, change.is_partial) {
        code.copy(hot);
        code.anonymous.extend(&change.code);
        code.anonymous.sort();
    }
    Ok(Tried { change: Some(change), lifted: is_lifted, wants, code })
}

/// Returns what a plan leaves to be copied later.
fn left_to_copy(plan: &Plan) -> impl Iterator<Item = &Skip> {
    plan.skips.iter().filter(|skip| skip.reason == Reason::CopiedLater)
}

/// Returns what of the code of a process could be copied, and how much of it is.
fn code_of(pid: u32, Prepared { before, plan, .. }: &Prepared) -> Code {
    let mut left: Vec<Range> =
        left_to_copy(plan).filter(|skip| skip.part == Part::Text).map(|skip| skip.range).collect();
    let (mut copied, mut anonymous) = (0, Vec::new());
    // A skip reaches over the copies between the pieces that are left.
    for copy in replaced(before).into_iter().filter(|copy| copy.part == Part::Text) {
        if is_memory_alone(before, &copy) {
            anonymous.extend(before.machine.thp_page.and_then(|page| copy.range.inner(page)));
        }
        // The program may have split some of its huge pages.
        let huge = match is_huge(pid, copy.range) {
            true => vec![copy.range],
            false => pages_of(&copy).map(|page| page.range).filter(|page| is_huge(pid, *page)).collect(),
        };
        for huge in huge {
            copied += huge.len();
            left = left.into_iter().flat_map(|piece| piece.minus(huge)).collect();
        }
    }
    left.sort();
    anonymous.sort();
    Code { left, copied, anonymous }
}

/// The lift of a process.
struct Lift {
    chosen: Chosen,
    began: Instant,
    seccomp: Seccomp,
    /// The parts that were asked for.
    asked: Vec<Part>,
    /// The policy that was asked for, less what seccomp filters forbid.
    policy: Policy,
    /// A line for each backing that filters forbid.
    forbidden: Vec<String>,
    stops: Stops,
    /// Its anonymous memory is collapsed besides.
    collapses: bool,
}

/// A process, and the plan for it.
struct Prepared {
    before: Snapshot,
    /// The entries of the store that the plan maps.
    files: Vec<File>,
    plan: Plan,
}

impl Lift {
    /// Reads a process, and finds what filters forbid and what the page cache has of its files in huge folios.
    fn examine(chosen: Chosen, asked: &Policy, seccomp: Seccomp) -> Result<(Lift, Snapshot), String> {
        let pid = chosen.pid;
        let began = Instant::now();
        let (status, mut before) = read_process(pid)?;
        chosen.check()?;
        let Permitted { policy, forbidden, stops } = permitted(chosen, &status, &before, asked, seccomp)?;
        machine::update_running(&mut before.machine, &status);
        pagecache::find_wanted(pid, &mut before, &policy);
        let asked = asked.parts.clone();
        let collapses = false;
        Ok((Lift { chosen, began, seccomp, asked, policy, forbidden, stops, collapses }, before))
    }

    /// Plans the lift; makes the entries of the store that the policy lets it make.
    fn prepare(&self, mut before: Snapshot, policy: &Policy) -> Prepared {
        let mut files = Vec::new();
        if policy.backings.contains(&Backing::Shared) {
            let offer = store::offer(self.chosen.pid, &before, policy, Moment::Running);
            before.stored = offer.stored;
            files = offer.files;
        }
        let plan = rest_of_plan(self.chosen.pid, &before, policy);
        tracing::debug!(?plan, "planned");
        Prepared { before, files, plan }
    }

    fn carry_out(self, Prepared { before, files, plan }: Prepared) -> Result<Change, String> {
        let Lift { chosen, began, seccomp, asked, policy, mut forbidden, mut stops, collapses } = self;
        let pid = chosen.pid;
        // For huge pages of the page cache no call is made that a filter could forbid.
        let needs_none = |span: &Span| span.attempts.iter().all(|one| one.backing == Backing::Pagecache);
        if policy.parts == asked && plan.spans.iter().all(needs_none) {
            forbidden.clear();
        }
        let mut freed = None;
        let outcome = match plan.spans.is_empty() {
            true => Outcome::default(),
            false => {
                let (outcome, while_applied, refused) = in_tracer_as_a_whole(|| {
                    let mut live = open(chosen, &before.mappings, seccomp)?;
                    freed = free_unused(&mut live, pid, &before);
                    files.into_iter().for_each(|file| _ = live.offer(file));
                    live.allow_thp(before.machine.allows_thp.then(Allowance::here).flatten());
                    let written = plan.spans.iter().filter(|span| span.part.is_writable());
                    live.may_be_written(written.map(|span| span.range));
                    let outcome = apply(&mut live, &plan);
                    // Where a call is forbidden there may be another way.
                    let is_short = !outcome.is_complete();
                    let refused: Vec<String> = forbidden_calls(&live).filter(|_| is_short).collect();
                    Ok((outcome, live.stops(), refused))
                })?;
                stops = stops.and(while_applied);
                forbidden.extend(refused);
                outcome
            }
        };
        tracing::debug!(?outcome, "applied");
        let report = report(pid, &before, &plan, Some(&outcome))?;
        let line = summary(&policy, &before, &plan, &report);
        let takes_none = report.totals.values().all(|total| total.liftable_bytes == 0);
        let advises = takes_none && policy.parts == asked && !collapses && !before.machine.allows_thp;
        let memory = advises.then(|| help::its_memory(pid)).flatten();
        let line = line + &memory.unwrap_or_default() + &freed.unwrap_or_default();
        let about = program_of(&before, pid);
        let complaints = complaints(&plan, &outcome);
        let largest = match complaints.main() {
            Some((bytes, Reason::ThpOff(ThpOff::Process))) => {
                Some(help::thp_off(pid, *bytes, &before.machine))
            }
            _ => complaints.largest(&About::program(&about)),
        };
        let copies: Vec<&Span> = lifted(&plan, &outcome)
            .filter_map(|(span, backing)| (backing == Backing::Thp).then_some(span))
            .collect();
        let code = copies.iter().filter(|span| span.part == Part::Text).map(|span| span.range).collect();
        let begun: u64 = outcome.spans.iter().filter(|s| s.lifted.is_none()).map(|s| s.begun).sum();
        let copied = copies.iter().map(|span| span.range.len()).sum::<u64>() + begun;
        let (is_lifted, is_partial) = (outcome.spans.iter().any(|s| s.is_changed()), !outcome.is_complete());
        let Outcome { lost, leftovers, .. } = outcome;
        let mut complaints: Vec<String> = lost.into_iter().chain(largest).collect();
        complaints.extend(left(&leftovers));
        complaints.extend(forbidden);
        let allowed = (is_lifted && before.machine.allows_thp).then(|| help::ALLOWED.to_string());
        let lines = std::iter::once(line).chain(allowed).collect();
        Ok(Change {
            copied,
            code,
            is_lifted,
            is_partial,
            ..Change::new(lines, complaints, stops, began.elapsed(), report)
        })
    }
}

/// Plans what a running process has not on huge pages yet.
fn rest_of_plan(pid: u32, before: &Snapshot, policy: &Policy) -> Plan {
    let mut plan = plan(before, policy);
    // Copies that an earlier lift has made huge stay, and huge pages of the page cache if they are wanted.
    let copies = replaced(before);
    // The kernel does not join the mappings of a copy on pages of the pool.
    let is_copy = |range: Range| addr::without(vec![range], copies.iter().map(|copy| copy.range)).is_empty();
    let is_cached = |span: &Span| span.attempts.first().is_some_and(|one| one.backing == Backing::Pagecache);
    let is_done = |span: &Span| is_copy(span.range) || is_cached(span) || span.part.is_writable();
    plan.spans.retain(|span| !(is_done(span) && is_huge(pid, span.range)));
    plan.skips.retain(|skip| {
        let is_spared = matches!(skip.reason, Reason::CopiedLater | Reason::Cold);
        !(is_spared && is_copy(skip.range) && is_huge(pid, skip.range))
    });
    plan
}

/// What [`lift`] would do, without doing it: no thread is stopped, and no entry of the store is made. Seccomp filters
/// are not asked, as they can only be read of a stopped thread.
pub(super) fn preview(chosen: Chosen, policy: &Policy) -> Result<Change, String> {
    let pid = chosen.pid;
    let began = Instant::now();
    let (status, mut before) = read_process(pid)?;
    chosen.check()?;
    machine::update_running(&mut before.machine, &status);
    pagecache::find_wanted(pid, &mut before, policy);
    if policy.backings.contains(&Backing::Shared) {
        before.stored = store::preview(&before, policy);
    }
    let plan = rest_of_plan(pid, &before, policy);
    let report = report(pid, &before, &plan, None)?;
    let lines = match plan.spans.is_empty() {
        true => vec![summary(policy, &before, &plan, &report)],
        false => plan.spans.iter().map(|span| format!("would lift {}", what(&before, span))).collect(),
    };
    let complaint =
        complaints(&plan, &Outcome::default()).largest(&About::program(&program_of(&before, pid)));
    Ok(Change::new(lines, complaint.into_iter().collect(), Stops::default(), began.elapsed(), report))
}

/// Returns what a lift of all that the policy wants would copy of the text of a process.
pub(super) fn code_to_copy(chosen: Chosen, asked: &Policy) -> Result<Code, String> {
    let (status, mut before) = read_process(chosen.pid)?;
    let policy = Policy { copies: Copies::Later, ..asked.clone() };
    machine::update_running(&mut before.machine, &status);
    pagecache::find_wanted(chosen.pid, &mut before, &policy);
    let mut files = Vec::new();
    if policy.backings.contains(&Backing::Shared) {
        // An entry that is damaged is no copy.
        let offer = store::offer(chosen.pid, &before, &policy, Moment::Running);
        (before.stored, files) = (offer.stored, offer.files);
    }
    let plan = rest_of_plan(chosen.pid, &before, &policy);
    Ok(code_of(chosen.pid, &Prepared { before, files, plan }))
}

/// Checks that what is copied of a process could be lifted again if its files' own pages were mapped back.
pub(super) fn again(chosen: Chosen, asked: &Policy, seccomp: Seccomp) -> Result<(), String> {
    let (Lift { policy, .. }, before) = Lift::examine(chosen, asked, seccomp)?;
    let copies = replaced(&before);
    let mut bare = without(&before, &copies);
    if policy.backings.contains(&Backing::Shared) {
        bare.stored = store::preview(&bare, &policy);
    }
    let plan = plan(&bare, &policy);
    let covered = |left: Vec<Range>, span: &Span| {
        left.into_iter().flat_map(|piece| piece.minus(span.range)).filter(|piece| !piece.is_empty()).collect()
    };
    let left: Vec<Range> = plan.spans.iter().fold(copies.iter().map(|copy| copy.range).collect(), covered);
    let bytes = |ranges: &[Range]| ranges.iter().map(|range| range.len()).sum::<u64>();
    let overlap =
        |skip: &&Skip| left.iter().filter_map(|l| l.intersect(skip.range)).map(Range::len).sum::<u64>();
    match plan.skips.iter().filter(|skip| overlap(skip) > 0).max_by_key(overlap) {
        None => Ok(()),
        Some(skip) => {
            let all: Vec<Range> = copies.iter().map(|copy| copy.range).collect();
            Err(format!("{} of {}: {}", human_bytes(bytes(&left)), human_bytes(bytes(&all)), skip.reason))
        }
    }
}

/// Returns the program that a process runs, as a command names it.
fn program_of(before: &Snapshot, pid: u32) -> PathBuf {
    let executable = before.objects.iter().find(|object| object.executable);
    executable.map_or_else(|| Name::of(pid).0.to_path_buf(), |object| object.path.clone())
}

/// What seccomp filters leave of a policy.
struct Permitted {
    policy: Policy,
    /// A line for each backing that is left out.
    forbidden: Vec<String>,
    stops: Stops,
}

/// Reads the seccomp filters of the process, if it has any and they are to be asked.
fn permitted(
    chosen: Chosen,
    status: &Status,
    before: &Snapshot,
    asked: &Policy,
    seccomp: Seccomp,
) -> Result<Permitted, String> {
    let mut permitted = Permitted { policy: asked.clone(), forbidden: Vec::new(), stops: Stops::default() };
    if status.seccomp.is_some_and(|mode| mode != 0) && seccomp == Seccomp::Auto {
        let policy = &mut permitted.policy;
        (permitted.stops, permitted.forbidden) = in_tracer_as_a_whole(|| {
            let live = open(chosen, &before.mappings, seccomp)?;
            Ok((live.stops(), leave_out(policy, &live)?))
        })?;
    }
    Ok(permitted)
}

/// Leaves out of the policy what the seccomp filters of the borrowed thread forbid. Returns a line for each
/// backing that is left out.
///
/// # Errors
/// Nothing would be left; the line says which call is forbidden.
fn leave_out(policy: &mut Policy, live: &Live) -> Result<Vec<String>, String> {
    let mut lines = Vec::new();
    if policy.backings.contains(&Backing::Shared)
        && let Err(refusal) = live.allows(Way::File)
    {
        policy.backings.retain(|backing| *backing != Backing::Shared);
        lines.push(format!("its seccomp filter {refusal}: it cannot get files of the store"));
    }
    if policy.backings.iter().any(|backing| backing.is_anonymous()) {
        if let Err(refusal) = live.allows(Way::CopyOfData) {
            policy.backings.retain(|backing| !backing.is_anonymous());
            lines.push(format!("its seccomp filter {refusal}: no anonymous copies"));
        } else if let Err(refusal) = live.allows(Way::CopyOfCode)
            && policy.backings.iter().all(|backing| backing.is_anonymous())
        {
            policy.parts.retain(|part| *part != Part::Text);
            lines.push(format!("its seccomp filter {refusal}: no anonymous copies of code"));
        }
    }
    let writes = policy.parts.iter().any(|part| part.is_writable());
    if writes && let Err(refusal) = live.allows(Way::CopyOfData) {
        policy.parts.retain(|part| !part.is_writable());
        lines.push(format!("its seccomp filter {refusal}: no copies of data"));
    } else if policy.parts.contains(&Part::Data)
        && let Err(refusal) = live.allows(Way::CopyOfWritten)
    {
        policy.parts.retain(|part| *part != Part::Data);
        lines.push(format!("its seccomp filter {refusal}: no copies of data that is written to"));
    }
    match policy.backings.is_empty() || policy.parts.is_empty() {
        true => Err(lines.join("; ")),
        false => Ok(lines),
    }
}

/// Returns whether huge pages map all of a range.
fn is_huge(pid: u32, range: Range) -> bool {
    pagemap::huge_bytes(pid.cast_signed(), range).is_ok_and(|bytes| bytes >= range.len())
}
