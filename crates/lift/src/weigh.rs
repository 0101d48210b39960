// SPDX-License-Identifier: Apache-2.0
//! What of a plan is copied: all, what past runs have touched, or nothing. `--touched` says which; with
//! `--backing auto` it is what pays. Also sets up the observer of this run, for later ones.

use crate::options::{LiftOptions, Touched};
use hugelift_core::addr::{Range, human_bytes};
use hugelift_core::apply::{Outcome, lifted};
use hugelift_core::note::Note;
use hugelift_core::plan::{Plan, Span, copied, plan};
use hugelift_core::policy::{Copies, Policy};
use hugelift_core::record::Identity;
use hugelift_core::snapshot::Snapshot;
use hugelift_core::weigh::{Past, Stake, Verdict, Weighed, weigh};
use hugelift_os::store::{IfAbsent, Notes, StoreError, file_of};
use hugelift_os::watch::observer::{Observer, Subject};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// How to decide what is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choosing {
    /// Copies all of the plan.
    All,
    /// Copies what past runs are known to have touched.
    Seen,
    /// Copies what pays.
    Weighed,
}

impl Choosing {
    /// Returns what the options say. Costs are weighed only if no option names a backing or says
    /// what is copied, and without `--strict`.
    pub fn new(options: &LiftOptions) -> Choosing {
        match options.touched {
            Some(Touched::All) => Choosing::All,
            Some(Touched::Seen) => Choosing::Seen,
            None if options.policy.backing.is_none() && !options.strict => Choosing::Weighed,
            None => Choosing::All,
        }
    }
}

/// A plan that copies what it should.
#[derive(Debug)]
pub struct Chosen {
    /// The plan.
    pub plan: Plan,
    /// Why this plan, with the figures; `None` if there was nothing to choose.
    pub line: Option<String>,
    /// Why nothing can be recorded, if that is so.
    pub trouble: Option<String>,
    watch: Option<Watch>,
}

/// What is to be observed.
#[derive(Debug)]
struct Watch {
    notes: Notes,
    executable: (PathBuf, Identity),
    /// The objects that may be copied, by their index in the snapshot.
    objects: BTreeMap<usize, Known>,
}

#[derive(Debug)]
struct Known {
    file: (PathBuf, Identity),
    note: Option<Note>,
    spans: Vec<Range>,
}

/// Chooses what is copied of `all`, the plan for `snapshot` by `policy`. `pid` is `None` for a program
/// that does not run.
pub fn choose(how: Choosing, pid: Option<u32>, snapshot: &Snapshot, policy: &Policy, all: Plan) -> Chosen {
    let unchanged = |plan| Chosen { plan, line: None, trouble: None, watch: None };
    if how == Choosing::All || copied(&all).next().is_none() {
        return unchanged(all);
    }
    let missing = if pid.is_some() { IfAbsent::Make } else { IfAbsent::Leave };
    let watch = match (Notes::open(missing), how) {
        (Ok(notes), _) => Watch::of(notes, pid, snapshot, &all),
        // A preview does not make the folder of notes; without it no past run is known.
        (Err(StoreError::Missing { .. }), _) if pid.is_none() => None,
        (Err(error), Choosing::Seen) => {
            let hint = error.hint().map_or(String::new(), |hint| format!("; {hint}"));
            let trouble = format!("cannot note what it touches: {error}{hint}");
            return Chosen { trouble: Some(trouble), ..of(policy, snapshot, Copies::Seen(vec![])) };
        }
        (Err(_), _) => return unchanged(all),
    };
    let seen: Vec<Range> =
        copied(&all).flat_map(|span| seen_of(span, how, snapshot, watch.as_ref())).collect();
    let bytes = |ranges: &mut dyn Iterator<Item = Range>| ranges.map(Range::len).sum();
    let whole = bytes(&mut copied(&all).map(|span| span.range));
    let stake = Stake { whole, seen: bytes(&mut seen.iter().copied()) };
    let weighed = weigh(stake, watch.as_ref().and_then(Watch::past));
    let (copies, line) = match how {
        Choosing::Seen => (Copies::Seen(seen), of_seen(stake)),
        _ => (as_weighed(weighed, seen), weighed.to_string()),
    };
    let watch = watch.filter(|watch| pid.is_some_and(|pid| watch.is_worth_it(pid, how)));
    match copies {
        Copies::All => Chosen { line: Some(line), watch, ..unchanged(all) },
        copies => Chosen { line: Some(line), watch, ..of(policy, snapshot, copies) },
    }
}

