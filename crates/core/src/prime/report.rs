// SPDX-License-Identifier: Apache-2.0
//! The result of priming, file by file: as data, as JSON and as text.

use super::candidate::Candidate;
use super::edges::{Edges, LARGE};
use super::obstacle::{Holder, Keeps, Obstacle};
use crate::addr::{PageSize, human_bytes};
use crate::advice::least_code;
use crate::printable::{Untrusted, quoted_path};
use crate::snapshot::Part;
use serde::{Serialize, Serializer};
use std::fmt::Write as _;

/// Version of the JSON schema.
pub const VERSION: u32 = 1;

/// All files.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PrimeReport {
    /// [`VERSION`].
    pub version: u32,
    /// Size of the huge pages, in bytes; 0 where the kernel has none.
    pub page_size: u64,
    /// The files, in the order in which they were named.
    pub files: Vec<FileReport>,
}

/// One file.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize)]
pub struct FileReport {
    /// Its path.
    pub path: Untrusted,
    /// Whole huge pages of its read-only segments, in bytes.
    pub whole_bytes: u64,
    /// How many of these bytes a new mapping shows on huge pages.
    pub huge_bytes: u64,
    /// Its read-only segments, by offset.
    pub segments: Vec<SegmentReport>,
    /// What of it is in no whole huge page; `None` if there is nothing, or if the sizes of folios cannot be read.
    pub edges: Option<Edges>,
    /// Why it could not be examined, with its name.
    pub error: Option<String>,
    /// It is a position-independent executable: its random base is usually not congruent, so that huge
    /// pages of its file are not mapped huge when it is started without hugelift.
    pub random_base: bool,
    /// It was replaced by a re-laid copy, which the other fields describe.
    pub replaced: Option<Replaced>,
    /// Why it was not replaced, if that was wanted and would help.
    pub not_replaced: Option<String>,
    /// Why its code did not get huge pages of its own, if that was wanted.
    pub not_separated: Option<String>,
    /// `not_separated` is no obstacle: it would gain nothing.
    #[serde(skip)]
    pub gains_nothing: bool,
    /// Offsets in the file of the pages that are huge, ascending within a segment.
    #[serde(skip)]
    pub huge_pages: Vec<u64>,
}

/// The replacement of a file.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Replaced {
    /// The path of the original.
    pub original: Untrusted,
    /// Random bits that the load address has lost.
    pub aslr_bits_lost: u32,
}

/// One read-only segment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SegmentReport {
    /// Text or read-only data; data of a file that is not ELF.
    pub part: Part,
    /// Offset in the file.
    pub offset: u64,
    /// Length in the file.
    pub bytes: u64,
    /// Whole huge pages, in bytes.
    pub whole_bytes: u64,
    /// How many of these bytes a new mapping shows on huge pages.
    pub huge_bytes: u64,
    /// What prevents the others.
    pub obstacles: Vec<Blocked>,
}

/// Bytes that are not huge, for one reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Blocked {
    /// The reason.
    pub obstacle: Obstacle,
    /// Number of bytes.
    pub bytes: u64,
    /// What the user can do, with the file's name.
    pub hint: Option<String>,
}

impl Serialize for Blocked {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown<'a> {
            reason: &'static str,
            bytes: u64,
            detail: String,
            hint: Option<String>,
            holders: &'a [Holder],
        }
        let Blocked { obstacle, bytes, hint } = self;
        let (reason, detail, hint) = (obstacle.key(), obstacle.to_string(), hint.clone());
        Shown { reason, bytes: *bytes, detail, hint, holders: obstacle.holders() }.serialize(serializer)
    }
}

impl SegmentReport {
    /// Returns a report with nothing but the obstacle that the headers show.
    pub fn new(candidate: &Candidate, huge: PageSize) -> SegmentReport {
        let blocked = |obstacle| Blocked { obstacle, bytes: candidate.whole, hint: None };
        SegmentReport {
            part: candidate.part,
            offset: candidate.offset,
            bytes: candidate.bytes,
            whole_bytes: candidate.whole,
            huge_bytes: 0,
            obstacles: candidate.obstacle(huge).map(blocked).into_iter().collect(),
        }
    }

