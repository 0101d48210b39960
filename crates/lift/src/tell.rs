// SPDX-License-Identifier: Apache-2.0
//! What is told of a lift: lines on stderr, the report, names of copied code.

use super::complaints::complaints;
use super::job::LiftJob;
use crate::FAILED;
use crate::options::Verbosity;
use crate::weigh::Chosen;
use hugelift_core::addr::{PageSize, Range, human_bytes};
use hugelift_core::advice::About;
use hugelift_core::apply::{Outcome, lifted};
use hugelift_core::demangle::Names;
use hugelift_core::nothing::why_nothing;
use hugelift_core::plan::{Plan, Span};
use hugelift_core::policy::Backing;
use hugelift_core::printable::{Escape, quoted};
use hugelift_core::report::{self, Report, Total};
use hugelift_core::skip::Reason;
use hugelift_core::snapshot::{Part, Snapshot};
use hugelift_os::elf::opened::opened_later;
use hugelift_os::io::console::{say, unhurt};
use hugelift_os::launch::bypass::Bypass;
use hugelift_os::launch::helper::Verdict;
use hugelift_os::proc::procfs::Process;
use hugelift_os::watch::perf_map::{Copied, Map};
use hugelift_report::lift::{self as report_text, Style};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

/// Objects that a program opens later: so many are named.
const LATER: usize = 3;

impl LiftJob {
    /// Says what was not lifted, though it might have been.
    ///
    /// # Errors
    /// The program must not start like this (`--strict`).
    pub(super) fn complain(
        &self,
        before: &Snapshot,
        chosen: &Chosen,
        outcome: &Outcome,
    ) -> Result<(), Verdict> {
        let plan = &chosen.plan;
        let complaints = complaints(plan, outcome);
        let about = About::program(&self.program);
        let complete = !plan.spans.is_empty() && outcome.is_complete() && complaints.is_empty();
        if let Some(lost) = &outcome.lost {
            self.say(&format!("{}: {lost}", self.program));
        }
        let writable = plan.spans.iter().any(|s| matches!(s.part, Part::Data | Part::Bss));
        let unguarded = self.unguarded.as_ref().filter(|_| writable).map(|why| {
            format!(
                "--data-backing hugetlb: fork(2) might kill a child: {why}; transparent huge pages instead"
            )
        });
        if let Some(line) = &unguarded {
            self.say(&format!("{}: {line}", self.program));
        }
        if self.strict && !(complete && unguarded.is_none()) {
            let untouched = plan.skips.iter().any(|s| s.reason == Reason::NotTouched);
            let why = match complaints.largest(&about).or(unguarded) {
                Some(line) => line,
                None if untouched => "nothing is known of what it touches; --touched all lifts it".into(),
                None => self.nothing(before, plan),
            };
            self.say(&format!("{}: not started (--strict): {why}", self.program));
            return Err(Verdict::Refuse(FAILED));
        }
        if let Some(line) = complaints.largest(&about) {
            let note = self.unprimed.as_ref().filter(|_| self.verbosity < Verbosity::Summary);
            let note = note.map_or(String::new(), |note| format!(" ({note})"));
            self.say(&format!("{}: {line}{note}", self.program));
        }
        if let Some(trouble) = &chosen.trouble {
            self.say(&format!("{}: {trouble}", self.program));
        }
        if let Some(line) = chosen.line.as_ref().filter(|_| self.verbosity >= Verbosity::Summary) {
            self.say(&format!("{}: {line}", self.program));
        }
        Ok(())
    }

    /// Code that was copied to memory of no file: perf(1) finds its names in a file of their own.
    pub(super) fn name_code(
        &self,
        pid: u32,
        before: &Snapshot,
        plan: &Plan,
        outcome: &Outcome,
        names: Names,
    ) {
        let mut spans: BTreeMap<usize, Vec<Range>> = BTreeMap::new();
        let is_copy = |(span, backing): &(&Span, Backing)| {
            span.part == Part::Text && matches!(backing, Backing::Thp | Backing::Hugetlb)
        };
        for (span, _) in lifted(plan, outcome).filter(is_copy) {
            spans.entry(span.object).or_default().push(span.range);
        }
        if spans.is_empty() {
            return;
        }
        let complain =
            |why: &dyn std::fmt::Display| self.say(&format!("{}: --perf-map: {why}", self.program));
        let mut objects = Vec::new();
        for (object, spans) in spans {
            let Some(object) = before.objects.get(object) else { continue };
            match Copied::open(pid, object, spans) {
                Ok(copied) => objects.push(copied),
                Err(error) => complain(&format!("cannot read {}: {error}", object.path.escaped())),
            }
        }
        let written =
            Map::create(pid).and_then(|mut map| match self.adopts || self.leaves_all_memory(before) {
                // A watcher would become the program's child, or take memory that the program may need:
                // there the file stays.
                true => map.write(&objects, names),
                false => map.watch(&objects, names, |why| complain(why)),
            });
        if let Err(why) = written {
            complain(&why);
        }
    }

