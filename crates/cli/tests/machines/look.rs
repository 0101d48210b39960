// SPDX-License-Identifier: Apache-2.0
//! What a victim prints about itself: where its parts lie, their sums, its smaps.

/// One look of a victim at itself.
#[derive(Debug)]
pub struct Look {
    pub text: Part,
    pub rodata: Part,
    mappings: Vec<Mapping>,
}

/// A big segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    pub start: u64,
    pub bytes: u64,
    pub sum: u64,
}

/// Where the huge pages of a mapping come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    Thp,
    Hugetlb,
    Any,
}

/// A paragraph of smaps.
#[derive(Debug, Default)]
struct Mapping {
    start: u64,
    end: u64,
    perms: String,
    thp: u64,
    hugetlb: u64,
    file: u64,
    flags: Vec<String>,
}

impl Part {
    /// Returns how many of its bytes whole pages of `page` bytes cover.
    pub fn whole(self, page: u64) -> u64 {
        let (first, last) = (self.start.next_multiple_of(page), (self.start + self.bytes) / page * page);
        last.saturating_sub(first)
    }

    fn end(self) -> u64 {
        self.start + self.bytes
    }
}

impl Look {
    /// Returns every look in a victim's output.
    pub fn all(output: &str) -> Vec<Look> {
        let mut looks = Vec::new();
        let (mut text, mut rodata, mut mappings) = (None, None, Vec::new());
        for line in output.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["text", start, bytes, sum] => text = part(start, bytes, sum),
                ["rodata", start, bytes, sum] => rodata = part(start, bytes, sum),
                ["end"] => {
                    if let (Some(text), Some(rodata)) = (text.take(), rodata.take()) {
                        looks.push(Look { text, rodata, mappings: std::mem::take(&mut mappings) });
                    }
                }
                _ => read_smaps(&words, &mut mappings),
            }
        }
        looks
    }

    fn inside(&self, part: Part) -> impl Iterator<Item = &Mapping> {
        self.mappings.iter().filter(move |m| m.start < part.end() && part.start < m.end)
    }

    /// Returns the number of huge bytes in `part`.
    pub fn huge(&self, part: Part, from: From) -> u64 {
        let bytes = |m: &Mapping| match from {
            From::Thp => m.thp,
            From::Hugetlb => m.hugetlb,
            From::Any => m.thp + m.hugetlb + m.file,
        };
        self.inside(part).map(bytes).sum()
    }

    /// Returns the number of huge bytes in both parts.
    pub fn huge_in_all(&self, from: From) -> u64 {
        self.huge(self.text, from) + self.huge(self.rodata, from)
    }

    /// Asserts that all whole huge pages inside both parts are huge.
    pub fn assert_lifted(&self, page: u64, from: From) {
        for (name, part) in [("text", self.text), ("rodata", self.rodata)] {
            assert!(part.whole(page) > 0, "the {name} of the victim is too small for {page}: {part:?}");
            let huge = self.huge(part, from);
            assert_eq!(huge, part.whole(page), "huge bytes of the {name}, from {from:?}: {self:#x?}");
        }
    }

    /// Asserts that both parts are where they were, without gaps and each with its protection, and
    /// that no memory is both writable and executable.
    pub fn assert_intact(&self) {
        for (part, perms) in [(self.text, "r-xp"), (self.rodata, "r--p")] {
            let mut at = part.start;
            for m in self.inside(part) {
                assert_eq!((m.perms.as_str(), m.start.min(at)), (perms, m.start), "{part:#x?} of {self:#x?}");
                assert!(m.start <= at, "a gap before {m:#x?} in {part:#x?}");
                at = m.end;
            }
            assert!(at >= part.end(), "{part:#x?} ends at {at:#x}");
        }
        for m in &self.mappings {
            let wx = m.perms.contains('w') && m.perms.contains('x');
            assert!(!wx, "writable and executable: {m:#x?}");
        }
    }

    /// Returns whether each mapping of `part` has this flag in its `VmFlags` line.
    #[cfg(target_arch = "aarch64")]
    pub fn has_flag(&self, part: Part, flag: &str) -> bool {
        self.inside(part).all(|m| m.flags.iter().any(|f| f == flag))
    }
}

fn part(start: &str, bytes: &str, sum: &str) -> Option<Part> {
    let hex = |s| u64::from_str_radix(s, 16).ok();
    Some(Part { start: hex(start)?, bytes: hex(bytes)?, sum: hex(sum)? })
}

fn read_smaps(words: &[&str], mappings: &mut Vec<Mapping>) {
    let range = words.first().and_then(|w| w.split_once('-'));
    let hex = |s| u64::from_str_radix(s, 16).ok();
    if let Some((start, end)) = range.and_then(|(start, end)| hex(start).zip(hex(end))) {
        let perms = words.get(1).unwrap_or(&"").to_string();
        mappings.push(Mapping { start, end, perms, ..Mapping::default() });
        return;
    }
    let Some(last) = mappings.last_mut() else { return };
    match *words {
        ["VmFlags:", ref flags @ ..] => last.flags = flags.iter().map(|f| f.to_string()).collect(),
        [key, number, "kB"] => {
            let bytes = number.parse::<u64>().unwrap_or(0) << 10;
            match key {
                "AnonHugePages:" => last.thp += bytes,
                "Private_Hugetlb:" | "Shared_Hugetlb:" => last.hugetlb += bytes,
                "FilePmdMapped:" | "ShmemPmdMapped:" => last.file += bytes,
                _ => {}
            }
        }
        _ => {}
    }
}