    /// Counts one huge page of `bytes`: as huge, or for its obstacle.
    pub fn book(&mut self, bytes: u64, fate: Option<Obstacle>) {
        let Some(obstacle) = fate else {
            self.huge_bytes += bytes;
            return;
        };
        match self.obstacles.iter_mut().find(|b| b.obstacle == obstacle) {
            Some(known) => known.bytes += bytes,
            None => self.obstacles.push(Blocked { obstacle, bytes, hint: None }),
        }
    }
}

impl FileReport {
    /// Reports on an ELF file with these segments.
    pub fn new(path: Untrusted, segments: Vec<SegmentReport>) -> FileReport {
        FileReport::of(path, segments).with_hints(true)
    }

    /// Reports on a data file with these stretches. A copy in its place helps nobody.
    pub fn of_data(path: Untrusted, stretches: Vec<SegmentReport>) -> FileReport {
        FileReport::of(path, stretches).with_hints(false)
    }

    fn of(path: Untrusted, segments: Vec<SegmentReport>) -> FileReport {
        FileReport {
            path,
            whole_bytes: segments.iter().map(|s| s.whole_bytes).sum(),
            huge_bytes: segments.iter().map(|s| s.huge_bytes).sum(),
            segments,
            ..FileReport::default()
        }
    }

    /// Sets the hints. They advise a copy in the file's place only if it is `replaceable`.
    fn with_hints(mut self, replaceable: bool) -> FileReport {
        // What was left of the whole file takes a budget, not that of one batch.
        let left = |blocked: &&Blocked| matches!(blocked.obstacle, Obstacle::OverBudget { .. });
        let all = self.segments.iter().flat_map(|segment| &segment.obstacles);
        let budget = all.filter(left).map(|blocked| blocked.bytes).sum();
        for segment in &mut self.segments {
            let (part, bytes) = (segment.part, segment.bytes);
            // What is in no huge page can get one if it is code, and enough of it.
            let helps = |obstacle: &Obstacle| match obstacle {
                Obstacle::TooSmall(page) => part == Part::Text && bytes >= least_code(page.bytes()),
                _ => true,
            };
            for blocked in &mut segment.obstacles {
                let obstacle = match blocked.obstacle {
                    Obstacle::OverBudget { left, .. } => &Obstacle::OverBudget { left, need: budget },
                    _ => &blocked.obstacle,
                };
                let hint = obstacle.hint_for(&self.path, replaceable);
                blocked.hint = hint.filter(|_| helps(&blocked.obstacle));
            }
        }
        self
    }

    /// Says of the small pages of a data file that process `pid` alone maps why it has kept them, although it was asked to give them
    /// up.
    #[must_use]
    pub fn kept_by(mut self, pid: u32, why: Keeps) -> FileReport {
        for blocked in self.segments.iter_mut().flat_map(|segment| &mut segment.obstacles) {
            if let Obstacle::InUse(holders) = &blocked.obstacle
                && let [holder] = &holders[..]
                && holder.pid == pid
            {
                blocked.obstacle = Obstacle::Kept([holder.clone()], why);
            }
        }
        self.with_hints(false)
    }

    /// Reports that the file was not replaced. What failed is not advised.
    #[must_use]
    pub fn not_replaced(self, why: String) -> FileReport {
        FileReport { not_replaced: Some(why), ..self.with_hints(false) }
    }

    /// Reports that the code was not separated, maybe as it `gains_nothing`. What failed is not advised.
    #[must_use]
    pub fn not_separated(self, why: String, gains_nothing: bool) -> FileReport {
        FileReport { not_separated: Some(why), gains_nothing, ..self.with_hints(false) }
    }

    /// Reports on a file that could not be examined.
    pub fn failed(path: Untrusted, error: String) -> FileReport {
        FileReport { path, error: Some(error), ..FileReport::default() }
    }

