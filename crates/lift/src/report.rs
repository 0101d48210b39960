// SPDX-License-Identifier: Apache-2.0
//! What is reported of a lift: lines on stderr, the JSON report, names of copied code.

use crate::job::LiftJob;
use crate::later::left_out;
use crate::launch::bypass::Verdict;
use crate::lifted::Lifted;
use crate::options::Verbosity;
use crate::text::{self as report_text, Style};
use crate::watcher::perf_map::{Copied, Map};
use hugelift_core::addr::{Range, human_bytes};
use hugelift_core::advice::About;
use hugelift_core::apply::lifted;
use hugelift_core::complaints::complaints;
use hugelift_core::demangle::Names;
use hugelift_core::plan::{Plan, Span};
use hugelift_core::policy::Backing;
use hugelift_core::printable::{Escape, quoted_path};
use hugelift_core::report::Report;
use hugelift_core::report::summary::{nothing, nothing_yet, parts};
use hugelift_core::skip::Reason;
use hugelift_core::snapshot::{Part, Snapshot};
use hugelift_core::worth::{self, Account};
use hugelift_linux::elf::opened::opened_later;
use hugelift_linux::io::console::say;
use hugelift_linux::proc::procfs::Process;
use std::collections::BTreeMap;

/// How many of the objects that a program opens later are named at most.
const MAX_NAMED: usize = 3;

impl LiftJob {
    /// Says what was not lifted, though it might have been.
    ///
    /// # Errors
    /// The program must not start like this (`--strict`).
    pub(crate) fn complain(&self, lift: &Lifted) -> Result<(), Verdict> {
        let Lifted { pid, before, plan, outcome, .. } = lift;
        let complaints = complaints(plan, outcome);
        let about = About::program(&self.asked.program);
        let complete = !plan.spans.is_empty() && outcome.is_complete() && complaints.is_empty();
        if let Some(lost) = &outcome.lost {
            self.asked.say(Verbosity::Problems, lost);
        }
        let writable = plan.spans.iter().any(|s| matches!(s.part, Part::Data | Part::Bss));
        let unguarded = self.unguarded.as_ref().filter(|_| writable).map(|why| {
            format!(
                "--data-backing hugetlb: fork(2) might kill a child: {why}; transparent huge pages instead"
            )
        });
        if let Some(line) = &unguarded {
            self.asked.say(Verbosity::Problems, line);
        }
        if self.asked.options.strict && !(complete && unguarded.is_none()) {
            let why = match complaints.largest(&about).or(unguarded) {
                Some(line) => line,
                None => nothing(&self.policy, before, plan),
            };
            return Err(self.asked.refuse(&why));
        }
        if let Some(line) = complaints.largest(&about) {
            // With -v it has been said already.
            let note = self.primed.obstacle.as_ref().filter(|_| !self.asked.is_heard(Verbosity::Summary));
            let note = note.map_or(String::new(), |note| format!(" ({note})"));
            self.asked.say(Verbosity::Problems, &format!("{line}{note}"));
        }
        let takes_none = plan.spans.is_empty() && self.asked.options.eager;
        let left_out = takes_none.then(|| left_out(*pid, before, self.mark.is_some())).flatten();
        if let Some((verbosity, line)) = left_out {
            self.asked.say(verbosity, line);
        }
        if let Some(line) = copied_later(plan, self.asked.options.copies_hot().is_some()) {
            self.asked.say(Verbosity::Summary, &line);
        }
        Ok(())
    }

    /// Writes the names of code that was copied to memory of no file, where perf(1) searches for them.
    pub(crate) fn name_code(&self, lift: &Lifted, names: Names) {
        let Lifted { pid, before, plan, outcome, .. } = lift;
        let mut spans: BTreeMap<usize, Vec<Range>> = BTreeMap::new();
        let is_copy = |(span, backing): &(&Span, Backing)| span.part == Part::Text && backing.is_anonymous();
        for (span, _) in lifted(plan, outcome).filter(is_copy) {
            spans.entry(span.object).or_default().push(span.range);
        }
        if spans.is_empty() {
            return;
        }
        let complain = |why: &dyn std::fmt::Display| {
            self.asked.say(Verbosity::Problems, &format!("--perf-map: {why}"));
        };
        let mut objects = Vec::new();
        for (object, spans) in spans {
            let Some(object) = before.objects.get(object) else { continue };
            match Copied::open(*pid, object, &before.mappings, spans) {
                Ok(copied) => objects.push(copied),
                Err(error) => complain(&format!("cannot read {}: {error}", object.path.escaped())),
            }
        }
        // Where a watcher would become the program's child, or take memory that the program may need,
        // no process removes the file.
        let stays = self.adopts || self.leaves_all_memory(before);
        let written = Map::create(*pid).and_then(|mut map| match stays {
            true => map.write(&objects, names),
            false => map.watch(&objects, names, |why| complain(why)),
        });
        if let Err(why) = written {
            complain(&why);
        }
    }

