// SPDX-License-Identifier: Apache-2.0
//! The report as data, which is also the JSON output.

use super::entries::Entries;
use super::fragments::Fragment;
use crate::addr::{PageSize, Range};
use crate::folios::Folios;
use crate::heat::Heat;
use crate::heat::data::DataInUse;
use crate::maps::{FileId, Mapping};
use crate::policy::{Backing, SpanChoice};
use crate::printable::Untrusted;
use crate::skip::Reason;
use crate::snapshot::Part;
use crate::unused::Unused;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// Version of the JSON schema.
pub const VERSION: u32 = 1;

/// What is on huge pages, object by object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// The objects, the executable first.
    pub objects: Vec<ObjectReport>,
    /// Sums over all objects, for every part that occurs.
    pub totals: BTreeMap<Part, Total>,
    /// The process; `None` for a program that does not run.
    pub pid: Option<u32>,
    /// The program does not run: its addresses are an example of what the kernel and the loader may
    /// choose.
    pub assumed_addresses: bool,
    /// Size of the huge pages that `liftable_bytes` counts, in bytes.
    pub page_size: u64,
    /// Size of the huge pages that code can move onto.
    #[serde(skip)]
    pub usual_page: PageSize,
    /// What each choice of spans would lift; empty unless the caller sets it from [`gains`](super::gains).
    pub spans: BTreeMap<SpanChoice, Gain>,
    /// How many TLB entries text and read-only data take.
    pub tlb_entries: Entries,
    /// The anonymous memory that the program has mapped itself ([`Part::Anon`]); `None` unless the caller
    /// sets it from [`anonymous`](super::anonymous).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anonymous: Option<Total>,
    /// The code that the program has made itself ([`Part::Jit`]); `None` unless the caller sets it from
    /// [`anonymous`](super::anonymous).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jit: Option<Total>,
    /// The memory that the process may share with others ([`Part::Shm`]); `None` unless the caller sets it from
    /// [`shared_memory`](super::shared_memory).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shm: Option<SharedMemory>,
    /// The sizes of the folios that hold its memory; `None` unless the caller has read that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folios: Option<FolioSizes>,
    /// The zeros on its huge pages; `None` unless the caller has read the memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unused: Option<Unused>,
    /// The mapped files that are no objects; `None` unless the caller sets them from [`data_files`](super::data_files).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_files: Option<Vec<DataFile>>,
    /// The code in use; `None` unless the caller has sampled it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heat: Option<Heat>,
    /// The data in use; `None` unless the caller has watched it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<DataInUse>,
    /// On which memory nodes its code lies; `None` unless the caller has read it, on a machine with several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code_on_nodes: Option<CodeOnNodes>,
}

/// How much code in memory lies on the memory node nearest to a process, and how much on others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct CodeOnNodes {
    /// The nearest node ([`crate::nearest`]).
    pub nearest: u32,
    /// Bytes on it.
    pub near_bytes: u64,
    /// Bytes on others.
    pub remote_bytes: u64,
}

/// The shared memory of a process.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct SharedMemory {
    /// Its sums.
    #[serde(flatten)]
    pub total: Total,
    /// Bytes in memory that cannot be huge, as their address does not match their offset ([`crate::shared_memory`]).
    pub incongruent_bytes: u64,
    /// Bytes of these that are of files of a tmpfs that is mounted.
    pub mounted_bytes: u64,
}

/// The sizes of the folios of a process.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize)]
pub struct FolioSizes {
    /// By part; `file` is what is mapped of files that are no objects.
    pub parts: BTreeMap<String, Folios>,
    /// All of its memory was read.
    pub whole: bool,
    /// Bytes of a base page.
    pub base_page: u64,
}

/// A file that a process maps and that is no object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DataFile {
    /// As in `/proc/PID/maps`.
    pub path: Untrusted,
    /// All bytes that are mapped.
    pub bytes: u64,
    /// Bytes that are in memory and mapped by the process.
    pub resident_bytes: u64,
    /// Bytes of the whole huge pages that could map it: 0 if there is none, for the `reason`.
    pub liftable_bytes: u64,
    /// Bytes that huge pages map now, by smaps.
    pub huge_bytes: u64,
    /// It has been unlinked since.
    pub deleted: bool,
    /// Why what is in memory is not on huge pages; `None` if it is, or if the reason was not found: root alone sees folios.
    pub reason: Option<Small>,
    /// What helps; `None` if it is huge, or if nothing does.
    pub hint: Option<String>,
    /// Which file it is.
    #[serde(skip)]
    pub id: FileId,
    /// Where huge pages could map it.
    #[serde(skip)]
    pub liftable: Vec<Range>,
    /// Bytes that small pages map there.
    #[serde(skip)]
    pub small_bytes: u64,
}

