// SPDX-License-Identifier: Apache-2.0
//! The text of a process, by its mappings alone and without reading its files: cheap enough for
//! many processes every two seconds.
//!
//! ```text
//!   file r-x | anonymous r-x (lifted) | file r-x        text
//!   file r-- | anonymous r-x | nothing                  text: lifted up to its end
//!   anonymous --- | anonymous r-x | anonymous ---       not counted: code that a runtime has made
//! ```

use crate::host;
use hugelift_core::addr::{PageSize, Range};
use hugelift_core::maps::{FileId, Mapping};
use hugelift_core::policy::Backing;
use hugelift_core::smaps::Usage;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The text of all objects of a process, and its huge bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TextCoverage {
    /// All of it.
    #[serde(skip)]
    pub bytes: u64,
    /// What of it whole huge pages can map.
    #[serde(skip)]
    pub whole_bytes: u64,
    /// The bytes of it on huge pages.
    pub huge_bytes: u64,
    /// The huge bytes by backing.
    pub huge: BTreeMap<Backing, u64>,
}

impl TextCoverage {
    /// Makes the coverage of a text with this many bytes, all in whole huge pages, and these huge ones.
    pub fn new(bytes: u64, huge: impl IntoIterator<Item = (Backing, u64)>) -> TextCoverage {
        let huge: BTreeMap<Backing, u64> = huge.into_iter().filter(|(_, bytes)| *bytes > 0).collect();
        let huge_bytes = huge.values().fold(0u64, |sum, n| sum.saturating_add(*n));
        TextCoverage { bytes, whole_bytes: bytes, huge_bytes, huge }
    }

    /// Adds up what smaps shows.
    pub fn of(usage: &[Usage]) -> TextCoverage {
        let mappings: Vec<&Mapping> = usage.iter().map(|u| &u.mapping).collect();
        let (mut bytes, mut huge) = (0u64, BTreeMap::<Backing, u64>::new());
        let mut runs: Vec<Range> = Vec::new();
        for (used, _) in usage.iter().zip(is_text(&mappings)).filter(|(_, is_text)| *is_text) {
            let range = used.mapping.range;
            bytes = bytes.saturating_add(range.len());
            // A lift splits a mapping.
            match runs.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => runs.push(range),
            }
            for (backing, found) in [
                (Backing::Thp, used.anon_huge),
                (Backing::Hugetlb, used.hugetlb()),
                (Backing::Pagecache, used.file_huge),
                (Backing::Shared, used.shmem_huge),
            ] {
                let sum = huge.entry(backing).or_default();
                *sum = sum.saturating_add(found.min(used.mapping.range.len()));
            }
        }
        let page = PageSize::new(host::huge_page_bytes()).unwrap_or(PageSize::MB2);
        let whole_bytes = runs.iter().filter_map(|run| run.inner(page)).map(Range::len).sum();
        TextCoverage { whole_bytes, ..TextCoverage::new(bytes, huge) }
    }

    /// Returns the size alone, by `/proc/PID/maps`.
    pub fn size(mappings: &[Mapping]) -> u64 {
        let mappings: Vec<&Mapping> = mappings.iter().collect();
        let text = mappings.iter().zip(is_text(&mappings)).filter(|(_, is_text)| *is_text);
        text.fold(0, |sum, (m, _)| sum.saturating_add(m.range.len()))
    }
}

/// `92% thp`, `40% thp, 12% hugetlb`, `0%`; of all text, edges included.
impl fmt::Display for TextCoverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |bytes: u64| u128::from(bytes) * 100 / u128::from(self.bytes.max(1));
        let mut largest: Vec<(&Backing, &u64)> = self.huge.iter().collect();
        largest.sort_by_key(|(_, bytes)| std::cmp::Reverse(**bytes));
        let shown: Vec<String> =
            largest.iter().map(|(backing, bytes)| format!("{}% {backing}", percent(**bytes))).collect();
        f.pad(&if shown.is_empty() { "0%".to_string() } else { shown.join(", ") })
    }
}

