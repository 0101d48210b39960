// SPDX-License-Identifier: Apache-2.0
//! What is huge, what could be, and why the rest is not: as data, which is also the JSON output.
//! The crate `report` draws the table and the bars from it.
//!
//! ```text
//!   mapping (smaps: 4 MB huge)  |-----------------------------|
//!   plan                        |··|=========span=========|···|
//!   report                       edge: skip   huge: 4 MB   edge: skip
//!                                             rest: skip
//! ```
//!
//! Every byte of a part is counted once: as huge, because smaps says so, or in exactly one skip.
//! Nothing is reported as huge because it was asked for or because a call succeeded.

mod data;
mod entries;
#[doc(hidden)]
pub mod example;
mod fragments;
mod memory;
mod part;
mod pieces;
pub mod summary;
mod wants;

use crate::addr::PageSize;
use crate::advice::{About, Mapped, can_be_separated};
use crate::apply::Outcome;
use crate::plan::{Plan, plan};
use crate::policy::{Policy, SpanChoice};
use crate::skip::Reason;
use crate::smaps::Usage;
use crate::snapshot::{Extent, Part, Snapshot};
pub use data::{
    CodeOnNodes, DataFile, FolioSizes, Gain, ObjectReport, PartReport, Report, SharedMemory, SkipReport,
    Small, Stretch, Total, VERSION,
};
pub use entries::Entries;
pub use fragments::Fragment;
use fragments::fragments;
pub use memory::{anonymous, data_files, explain_data_files, is_data, shared_memory};
use part::part_report;
use pieces::Planned;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use wants::Wants;

/// Returns what `policy` would lift of `snapshot` with each choice of spans.
pub fn gains(snapshot: &Snapshot, policy: &Policy) -> BTreeMap<SpanChoice, Gain> {
    let gain = |span: SpanChoice| {
        let spans = plan(snapshot, &Policy { span, ..policy.clone() }).spans;
        let bytes = spans.iter().flat_map(|s| &s.held).map(|held| held.len()).sum();
        (span, Gain { bytes, page_bytes: spans.iter().map(|s| s.range.len()).sum() })
    };
    [SpanChoice::Inner, SpanChoice::Outer, SpanChoice::Auto].map(gain).into()
}

impl Report {
    /// Reports what `usage` (smaps, read last) shows to be huge of `snapshot`, and for all other
    /// bytes the reason that `plan` gives, or `outcome` for what was tried.
    ///
    /// The snapshot may be older than `usage`: a lift splits mappings, but no part moves.
    pub fn new(
        snapshot: &Snapshot,
        usage: Option<&[Usage]>,
        plan: &Plan,
        outcome: Option<&Outcome>,
    ) -> Report {
        let page = page_size(snapshot, plan);
        let extents = snapshot.extents();
        let fragments = fragments(&extents, usage.unwrap_or_default(), page);
        // Without smaps nothing is known of a span, not even that its lift failed.
        let outcome = outcome.filter(|_| usage.is_some());
        let mut objects: Vec<ObjectReport> = snapshot
            .objects
            .iter()
            .map(|object| ObjectReport {
                path: object.path.clone().into(),
                build_id: object.build_id.clone(),
                parts: Vec::new(),
                executable: object.executable,
                bias: object.bias,
                page_cache_bytes: None,
            })
            .collect();
        let mut totals: BTreeMap<Part, Total> = BTreeMap::new();
        let mut wants = Wants::default();
        let planned = Planned::new(plan);
        let mut rest = extents.iter().zip(fragments).peekable();
        while let Some((first, fragments)) = rest.next() {
            // Adjacent extents of one part are one stretch, even across mappings.
            let mut run = vec![*first];
            let mut found = fragments;
            while let Some((next, more)) = rest.next_if(|(next, _)| follows(&run, next)) {
                run.push(*next);
                found.extend(more);
            }
            let part = part_report(&run, found, page, &planned, outcome, &mut wants);
            let total = totals.entry(part.part).or_default();
            total.bytes += part.bytes;
            total.liftable_bytes += part.liftable_bytes;
            total.huge_bytes += part.huge_bytes;
            objects[first.object].parts.push(part);
        }
        for object in &mut objects {
            object.parts.sort_by_key(|p| p.start);
            for skip in object.parts.iter_mut().flat_map(|p| &mut p.skips) {
                skip.hint = wants.hint(&skip.why);
            }
        }
        let read_only = [Part::Text, Part::Rodata].iter().filter_map(|part| totals.get(part));
        let read_only = read_only.map(|t: &Total| [t.bytes, t.huge_bytes, t.liftable_bytes]);
        let tlb_entries = Entries::of(read_only, snapshot.machine.base_page, page);
        let mut report = Report {
            version: VERSION,
            objects,
            totals,
            pid: None,
            assumed_addresses: false,
            page_size: page.bytes(),
            usual_page: snapshot.machine.thp_page.unwrap_or(PageSize::MB2),
            spans: BTreeMap::new(),
            tlb_entries,
            anonymous: None,
            jit: None,
            shm: None,
            folios: None,
            unused: None,
            data_files: None,
            heat: None,
            data: None,
            code_on_nodes: None,
        };
        report.advise::<&str>(&[], |_| false, None);
        report
    }
}

