// SPDX-License-Identifier: Apache-2.0
//! What priming came to, file by file: as data, as JSON and as text.

use super::{Candidate, Holder, Obstacle};
use crate::addr::{PageSize, human_bytes};
use crate::printable::Untrusted;
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
    /// In the order in which they were asked for.
    pub files: Vec<FileReport>,
}

/// One file.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize)]
pub struct FileReport {
    /// Where it is.
    pub path: Untrusted,
    /// Whole huge pages of its read-only segments, in bytes.
    pub whole_bytes: u64,
    /// Of these, what a fresh mapping shows on huge pages.
    pub huge_bytes: u64,
    /// Its read-only segments, by offset.
    pub segments: Vec<SegmentReport>,
    /// Why it could not be looked at.
    pub error: Option<String>,
    /// A position-independent executable: its random base is as a rule not congruent, so that
    /// huge pages of its file are not mapped huge by a plain start.
    pub random_base: bool,
    /// It was replaced by a re-laid copy, of which the rest speaks.
    pub replaced: Option<Replaced>,
    /// Why it was not replaced, where that was wanted and would help.
    pub not_replaced: Option<String>,
    /// Offsets in the file of the pages that are huge, ascending within a segment.
    #[serde(skip)]
    pub huge_pages: Vec<u64>,
}

/// What replaced a file.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Replaced {
    /// Where the original is kept.
    pub original: Untrusted,
    /// Random bits that the load address has lost.
    pub aslr_bits_lost: u32,
}

/// One read-only segment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SegmentReport {
    /// Text or read-only data.
    pub part: Part,
    /// Offset in the file.
    pub offset: u64,
    /// Length in the file.
    pub bytes: u64,
    /// Whole huge pages, in bytes.
    pub whole_bytes: u64,
    /// Of these, what a fresh mapping shows on huge pages.
    pub huge_bytes: u64,
    /// What stands in the way of the others.
    pub obstacles: Vec<Blocked>,
}

/// Bytes that are not huge, for one reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Blocked {
    /// Why.
    pub obstacle: Obstacle,
    /// How many bytes.
    pub bytes: u64,
    /// What would change it, with the file's name.
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
    /// The segment with nothing known of it yet but what its headers forbid.
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

    /// Books one huge page of `bytes`: as huge, or under its obstacle.
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
    /// A file with these segments.
    pub fn new(path: Untrusted, mut segments: Vec<SegmentReport>) -> FileReport {
        for blocked in segments.iter_mut().flat_map(|segment| &mut segment.obstacles) {
            blocked.hint = blocked.obstacle.hint_for(&path);
        }
        FileReport {
            path,
            whole_bytes: segments.iter().map(|s| s.whole_bytes).sum(),
            huge_bytes: segments.iter().map(|s| s.huge_bytes).sum(),
            segments,
            ..FileReport::default()
        }
    }

    /// A file that could not be looked at.
    pub fn failed(path: Untrusted, error: String) -> FileReport {
        FileReport { path, error: Some(error), ..FileReport::default() }
    }

    /// All its whole huge pages are huge; so are those of a file without any.
    pub fn is_huge(&self) -> bool {
        self.error.is_none() && self.huge_bytes == self.whole_bytes
    }

    /// Whether a re-laid copy in its place would have more on huge pages.
    pub fn gains_by_copy(&self) -> bool {
        let cured = |(_, blocked): &(Part, &Blocked)| blocked.obstacle.is_cured_by_copy();
        self.error.is_none()
            && (self.obstacles().iter().any(cured) || self.random_base && self.whole_bytes > 0)
    }

    /// What stands in the way, over all segments.
    pub fn obstacles(&self) -> Vec<(Part, &Blocked)> {
        let of = |s: &'_ SegmentReport| s.whole_bytes > 0;
        self.segments.iter().filter(|s| of(s)).flat_map(|s| s.obstacles.iter().map(|b| (s.part, b))).collect()
    }

    /// One line: how much is huge.
    pub fn summary(&self) -> String {
        if let Some(error) = &self.error {
            return error.clone();
        }
        let sums = [Part::Text, Part::Rodata].map(|part| {
            let own = self.segments.iter().filter(|s| s.part == part);
            own.fold((0, 0), |(huge, whole), s| (huge + s.huge_bytes, whole + s.whole_bytes))
        });
        let shown: Vec<String> = ["text", "rodata"]
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
    /// The report on these files.
    pub fn new(page: Option<PageSize>, files: Vec<FileReport>) -> PrimeReport {
        PrimeReport { version: VERSION, page_size: page.map_or(0, PageSize::bytes), files }
    }

    /// All that was wanted is huge.
    pub fn is_huge(&self) -> bool {
        self.files.iter().all(|f| f.is_huge() && f.not_replaced.is_none())
    }
}

/// The report for people. Files without a whole huge page are only counted, unless they are
/// all there is or `verbose`.
pub fn text(report: &PrimeReport, verbose: bool) -> String {
    let mut out = String::new();
    let tells = |f: &&FileReport| f.whole_bytes > 0 || f.error.is_some();
    let shown: Vec<&FileReport> = report.files.iter().filter(|f| verbose || tells(f)).collect();
    for file in &shown {
        let _ = writeln!(out, "{}: {}", file.path, file.summary());
        for (part, blocked) in file.obstacles() {
            let _ = writeln!(out, "    {} of {part}: {}", human_bytes(blocked.bytes), blocked.obstacle);
            if let Some(hint) = &blocked.hint {
                let _ = writeln!(out, "        {hint}");
            }
        }
        if file.random_base && file.huge_bytes > 0 {
            let how =
                "its base is random: a plain start maps it huge only if the base happens to be congruent";
            let _ = writeln!(out, "    {how}");
        }
        if let Some(Replaced { original, aslr_bits_lost }) = &file.replaced {
            let _ = writeln!(out, "    replaced by a re-laid copy; the original is {original}");
            let _ = writeln!(out, "        back: hugelift prime --restore {}", file.path);
            if *aslr_bits_lost > 0 {
                let _ = writeln!(out, "        its load address has {aslr_bits_lost} random bits fewer");
            }
        }
        if let Some(why) = &file.not_replaced {
            let _ = writeln!(out, "    not replaced: {why}");
        }
    }
    match report.files.len() - shown.len() {
        0 => {}
        1 if shown.is_empty() => {
            let _ = writeln!(out, "{}: no whole huge page", report.files[0].path);
        }
        n => {
            let _ = writeln!(out, "{n} files without a whole huge page");
        }
    }
    out
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
    fn each_page_is_booked_once() {
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
        assert!(shown.ends_with("1 files without a whole huge page\n"), "{shown}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["files"][0]["segments"][1]["obstacles"][0]["reason"], "fragmented");
        assert_eq!(json["files"][0]["segments"][1]["obstacles"][0]["bytes"], 4 << 20);
    }

    #[test]
    fn nothing_wanted_is_nothing_missed() {
        let small = FileReport::new("/bin/true".into(), vec![segment(Part::Text, 0)]);
        let report = PrimeReport::new(Some(PageSize::MB2), vec![small]);
        assert!(report.is_huge());
        assert_eq!(text(&report, false), "/bin/true: no whole huge page\n");
        let failed = FileReport::failed("/x".into(), "cannot read /x: no".into());
        assert!(!PrimeReport::new(None, vec![failed]).is_huge());
    }
}