fn of(policy: &Policy, snapshot: &Snapshot, copies: Copies) -> Chosen {
    let plan = plan(snapshot, &Policy { copies, ..policy.clone() });
    Chosen { plan, line: None, trouble: None, watch: None }
}

fn as_weighed(weighed: Weighed, seen: Vec<Range>) -> Copies {
    match weighed.verdict {
        Verdict::Whole => Copies::All,
        Verdict::Seen => Copies::Seen(seen),
        Verdict::Nothing => Copies::NotWorth(weighed),
    }
}

fn of_seen(stake: Stake) -> String {
    let (whole, seen) = (human_bytes(stake.whole), human_bytes(stake.seen));
    format!("{seen} of {whole} are known to be touched: only that is copied (--touched seen)")
}

/// Returns the pages of a span that past runs touched. Where costs are weighed, a span
/// for which no run has been observed counts as touched.
fn seen_of(span: &Span, how: Choosing, snapshot: &Snapshot, watch: Option<&Watch>) -> Vec<Range> {
    let known = watch.and_then(|watch| watch.objects.get(&span.object)?.note.as_ref()?.touched.as_ref());
    match (known, span.attempts.first(), how) {
        (Some(touched), Some(attempt), _) => {
            touched.seen(span.range, snapshot.objects[span.object].bias, attempt.page)
        }
        (_, _, Choosing::Seen) => Vec::new(),
        _ => vec![span.range],
    }
}

impl Watch {
    fn of(notes: Notes, pid: Option<u32>, snapshot: &Snapshot, plan: &Plan) -> Option<Watch> {
        let executable = snapshot.objects.iter().find(|o| o.executable)?;
        let mut objects: BTreeMap<usize, Known> = BTreeMap::new();
        for span in copied(plan) {
            if let Some(known) = objects.get_mut(&span.object) {
                known.spans.push(span.range);
            } else if let Some(file) = file_of(pid, &snapshot.objects[span.object]) {
                let note = notes.of(&file.1);
                objects.insert(span.object, Known { file, note, spans: vec![span.range] });
            }
        }
        Some(Watch { executable: file_of(pid, executable)?, notes, objects })
    }

    /// Returns the note of the executable.
    fn executable_note(&self) -> Option<Note> {
        let of_plan = self.objects.values().find(|known| known.file == self.executable);
        of_plan.map_or_else(|| self.notes.of(&self.executable.1), |known| known.note.clone())
    }

    fn past(&self) -> Option<Past> {
        let lives = self.executable_note()?.lives;
        Some(Past { runs: lives.runs, cpu: lives.mean()? })
    }

    fn is_worth_it(&self, pid: u32, how: Choosing) -> bool {
        let unknown = |known: &Known| known.note.as_ref().is_none_or(|note| note.touched.is_none());
        self.executable_note().is_none_or(|note| note.lives.wants_more(pid))
            || how == Choosing::Seen && self.objects.values().any(unknown)
    }
}

impl Chosen {
    /// Returns what observes the program after `outcome`; `foreign` is the CPU time of the
    /// program that the lift used.
    pub fn observer(self, snapshot: &Snapshot, outcome: &Outcome, foreign: Duration) -> Option<Observer> {
        let Watch { notes, executable, objects } = self.watch?;
        let huge: Vec<Range> = lifted(&self.plan, outcome).map(|(span, _)| span.range).collect();
        let subject = |(object, known): (usize, Known)| {
            let left = known.spans.into_iter().flat_map(|span| {
                huge.iter().fold(vec![span], |left, huge| left.iter().flat_map(|r| r.minus(*huge)).collect())
            });
            let ranges: Vec<Range> = left.collect();
            let bias = snapshot.objects[object].bias;
            (!ranges.is_empty()).then_some(Subject { file: known.file, bias, ranges })
        };
        let subjects = objects.into_iter().filter_map(subject).collect();
        Some(Observer::new(notes, executable, subjects, foreign))
    }
}