/// Returns for each mapping, by address, whether it is text of an object.
pub(crate) fn is_text(mappings: &[&Mapping]) -> Vec<bool> {
    let code = |m: &Mapping| m.prot.exec && !m.is_kernel_code();
    // A file of which some is writable and executable at once is the memory of a runtime, such as sbcl's core.
    let of_runtimes: BTreeSet<FileId> =
        mappings.iter().filter(|m| m.is_file() && m.prot.is_wx()).map(|m| m.file).collect();
    // A shared executable mapping is one that a runtime writes by another mapping of the same memory.
    let of_file = |m: &Mapping| code(m) && m.is_file() && !m.shared && !of_runtimes.contains(&m.file);
    let anonymous = |m: &Mapping| code(m) && !m.is_file() && !m.prot.write;
    let mut out: Vec<bool> = mappings.iter().map(|m| of_file(m)).collect();
    // Anonymous code is lifted text if it is adjacent to a mapping of a file or to lifted text. One
    // pass upwards and one downwards find it.
    let adjacent = |a: &Mapping, b: &Mapping| a.range.end == b.range.start;
    for i in 1..mappings.len() {
        let (below, here) = (mappings[i - 1], mappings[i]);
        out[i] |= anonymous(here) && adjacent(below, here) && (out[i - 1] || below.is_file());
    }
    for i in (1..mappings.len()).rev() {
        let (here, above) = (mappings[i - 1], mappings[i]);
        out[i - 1] |= anonymous(here) && adjacent(here, above) && (out[i] || above.is_file());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::maps::parse_maps;
    use hugelift_core::smaps::parse_smaps;

    fn size(lines: &str) -> u64 {
        TextCoverage::size(&parse_maps(lines.as_bytes()).unwrap()) >> 12
    }

    #[test]
    fn text_of_files_lifted_or_not() {
        assert_eq!(size("1000-2000 r--p 0 8:1 5 /x\n2000-5000 r-xp 1000 8:1 5 /x\n"), 3);
        // Lifted in the middle, and up to the end.
        assert_eq!(
            size("1000-2000 r-xp 0 8:1 5 /x\n2000-5000 r-xp 0 0:0 0\n5000-6000 r-xp 4000 8:1 5 /x\n"),
            5
        );
        assert_eq!(size("1000-2000 r--p 0 8:1 5 /x\n2000-5000 r-xp 0 0:0 0\n5000-6000 r-xp 0 0:0 0\n"), 4);
        assert_eq!(size("2000-5000 r-xp 0 0:0 0\n5000-6000 r-xp 0 0:0 0\n6000-7000 r--p 0 8:1 5 /x\n"), 4);
        // On pages of the pool, which maps shows as a file.
        assert_eq!(size("200000-400000 r-xp 0 0:11 77 /anon_hugepage (deleted)\n"), 512);
    }

    #[test]
    fn code_of_a_runtime_does_not_count() {
        assert_eq!(size("1000-2000 ---p 0 0:0 0\n2000-5000 r-xp 0 0:0 0\n5000-6000 ---p 0 0:0 0\n"), 0);
        assert_eq!(size("1000-2000 r-xp 0 8:1 5 /x\n2000-5000 rwxp 0 0:0 0\n"), 1);
        assert_eq!(size("1000-2000 r-xp 0 8:1 5 /x\n3000-5000 r-xp 0 0:0 0\n"), 1);
        assert_eq!(size("1000-2000 rwxp 0 8:1 7 /x.core\n2000-5000 r-xp 1000 8:1 7 /x.core\n"), 0);
        assert_eq!(size("1000-2000 r-xs 0 0:1 9 /memfd:doublemapper (deleted)\n"), 0);
        assert_eq!(size("1000-2000 r-xp 0 0:0 0 [vdso]\nff00000-ff01000 --xp 0 0:0 0 [vsyscall]\n"), 0);
    }

    #[test]
    fn by_backing() {
        let smaps = "\
200000-600000 r-xp 0 8:1 5 /x
FilePmdMapped: 2048 kB
600000-800000 r-xp 0 0:0 0
AnonHugePages: 2048 kB
800000-a00000 rw-p 0 0:0 0
AnonHugePages: 2048 kB
";
        let text = TextCoverage::of(&parse_smaps(smaps.as_bytes()).unwrap());
        let huge = [(Backing::Pagecache, 2 << 20), (Backing::Thp, 2 << 20)];
        assert_eq!(text, TextCoverage { whole_bytes: 6 << 20, ..TextCoverage::new(6 << 20, huge) });
        assert_eq!(text.huge_bytes, 4 << 20);
        assert_eq!(text.to_string(), "33% thp, 33% pagecache");
        assert_eq!(TextCoverage::of(&[]).to_string(), "0%");
    }
}
