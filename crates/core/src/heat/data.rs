// SPDX-License-Identifier: Apache-2.0
//! Which of its data a process uses: part by part, mapping by mapping, and huge page by huge page where the kernel tells
//! addresses.
//!
//! | module | holds |
//! |---|---|
//! | [`areas`] | where the data of a process lies |
//! | [`count`] | the sums of what was seen |
//! | [`damon`] | what DAMON says in sysfs, and what follows from it |
//! | [`idle`] | page frames, and which of them were used since they were marked idle |
//! | [`precise`] | data addresses that a PMU has sampled |

pub mod areas;
pub mod count;
pub mod damon;
pub mod idle;
pub mod precise;

use crate::addr::human_bytes;
use crate::printable::{Escape, Untrusted, thousands};
use crate::snapshot::Part;
use serde::Serialize;
use std::fmt;

/// A way to see which data a process uses, the one that misses the least first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// `/sys/kernel/mm/page_idle/bitmap`: each page frame is marked idle, and read at the end.
    IdlePageTracking,
    /// DAMON of virtual addresses: the kernel checks one page of each span again and again.
    Damon,
    /// The PMU samples addresses of loads and stores (PEBS, IBS, SPE).
    PreciseAddresses,
    /// `/proc/PID/clear_refs`, then `Referenced` in smaps: a sum for each mapping.
    Referenced,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Method::PreciseAddresses => "precise data addresses",
            Method::IdlePageTracking => "idle page tracking",
            Method::Damon => "DAMON",
            Method::Referenced => "referenced bits",
        })
    }
}

/// The CPU sets the accessed bit when it loads an entry into its TLB, and none of these ways empties the TLB.
const TLB: &str = "a page whose entry stays in a TLB all the time is not seen, so the figures are lower bounds; huge pages \
                   stay longer than small ones";
const LATER: &str = "memory that is mapped after the start is not counted";
const SHARED: &str = "a page that several processes share also counts if another one touched it";
const AROUND: &str = "a page of a file also counts if the kernel mapped it beside one that was touched";

impl Method {
    /// Returns what it cannot see, a sentence each.
    pub fn cannot_see(self) -> &'static [&'static str] {
        match self {
            Method::IdlePageTracking => &[
                TLB,
                LATER,
                SHARED,
                AROUND,
                "a folio of several pages counts as a whole, and pages of the hugetlb pool are not watched",
            ],
            Method::Damon => &[
                TLB,
                LATER,
                SHARED,
                "of each span one page at a time is checked: bytes are an estimate, and a span of which few pages are used \
                 may be missed",
            ],
            Method::PreciseAddresses => &[
                LATER,
                "a page counts once a sample has met it, so bytes and spans are lower bounds",
                "PEBS samples no stores; threads on CPUs of another kind are not seen",
            ],
            Method::Referenced => &[
                TLB,
                LATER,
                SHARED,
                AROUND,
                "the kernel tells a sum for each mapping, no addresses; pages of the hugetlb pool are not seen",
            ],
        }
    }

    /// Returns the word before a number of bytes that it found.
    fn exactness(self) -> &'static str {
        match self {
            Method::Damon => "about ",
            _ => "at least ",
        }
    }
}

/// Why a way was not taken.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Refusal {
    /// The way.
    pub method: Method,
    /// What was found, and what helps, in one line.
    pub why: String,
}

/// What a piece of data is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Read-only data of an object.
    Rodata,
    /// What is read-only after relocation.
    Relro,
    /// Initialised data.
    Data,
    /// Data that is zero at the start.
    Bss,
    /// What brk(2) manages.
    Heap,
    /// The first thread's stack.
    Stack,
    /// Anonymous memory that the program has mapped itself.
    Anon,
    /// Shared memory: anonymous, System V, memfd, `/dev/shm`.
    Shared,
    /// A mapped file that is no object, or what of an object is in none of its parts.
    File,
}

impl Kind {
    /// Returns the kind of the data of a part; `None` for code.
    pub fn of_part(part: Part) -> Option<Kind> {
        Some(match part {
            Part::Text | Part::Jit => return None,
            Part::Rodata => Kind::Rodata,
            Part::Relro => Kind::Relro,
            Part::Data => Kind::Data,
            Part::Bss => Kind::Bss,
            Part::Heap => Kind::Heap,
            Part::Stack => Kind::Stack,
            Part::Anon => Kind::Anon,
            Part::Shm => Kind::Shared,
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Rodata => "rodata",
            Kind::Relro => "relro",
            Kind::Data => "data",
            Kind::Bss => "bss",
            Kind::Heap => "heap",
            Kind::Stack => "stack",
            Kind::Anon => "anon",
            Kind::Shared => "shared",
            Kind::File => "file",
        })
    }
}

/// Sums of bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Bytes {
    /// What is mapped.
    pub mapped: u64,
    /// What of it is in memory.
    pub resident: u64,
    /// What of that was watched: the rest is unknown.
    pub watched: u64,
    /// What of that was touched during the time.
    pub touched: u64,
}

/// Huge pages by address, or larger spans of a large process.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Spans {
    /// Those that hold resident data.
    pub resident: u64,
    /// Those of which something was touched.
    pub touched: u64,
    /// The fewest that hold [`HOT_PERCENT`](super::HOT_PERCENT) of the bytes touched or, where addresses are sampled, of the
    /// samples.
    pub hot: u64,
}