impl DataFile {
    /// Returns the file of a mapping, of which nothing is known yet.
    pub fn new(mapping: &Mapping) -> DataFile {
        DataFile {
            path: mapping.path.clone().into(),
            bytes: 0,
            resident_bytes: 0,
            liftable_bytes: 0,
            huge_bytes: 0,
            deleted: mapping.deleted,
            reason: None,
            hint: None,
            id: mapping.file,
            liftable: Vec::new(),
            small_bytes: 0,
        }
    }
}

/// Why what a process has in memory of a data file is not on huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Small {
    /// Its address and its offset in the file differ modulo a huge page.
    NotCongruent,
    /// It is mapped in pieces that are smaller than a huge page.
    TooSmall,
    /// It is private memory that the process may write to: what it has written is its own.
    Private,
    /// The process has excluded it (`MADV_NOHUGEPAGE`).
    Excluded,
    /// It has been unlinked, and hugelift leaves such files alone.
    Deleted,
    /// Its page cache is in folios that are smaller than a huge page.
    SmallFolios,
    /// Its page cache is in huge folios, which the process maps by small pages.
    MappedSmall,
}

impl fmt::Display for Small {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Small::NotCongruent => "its address does not match its offset",
            Small::TooSmall => "it is mapped in pieces smaller than a huge page",
            Small::Private => "it is mapped as private writable memory",
            Small::Excluded => "the process wants no huge pages here (MADV_NOHUGEPAGE)",
            Small::Deleted => "it is deleted, and left alone",
            Small::SmallFolios => "its page cache is in small folios",
            Small::MappedSmall => "its page cache is in huge folios, which are mapped by small pages",
        })
    }
}

/// What a lift would put on huge pages.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Gain {
    /// Bytes of parts.
    pub bytes: u64,
    /// The huge pages for them.
    pub page_bytes: u64,
}

/// One object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ObjectReport {
    /// As in `/proc/PID/maps`.
    pub path: Untrusted,
    /// GNU build-id in hexadecimal.
    pub build_id: Option<String>,
    /// Its parts, by address.
    pub parts: Vec<PartReport>,
    /// It is the program itself, not a shared object or the loader.
    pub executable: bool,
    /// What loading added to the stated addresses.
    #[serde(skip)]
    pub bias: u64,
    /// Bytes of its text and read-only data that are on huge pages in the page cache now; set by
    /// [`Report::set_page_cache`] for a program that does not run.
    pub page_cache_bytes: Option<u64>,
}

/// One uninterrupted stretch of one part.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PartReport {
    /// What it holds.
    pub part: Part,
    /// Address of its first byte.
    pub start: u64,
    /// Its length.
    pub bytes: u64,
    /// Bytes of the whole huge pages in it, and the bytes that outer spans add.
    pub liftable_bytes: u64,
    /// Bytes that huge pages map now, by smaps.
    pub huge_bytes: u64,
    /// Where most of those come from.
    pub backing: Option<Backing>,
    /// The bytes that are not huge, by reason.
    pub skips: Vec<SkipReport>,
    /// The first address behind it.
    pub end: u64,
    /// Where the huge bytes are, mapping by mapping: smaps says no more.
    #[serde(skip)]
    pub fragments: Vec<Fragment>,
    /// Where the skips are: stretches without gap or overlap, by address.
    #[serde(skip)]
    pub stretches: Vec<Stretch>,
}

/// A stretch of a part that the plan treats in one way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// Its addresses.
    pub range: Range,
    /// Bytes of it that are huge.
    pub huge: u64,
    /// Why the others are not: index into [`PartReport::skips`]. `None` if all are huge.
    pub skip: Option<usize>,
}

/// Bytes that are not huge, for one reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SkipReport {
    /// [`Reason::key`].
    pub reason: &'static str,
    /// Number of bytes.
    pub bytes: u64,
    /// What the user can do about it.
    pub hint: Option<String>,
    /// The reason in words, with the values seen.
    pub detail: String,
    /// The reason itself.
    #[serde(skip)]
    pub why: Reason,
}

/// Sums of one part over all objects.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Total {
    /// All bytes.
    pub bytes: u64,
    /// Bytes that huge pages could map.
    pub liftable_bytes: u64,
    /// Bytes that huge pages map.
    pub huge_bytes: u64,
}