    /// Returns whether all its whole huge pages are huge, which is also true if it has none.
    pub fn is_huge(&self) -> bool {
        self.error.is_none() && self.huge_bytes == self.whole_bytes
    }

    /// Returns whether there is more to say than that it has no whole huge page.
    fn matters(&self) -> bool {
        let is_refused = self.not_separated.is_some() && !self.gains_nothing;
        let is_said = self.error.is_some() || self.replaced.is_some() || self.not_replaced.is_some();
        self.whole_bytes > 0 || is_said || is_refused
    }

    /// Returns whether a re-laid copy in its place would have more on huge pages.
    pub fn gains_by_copy(&self) -> bool {
        let cured = |(_, blocked): &(Part, &Blocked)| blocked.obstacle.is_cured_by_copy();
        self.error.is_none()
            && (self.obstacles().iter().any(cured) || self.random_base && self.whole_bytes > 0)
    }

    /// Returns the obstacles of all segments.
    pub fn obstacles(&self) -> Vec<(Part, &Blocked)> {
        let of = |s: &'_ SegmentReport| s.whole_bytes > 0;
        self.segments.iter().filter(|s| of(s)).flat_map(|s| s.obstacles.iter().map(|b| (s.part, b))).collect()
    }

    /// Returns how much is huge, in one line.
    pub fn summary(&self) -> String {
        if let Some(error) = &self.error {
            return error.clone();
        }
        let sums = [Part::Text, Part::Rodata, Part::Data].map(|part| {
            let own = self.segments.iter().filter(|s| s.part == part);
            own.fold((0, 0), |(huge, whole), s| (huge + s.huge_bytes, whole + s.whole_bytes))
        });
        let shown: Vec<String> = ["text", "rodata", "data"]
            .iter()
            .zip(sums)
            .filter(|(_, (_, whole))| *whole > 0)
            .map(|(part, (huge, whole))| format!("{part} {} of {}", human_bytes(huge), human_bytes(whole)))
            .collect();
        match shown.is_empty() {
            true => "no whole huge page".to_string(),
            false => format!("{} huge", shown.join(", ")),
        }
    }
}

impl PrimeReport {
    /// Reports on these files.
    pub fn new(page: Option<PageSize>, files: Vec<FileReport>) -> PrimeReport {
        PrimeReport { version: VERSION, page_size: page.map_or(0, PageSize::bytes), files }
    }

    /// Returns whether everything that was wanted is huge.
    pub fn is_huge(&self) -> bool {
        self.files.iter().all(|f| f.is_huge() && f.not_replaced.is_none())
    }
}

/// Returns the report as text. Files of which there is nothing to say are only counted, unless `verbose` is set or there
/// is only one file.
pub fn text(report: &PrimeReport, verbose: bool) -> String {
    let mut out = String::new();
    let is_shown = |f: &&FileReport| verbose || report.files.len() == 1 || f.matters();
    let shown: Vec<&FileReport> = report.files.iter().filter(is_shown).collect();
    for file in &shown {
        write(&mut out, file);
        if let Some(edges) =
            file.edges.filter(|edges| edges.bytes >= LARGE && (verbose || report.files.len() == 1))
        {
            let [all, large, size] = [edges.bytes, edges.large_bytes, LARGE].map(human_bytes);
            let _ = writeln!(
                out,
                "    {all} outside of whole huge pages, of which {large} are in folios of {size} or more"
            );
        }
    }
    match report.files.len() - shown.len() {
        0 => {}
        n => {
            let files = if n == 1 { "file" } else { "files" };
            let _ = writeln!(out, "{n} {files} without a whole huge page");
        }
    }
    out
}