impl Report {
    /// Sets [`ObjectReport::page_cache_bytes`] from [`Snapshot::cached`].
    pub fn set_page_cache(&mut self, snapshot: &Snapshot) {
        for (index, report) in self.objects.iter_mut().enumerate() {
            let extents = snapshot.extents();
            let own =
                extents.iter().filter(|e| e.object == index && matches!(e.part, Part::Text | Part::Rodata));
            let huge = own.flat_map(|e| snapshot.cached.iter().filter_map(|c| c.intersect(e.range)));
            report.page_cache_bytes = Some(huge.map(|r| r.len()).sum());
        }
    }

    /// Returns the bytes of `part` that are not huge for `reason`, over all objects.
    pub fn bytes(&self, part: Part, reason: &Reason) -> u64 {
        let parts = self.objects.iter().flat_map(|o| &o.parts).filter(|p| p.part == part);
        parts.flat_map(|p| &p.skips).filter(|s| s.why == *reason).map(|s| s.bytes).sum()
    }

    /// Returns the bytes of `part` that were copied for pages that smaps does not show.
    pub fn unseen_bytes(&self, part: Part) -> u64 {
        let parts = self.objects.iter().flat_map(|o| &o.parts).filter(|p| p.part == part);
        let skips = parts.flat_map(|p| &p.skips);
        skips.filter(|s| matches!(s.why, Reason::SmallerPages(_))).map(|s| s.bytes).sum()
    }

    /// Puts names into the advice: `start` is the command that starts the program (if empty, its path),
    /// `is_opened` tells which objects the program has opened itself, and `running` is the process if
    /// `hugelift attach` can lift it.
    pub fn advise<S: AsRef<OsStr>>(
        &mut self,
        start: &[S],
        is_opened: impl Fn(&Path) -> bool,
        running: Option<u32>,
    ) {
        let program = self.objects.iter().find(|o| o.executable).map(|o| o.path.clone());
        for object in &mut self.objects {
            let mapped = if is_opened(&object.path) { Mapped::Opened } else { Mapped::AtStart };
            let about = match &program {
                _ if !start.is_empty() => About::object(&object.path, start, mapped),
                Some(program) => About::object(&object.path, &[program.as_os_str()], mapped),
                None => About::object(&object.path, &[object.path.as_os_str()], mapped),
            };
            for part in &mut object.parts {
                let running = running.filter(|_| is_attachable(part.part));
                let about = about.clone().running_as(running).in_part(part.part);
                for skip in &mut part.skips {
                    let (bytes, usual) = (skip.bytes, self.usual_page);
                    let moves = can_be_separated(part.part, object.bias, bytes, &skip.why, usual);
                    if let Some(hint) = skip.why.command(&about.clone().with_code_that_moves(moves)) {
                        skip.hint = hint;
                    }
                }
            }
        }
    }
}

/// Returns whether `hugelift attach` can lift a part: on AArch64 it leaves alone what threads write to.
fn is_attachable(part: Part) -> bool {
    cfg!(target_arch = "x86_64") || part != Part::Data
}

/// Returns whether `next` continues the stretch `run`.
fn follows(run: &[Extent], next: &Extent) -> bool {
    run.last().is_some_and(|last| {
        (last.object, last.part) == (next.object, next.part) && last.range.end == next.range.start
    })
}

/// Returns the page size that the plan uses, or would use if it had spans.
fn page_size(snapshot: &Snapshot, plan: &Plan) -> PageSize {
    let mut planned = plan.spans.iter().filter_map(|s| s.attempts.first()).map(|a| a.page);
    // Of mixed sizes, the usual one counts.
    let usual = snapshot.machine.thp_page.filter(|usual| planned.clone().any(|page| page == *usual));
    let planned = usual.or_else(|| planned.next());
    let smallest = || snapshot.machine.pools.iter().map(|p| p.page).min();
    planned.or(snapshot.machine.thp_page).or_else(smallest).unwrap_or(PageSize::MB2)
}