/// The data of one part of an object, or of one kind of mapping.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PlaceInUse {
    /// What it is.
    pub kind: Kind,
    /// The file that is mapped; `None` for anonymous memory.
    pub path: Option<Untrusted>,
    /// Its bytes.
    pub bytes: Bytes,
    /// Its spans; `None` where the way tells no addresses.
    pub spans: Option<Spans>,
}

impl PlaceInUse {
    /// Returns its name for display: "anon", "libc.so.6 data".
    pub fn name(&self) -> String {
        match &self.path {
            None => self.kind.to_string(),
            Some(path) => {
                format!("{} {}", path.file_name().unwrap_or(path.as_os_str()).escaped(), self.kind)
            }
        }
    }
}

/// The data that a process used while it was watched.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DataInUse {
    /// How long it was watched.
    pub milliseconds: u64,
    /// Whether it ended meanwhile.
    pub ended: bool,
    /// The way that was taken; `None` if there is none here.
    pub method: Option<Method>,
    /// The ways that were tried before, or are not there.
    pub refusals: Vec<Refusal>,
    /// What the way cannot see.
    pub cannot_see: Vec<&'static str>,
    /// Samples in its data, where a PMU takes them.
    pub samples: Option<u64>,
    /// Milliseconds between two checks of a span, where it is checked again and again.
    pub interval_ms: Option<u64>,
    /// All data.
    pub bytes: Bytes,
    /// Bytes of a span; `None` where the way tells no addresses.
    pub span_size: Option<u64>,
    /// All spans. One that two places share counts once.
    pub spans: Option<Spans>,
    /// The places with resident data, those with the most touched bytes first.
    pub places: Vec<PlaceInUse>,
}

impl DataInUse {
    /// Says that no way is open.
    pub fn unseen(refusals: Vec<Refusal>) -> DataInUse {
        DataInUse {
            milliseconds: 0,
            ended: false,
            method: None,
            refusals,
            cannot_see: Vec::new(),
            samples: None,
            interval_ms: None,
            bytes: Bytes::default(),
            span_size: None,
            spans: None,
            places: Vec::new(),
        }
    }

    /// Returns "at least 34 MB of 512 MB, in 60 huge pages of 256, by idle page tracking in 10.0 s", or that nothing can be
    /// seen.
    pub fn says(&self) -> String {
        let Some(method) = self.method else {
            return match self.ended {
                true => "unknown: the process ended before it was read".into(),
                false => "cannot be seen here".into(),
            };
        };
        let spans = self.spans.map(|spans| format!(", in {}", self.says_spans(spans))).unwrap_or_default();
        let (seconds, ended) =
            (self.milliseconds as f64 / 1000.0, if self.ended { ", then it ended" } else { "" });
        format!("{}{spans}, by {method} in {seconds:.1} s{ended}", self.says_bytes(self.bytes))
    }

    /// Returns "at least 34 MB of 512 MB".
    pub fn says_bytes(&self, bytes: Bytes) -> String {
        let exactness = self.method.filter(|_| bytes.touched > 0).map_or("", Method::exactness);
        format!("{exactness}{} of {}", human_bytes(bytes.touched), human_bytes(bytes.resident))
    }

    /// Returns "60 huge pages of 256", or "60 spans of 8 MB of 256".
    pub fn says_spans(&self, spans: Spans) -> String {
        let [touched, resident] = [spans.touched, spans.resident].map(thousands);
        match self.span_size {
            Some(size) => format!("{touched} spans of {} of {resident}", human_bytes(size)),
            None => format!("{touched} spans of {resident}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    #[test]
    fn issue_31_2_a_line_says_how_much_and_by_what() {
        let bytes = Bytes { mapped: 600 * MB, resident: 512 * MB, watched: 512 * MB, touched: 34 * MB };
        let spans = Some(Spans { resident: 256, touched: 60, hot: 40 });
        let method = Some(Method::IdlePageTracking);
        let seen = DataInUse {
            milliseconds: 10_000,
            method,
            bytes,
            spans,
            span_size: Some(2 * MB),
            ..DataInUse::unseen(vec![])
        };
        let line = "at least 34 MB of 512 MB, in 60 spans of 2 MB of 256, by idle page tracking in 10.0 s";
        assert_eq!(seen.says(), line);
        let damon = DataInUse { method: Some(Method::Damon), ended: true, ..seen };
        assert!(damon.says().starts_with("about 34 MB of 512 MB, in "), "{}", damon.says());
        assert!(damon.says().ends_with("by DAMON in 10.0 s, then it ended"), "{}", damon.says());
        assert_eq!(DataInUse::unseen(vec![]).says(), "cannot be seen here");
    }

    #[test]
    fn issue_31_2_each_way_says_what_it_cannot_see() {
        for method in [Method::IdlePageTracking, Method::Damon, Method::Referenced] {
            assert!(method.cannot_see().iter().all(|line| !line.contains('\n')), "{method}");
            assert!(method.cannot_see().contains(&TLB), "{method}");
        }
        assert!(
            !Method::PreciseAddresses.cannot_see().contains(&TLB),
            "a sample needs no entry of a page table"
        );
    }
}