fn write(out: &mut String, file: &FileReport) {
    if let Some(error) = &file.error {
        let _ = writeln!(out, "{error}");
    } else {
        let _ = writeln!(out, "{}: {}", file.path, file.summary());
    }
    for (part, blocked) in file.obstacles() {
        let _ = writeln!(out, "    {} of {part}: {}", human_bytes(blocked.bytes), blocked.obstacle);
        if let Some(hint) = &blocked.hint {
            let _ = writeln!(out, "        {hint}");
        }
    }
    let mut too_small = file.segments.iter().filter(|s| s.whole_bytes == 0).flat_map(|s| &s.obstacles);
    if file.whole_bytes == 0
        && let Some(hint) = too_small.find_map(|blocked| blocked.hint.as_ref())
    {
        let _ = writeln!(out, "    {hint}");
    }
    if file.random_base && file.huge_bytes > 0 {
        let how = "its base is random: started without hugelift, it is mapped huge only if the base \
                   happens to be congruent";
        let _ = writeln!(out, "    {how}");
    }
    if let Some(Replaced { original, aslr_bits_lost }) = &file.replaced {
        let _ = writeln!(out, "    replaced by a re-laid copy; the original is {original}");
        let _ = writeln!(out, "        back: hugelift prime --restore {}", quoted_path(&file.path));
        if *aslr_bits_lost > 0 {
            let _ = writeln!(out, "        its load address has {aslr_bits_lost} random bits fewer");
        }
    }
    if let Some(why) = &file.not_replaced {
        let _ = writeln!(out, "    not replaced: {why}");
    }
    if let Some(why) = &file.not_separated {
        let _ = writeln!(out, "    not separated: {why}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::PageSize;

    fn segment(part: Part, whole: u64) -> SegmentReport {
        let candidate = Candidate { part, offset: 0, bytes: whole + 1, whole, first: Some(0) };
        SegmentReport::new(&candidate, PageSize::MB2)
    }

    #[test]
    fn each_page_is_counted_once() {
        let mut text_part = segment(Part::Text, 6 << 20);
        text_part.book(2 << 20, None);
        text_part.book(2 << 20, Some(Obstacle::Fragmented));
        text_part.book(2 << 20, Some(Obstacle::Fragmented));
        let file = FileReport::new("/bin/x".into(), vec![segment(Part::Rodata, 0), text_part]);
        assert_eq!((file.whole_bytes, file.huge_bytes, file.is_huge()), (6 << 20, 2 << 20, false));
        assert_eq!(file.summary(), "text 2 MB of 6 MB huge");
        let report = PrimeReport::new(Some(PageSize::MB2), vec![file, FileReport::default()]);
        let shown = text(&report, false);
        assert!(shown.contains("\n    4 MB of text: the kernel found no free huge page for it\n"), "{shown}");
        assert!(shown.ends_with("1 file without a whole huge page\n"), "{shown}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["files"][0]["segments"][1]["obstacles"][0]["reason"], "fragmented");
        assert_eq!(json["files"][0]["segments"][1]["obstacles"][0]["bytes"], 4 << 20);
    }

    #[test]
    fn a_file_without_a_huge_page_is_complete() {
        let small = FileReport::new("/bin/true".into(), vec![segment(Part::Text, 0)]);
        let report = PrimeReport::new(Some(PageSize::MB2), vec![small]);
        assert!(report.is_huge());
        assert_eq!(text(&report, false), "/bin/true: no whole huge page\n");
        // Half a megabyte of code may have a page of its own; of constants it may not.
        for (part, has_help) in [(Part::Text, true), (Part::Rodata, false)] {
            let candidate = Candidate { part, offset: 0, bytes: 512 << 10, whole: 0, first: None };
            let file = FileReport::new("/bin/x".into(), vec![SegmentReport::new(&candidate, PageSize::MB2)]);
            let shown = text(&PrimeReport::new(Some(PageSize::MB2), vec![file]), false);
            let help = "\n    hugelift prime --replace --separate /bin/x ";
            assert_eq!(shown.contains(help), has_help, "{shown}");
        }
        let failed = FileReport::failed("/x".into(), "cannot read /x: no".into());
        assert!(!PrimeReport::new(None, vec![failed]).is_huge());
    }
}
