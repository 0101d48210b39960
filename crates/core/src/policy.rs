// SPDX-License-Identifier: Apache-2.0
//! What the user asked for.

use crate::addr::{PageSize, Range};
use crate::heat::hot::HotCode;
use crate::placement::Placement;
use crate::snapshot::{Object, Part};
use globset::{Glob, GlobSet, GlobSetBuilder};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

/// Where huge pages come from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backing {
    /// An anonymous copy on transparent huge pages.
    Thp,
    /// A copy on pages of the reserved pool.
    Hugetlb,
    /// The file's own page cache in huge folios: nothing is copied.
    Pagecache,
    /// A copy of text or read-only data in a file on tmpfs, which all processes map.
    Shared,
}

impl Backing {
    /// Returns whether its pages are anonymous memory, of which each process has its own copy.
    pub fn is_anonymous(self) -> bool {
        match self {
            Backing::Thp | Backing::Hugetlb => true,
            Backing::Pagecache | Backing::Shared => false,
        }
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Backing::Thp => "thp",
            Backing::Hugetlb => "hugetlb",
            Backing::Pagecache => "pagecache",
            Backing::Shared => "shared",
        })
    }
}

/// The backings of `--backing auto`, best first. A mapping of a file behaves as the program's own
/// file does: a part of it can be protected, unmapped and replaced, and `MADV_DONTNEED` brings the
/// file's bytes back. So an anonymous copy comes last. Pages of the pool, which can only be changed as
/// a whole, are used on request only.
pub const AUTO: [Backing; 3] = [Backing::Pagecache, Backing::Shared, Backing::Thp];

/// Which objects are wanted, by shell patterns on the whole path or on the file name.
#[derive(Clone, Debug, Default)]
pub struct ObjectFilter {
    only: Option<GlobSet>,
    except: Option<GlobSet>,
}

impl ObjectFilter {
    /// Takes every object that matches one of `only` (any, if empty) and none of `except`.
    ///
    /// # Errors
    /// Returns the pattern that is malformed, and why.
    pub fn new(only: &[String], except: &[String]) -> Result<ObjectFilter, String> {
        Ok(ObjectFilter { only: set(only)?, except: set(except)? })
    }

    /// Returns whether the object is wanted.
    pub fn takes(&self, object: &Object) -> bool {
        self.takes_path(&object.path)
    }

    /// Returns whether the object at `path` is wanted.
    pub fn takes_path(&self, path: &Path) -> bool {
        let hit = |globs: &GlobSet| {
            globs.is_match(path) || path.file_name().is_some_and(|name| globs.is_match(name))
        };
        self.only.as_ref().is_none_or(hit) && !self.except.as_ref().is_some_and(hit)
    }
}

fn set(patterns: &[String]) -> Result<Option<GlobSet>, String> {
    if patterns.is_empty() { Ok(None) } else { matcher(patterns).map(Some) }
}

/// The longest path of Linux (`PATH_MAX`). Longer names and patterns match nothing, and take long to prepare.
const LONGEST: usize = 4096;

/// Checks that a name or pattern is not longer than any path.
///
/// # Errors
/// One line that says so.
pub fn check_length(text: &str) -> Result<(), String> {
    match text.len() {
        ..=LONGEST => Ok(()),
        bytes => Err(format!(
            "'{}...' has {bytes} bytes, and no path has more than {LONGEST}",
            text.chars().take(20).collect::<String>()
        )),
    }
}

/// Returns what matches any of these shell patterns.
///
/// # Errors
/// Returns the pattern that is malformed, and why.
pub fn matcher(patterns: &[String]) -> Result<GlobSet, String> {
    let mut builder = GlobSetBuilder::new();
    for pattern in patterns {
        check_length(pattern)?;
        builder.add(Glob::new(pattern).map_err(|e| e.to_string())?);
    }
    builder.build().map_err(|e| e.to_string())
}

/// Which page sizes to use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PageChoice {
    /// Each backing's usual one.
    #[default]
    Usual,
    /// The largest that fits, then smaller ones for the rest: 1 GB in the middle of a part, 2 MB
    /// around it, the kernel's smaller folios at the edges.
    Mixed,
    /// This one alone.
    Only(PageSize),
}

impl PageChoice {
    /// Returns the one size that the user has named.
    pub fn named(self) -> Option<PageSize> {
        match self {
            PageChoice::Only(page) => Some(page),
            PageChoice::Usual | PageChoice::Mixed => None,
        }
    }

    /// Returns whether pages of this size may be used.
    pub fn allows(self, page: PageSize) -> bool {
        self.named().is_none_or(|named| named == page)
    }
}

/// What happens to the first and last huge page of a part, if the part fills them only partly.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SpanChoice {
    /// They stay: only whole huge pages inside a part are lifted.
    #[default]
    Inner,
    /// They are lifted if they hold only parts of one protection and free unmapped space, and are half
    /// full or hold an edge of at least a page.
    Outer,
    /// They are lifted as with `Outer`, if they are at least half full and their part is not shared
    /// with other processes.
    Auto,
}

impl fmt::Display for SpanChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            SpanChoice::Inner => "inner",
            SpanChoice::Outer => "outer",
            SpanChoice::Auto => "auto",
        })
    }
}

/// Whether text and rodata may be copied. It does not restrict what is huge without a new copy, in the page
/// cache or in an entry of the store that exists.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Copies {
    /// All that the backings allow.
    #[default]
    All,
    /// Nothing yet: it is copied while the program runs, when that is worth its cost ([`crate::worth`]).
    Later,
    /// Only the code that the process was seen to use. The store gets an entry of that alone.
    Hot(HotCode),
}

impl Copies {
    /// Returns whether all of `range` may be copied.
    pub fn allow(&self, range: Range) -> bool {
        match self {
            Copies::All => true,
            Copies::Later => false,
            Copies::Hot(hot) => hot.covers(range),
        }
    }
}

/// What to lift, and onto what.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Parts that are wanted.
    pub parts: Vec<Part>,
    /// Objects that are wanted.
    pub objects: ObjectFilter,
    /// The addresses that are wanted; `None` wants all.
    pub within: Option<Range>,
    /// Backings to try for each span of a read-only part, best first.
    pub backings: Vec<Backing>,
    /// Backings to try for each span of a writable part. A copy-on-write after fork(2) copies 4 kB
    /// of a transparent huge page, but a whole page of the pool, and may find the pool empty.
    pub data_backings: Vec<Backing>,
    /// What happens to the first and the last huge page of a part.
    pub span: SpanChoice,
    /// Page sizes to use.
    pub page: PageChoice,
    /// The NUMA nodes of lifted memory; `None` follows the program's own memory policy. Pages of the
    /// page cache and of the store stay where they are.
    pub placement: Option<Placement>,
    /// Where there are several NUMA nodes, a process gets the store's copy on its own node ([`crate::nearest`]).
    pub per_node: bool,
    /// Whether text and rodata may be copied.
    pub copies: Copies,
    /// Bytes that the program can do without where a control group limits its memory.
    pub spare: u64,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            parts: vec![Part::Text, Part::Rodata],
            objects: ObjectFilter::default(),
            within: None,
            backings: AUTO.to_vec(),
            data_backings: vec![Backing::Thp],
            span: SpanChoice::Inner,
            page: PageChoice::Usual,
            placement: None,
            per_node: false,
            copies: Copies::All,
            spare: 0,
        }
    }
}