    /// What smaps shows now: only that is said.
    pub(super) fn tell(
        &mut self,
        pid: u32,
        before: &Snapshot,
        plan: &Plan,
        outcome: &Outcome,
        took: Duration,
    ) {
        if self.verbosity < Verbosity::Summary && self.report.is_none() {
            return;
        }
        let usage = match Process::new(pid).smaps() {
            Ok(usage) => usage,
            Err(error) => return self.say(&format!("{}: lifted, but not verified: {error}", self.program)),
        };
        let mut report = Report::new(before, Some(&usage), plan, Some(outcome));
        report.pid = Some(pid);
        report.advise(&[self.program.as_os_str()], |_| false);
        if self.verbosity >= Verbosity::Summary {
            self.say(&format!(
                "{}: {} ({:.1} ms)",
                self.program,
                self.summary(before, plan, &report),
                took.as_secs_f64() * 1e3
            ));
        }
        if let Some(why) = self.unmoved.as_ref().filter(|_| self.verbosity >= Verbosity::Summary) {
            self.say(&format!(
                "{}: more of it would be on huge pages at another base, but it stays: {why}",
                self.program
            ));
        }
        if self.verbosity >= Verbosity::Summary {
            self.tell_of_later(before);
        }
        if self.verbosity >= Verbosity::Everything {
            let style = Style { width: 100, verbose: true };
            for line in report_text::text(&report, &style).lines() {
                self.say(line);
            }
        }
        self.write(&report);
    }

    /// Names what the program will open by itself: that is not lifted by us.
    fn tell_of_later(&self, snapshot: &Snapshot) {
        let Some(program) = snapshot.objects.iter().find(|o| o.executable) else { return };
        for later in opened_later(&program.path).into_iter().take(LATER) {
            self.say(&format!(
                "{}: it opens {} ({} of code) after its start: not lifted; hugelift prime {}, while no \
                 process has it mapped, makes it huge",
                self.program,
                later.file.path.escaped(),
                human_bytes(later.whole),
                quoted(later.file.path.as_os_str())
            ));
        }
    }

    /// "text 24 of 24 MB, rodata 50 of 52 MB on huge pages"
    fn summary(&self, before: &Snapshot, plan: &Plan, report: &Report) -> String {
        let wanted = |part: &Part, t: &Total| t.liftable_bytes > 0 && self.policy.parts.contains(part);
        let parts = report.totals.iter().filter(|(part, t)| wanted(part, t));
        let parts: Vec<String> = parts
            .map(|(part, t)| {
                let now =
                    format!("{part} {} of {}", human_bytes(t.huge_bytes), human_bytes(t.liftable_bytes));
                let later = match report.bytes(*part, &Reason::OnTouch) {
                    0 => String::new(),
                    later => format!(" ({} more as it is touched)", human_bytes(later)),
                };
                let unseen = match report.unseen_bytes(*part) {
                    0 => String::new(),
                    unseen => format!(" ({} more on smaller pages)", human_bytes(unseen)),
                };
                now + &later + &unseen
            })
            .collect();
        match parts.as_slice() {
            [] => self.nothing(before, plan),
            parts => format!("{} on huge pages", parts.join(", ")),
        }
    }

    /// "nothing on huge pages: 1.5 MB of text of /lib/libc.so.6: too small: ..."
    fn nothing(&self, before: &Snapshot, plan: &Plan) -> String {
        let page = self.policy.page.named().or(before.machine.thp_page).unwrap_or(PageSize::MB2);
        format!("nothing on huge pages: {}", why_nothing(before, plan, page))
    }

    pub(super) fn write(&mut self, report: &impl serde::Serialize) {
        if let Some(file) = &mut self.report
            && let Err(error) = unhurt(|| {
                serde_json::to_writer(&mut *file, report)
                    .map_err(io::Error::from)
                    .and_then(|()| file.write_all(b"\n"))
            })
        {
            self.say(&format!("{}: cannot write the report: {error}", self.program));
        }
    }

    pub(super) fn bypass(&mut self, why: &Bypass) -> Verdict {
        let nothing = serde_json::Map::new();
        self.write(&serde_json::json!({
            "version": report::VERSION, "objects": [], "totals": nothing, "plain": why.to_string(),
        }));
        if self.strict {
            self.say(&format!("{}: not started (--strict): {why}", self.program));
            return Verdict::Refuse(FAILED);
        }
        if self.verbosity >= Verbosity::Summary || !why.is_usual() {
            self.say(&format!("{}: started without huge pages: {why}", self.program));
        }
        Verdict::Start
    }

    pub(super) fn say(&self, line: &str) {
        if self.verbosity > Verbosity::Quiet {
            say(line);
        }
    }
}