    /// Reports what smaps shows now, and only that.
    pub(crate) fn report(&self, lift: &Lifted) {
        let is_summed_up = self.asked.is_heard(Verbosity::Summary);
        if !is_summed_up && self.asked.report.is_none() {
            return;
        }
        let Lifted { pid, before, plan, outcome, took } = lift;
        let usage = match Process::new(*pid).smaps() {
            Ok(usage) => usage,
            Err(error) => {
                return self.asked.say(Verbosity::Problems, &format!("lifted, but not verified: {error}"));
            }
        };
        let mut report = Report::new(before, Some(&usage), plan, Some(outcome));
        report.pid = Some(*pid);
        report.advise(&[self.asked.program.as_os_str()], |_| false, None);
        if is_summed_up {
            let line = parts(&self.policy, &report).unwrap_or_else(|| {
                match self.allocator.is_empty() || before.machine.thp_off.is_some() {
                    true => nothing(&self.policy, before, plan),
                    false => nothing_yet(&self.policy, before, plan),
                }
            });
            self.asked.say(Verbosity::Summary, &format!("{line} ({:.1} ms)", took.as_secs_f64() * 1e3));
            if let Some(why) = self.placement.why_not_moved() {
                let line = format!("more of it would be on huge pages at another base, but it stays: {why}");
                self.asked.say(Verbosity::Summary, &line);
            }
            self.name_later(before);
        }
        if self.asked.is_heard(Verbosity::Everything) {
            let style = Style { width: 100, verbose: true };
            report_text::text(&report, &style).lines().for_each(say);
        }
        self.asked.write_report(&report);
    }

    /// Names the objects that the program opens by itself later.
    fn name_later(&self, snapshot: &Snapshot) {
        let Some(program) = snapshot.objects.iter().find(|o| o.executable) else { return };
        for later in opened_later(&program.path).into_iter().take(MAX_NAMED) {
            let (path, code) = (later.file.path.escaped(), human_bytes(later.whole));
            let prime = format!("hugelift prime {}", quoted_path(&later.file.path));
            let is_lifted = self.lifts_later() && !self.leaves_all_memory(snapshot);
            let (what, how) = match (is_lifted, self.asked.options.eager) {
                (true, _) => ("lifted while it runs", " without a copy"),
                (false, true) => ("not lifted, as --eager leaves no process beside the program", ""),
                (false, false) => ("not lifted", ""),
            };
            let line = format!(
                "it opens {path} ({code} of code) after its start: {what}; {prime}, while no process has it mapped, \
                 makes it huge{how}"
            );
            self.asked.say(Verbosity::Summary, &line);
        }
    }
}

/// Says what of the plan is copied later, and when.
pub(crate) fn copied_later(plan: &Plan, hot: bool) -> Option<String> {
    let later = plan.skips.iter().filter(|skip| skip.reason == Reason::CopiedLater);
    let bytes: u64 = later.map(|skip| skip.range.len()).sum();
    let cost = worth::cost(bytes, 0);
    let needed = Account::default().lacks(cost);
    (bytes > 0).then(|| match hot {
        true => format!(
            "{} would have to be copied: what of its code is in use is copied while it runs, when that is worth it",
            human_bytes(bytes)
        ),
        false => format!(
            "{} would have to be copied, which takes about {} ms: done while it runs, once it has used {:.1} s of \
             CPU time; --eager copies at the start",
            human_bytes(bytes),
            cost.as_millis(),
            needed.as_secs_f64()
        ),
    })
}
