// SPDX-License-Identifier: Apache-2.0
//! The record that the store writes of an object: which file it was copied from, and which entries hold the copies.
//!
//! ```text
//!   record  1f-2a3b.json  --- source:  /usr/lib/libLLVM.so, inode, size, times
//!                         |-- entry:   9c1d…04 (a hash of the bytes), inode, size, change time
//!                         '-- entry:   03e7…a1
//!   entry   9c1d…04       | head, hole to the next huge page | span | span | tail |
//! ```
//!
//! An entry holds what was asked for when it was made: all of an object, or the code that a process was seen to use. What
//! another process needs besides comes into a further entry, and no span is in two. A record is valid while all its
//! files are still as it describes them.

use crate::addr::{Addr, PageSize, Range};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Version of the format. Records of other versions are ignored: the next start writes a new one.
pub const VERSION: u32 = 4;

/// The most entries of an object. Each is opened at each start.
pub const MOST_ENTRIES: usize = 16;

/// A time of a file: seconds and nanoseconds since the epoch.
pub type Time = (i64, i64);

/// A file as it was when the record was made (stat(2)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// Device, as st_dev.
    pub device: u64,
    /// Inode.
    pub inode: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Last change of its contents (mtime).
    pub modified: Time,
    /// Last change of contents or metadata (ctime), which no user can set.
    pub changed: Time,
}

/// Bytes of the object that the entry holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StoredSpan {
    /// Their address as stated in the object.
    pub vaddr: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Their offset in the entry.
    pub offset: u64,
}

/// How a start knows that the object's file still has the bytes that the entry was copied from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// By its times: any change after the copy is certain to change them.
    Times,
    /// Only by comparing all its bytes.
    Bytes,
}

/// A file of the store that holds bytes of an object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EntryFile {
    /// Its name: a hash of its contents, with a secret of the store if the object is not public.
    pub name: String,
    /// The file as it is.
    pub file: Identity,
    /// The spans that it holds, by offset.
    pub spans: Vec<StoredSpan>,
    /// Number of bytes at its start and behind the spans that name the functions in it
    /// ([`crate::entry_elf`]).
    pub names: (u64, u64),
}

/// Bytes of a process that an entry holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// The bytes in the process.
    pub range: Range,
    /// Which entry: an index into [`Record::entries`].
    pub entry: usize,
    /// Their offset in its file.
    pub offset: u64,
}

/// What the store has of an object, and the file that it was copied from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// [`VERSION`].
    pub version: u32,
    /// The object's path, as in `/proc/PID/maps`.
    #[serde(with = "crate::path_json")]
    pub path: PathBuf,
    /// Its GNU build-id in hexadecimal, if it has one.
    pub build_id: Option<String>,
    /// The object's file.
    pub source: Identity,
    /// What a start must compare, besides [`Record::source`], to know that the file is unchanged.
    pub evidence: Evidence,
    /// Every user may read the object, and so the entries and this record.
    pub public: bool,
    /// Size of the entries' huge pages, in bytes.
    pub page: u64,
    /// The object's bias modulo `page`, which decides where its huge pages begin.
    pub skew: u64,
    /// The memory node on which the entries lie, if they are for the processes of one node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    /// The entries, the oldest first.
    pub entries: Vec<EntryFile>,
}

/// Why bytes are not a valid record.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecordError {
    /// Not the JSON that the store writes.
    #[error("not a record: {0}")]
    Form(String),
    /// Another version of hugelift wrote it.
    #[error("a record of version {0}, this is version {VERSION}")]
    Version(u32),
    /// Its fields contradict each other.
    #[error("a record that contradicts itself: {0}")]
    Contradiction(&'static str),
}

impl Record {
    /// Reads what [`Record::to_json`] wrote. An accepted record has no contradictions: the spans of an
    /// entry are whole huge pages of it, in order and without overlap, and none is in two entries.
    ///
    /// # Errors
    /// Returns a [`RecordError`] if it is not a valid record.
    pub fn parse(json: &[u8]) -> Result<Record, RecordError> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let form = |e: serde_json::Error| RecordError::Form(e.to_string());
        let Version { version } = serde_json::from_slice(json).map_err(form)?;
        if version != VERSION {
            return Err(RecordError::Version(version));
        }
        let record: Record = serde_json::from_slice(json).map_err(form)?;
        record.check().map_err(RecordError::Contradiction)?;
        Ok(record)
    }

    /// Returns the record as JSON.
    ///
    /// # Errors
    /// Returns [`RecordError::Form`] if a field has no form in JSON; all have one.
    pub fn to_json(&self) -> Result<Vec<u8>, RecordError> {
        serde_json::to_vec(self).map_err(|e| RecordError::Form(e.to_string()))
    }

    fn check(&self) -> Result<(), &'static str> {
        let page = PageSize::new(self.page).ok_or("the page size is invalid")?;
        if self.entries.is_empty() || self.entries.len() > MOST_ENTRIES {
            return Err("no entry, or too many");
        }
        self.entries.iter().try_for_each(|entry| entry.check(page, self.skew))?;
        let spans = self.entries.iter().flat_map(|entry| &entry.spans);
        let mut held: Vec<(u64, u64)> = spans.map(|span| (span.vaddr, span.vaddr + span.bytes)).collect();
        held.sort_unstable();
        if held.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            return Err("two spans hold the same bytes");
        }
        Ok(())
    }

    /// Returns the parts of `range`, of an object that is loaded with `bias`, that the entries hold, by address.
    pub fn held(&self, range: Range, bias: u64) -> Vec<Held> {
        let mut held = Vec::new();
        for (entry, file) in self.entries.iter().enumerate() {
            for span in &file.spans {
                let loaded = Range::sized(Addr(span.vaddr.wrapping_add(bias)), span.bytes);
                let part = loaded.and_then(|loaded| Some((loaded, loaded.intersect(range)?)));
                held.extend(part.map(|(loaded, range)| {
                    let offset = span.offset + (range.start.0 - loaded.start.0);
                    Held { range, entry, offset }
                }));
            }
        }
        held.sort_unstable_by_key(|held| held.range);
        held
    }

    /// Returns the number of bytes of the object that it holds.
    pub fn bytes(&self) -> u64 {
        self.entries.iter().map(EntryFile::bytes).sum()
    }
}

impl EntryFile {
    fn check(&self, page: PageSize, skew: u64) -> Result<(), &'static str> {
        if !is_entry(&self.name) {
            return Err("the entry's name is invalid");
        }
        if self.spans.is_empty() {
            return Err("no span");
        }
        // The first page is not mapped, so that no mapping of an entry looks like a program's first.
        let mut free = page.bytes();
        if self.names.0 > free {
            return Err("the names overlap a span");
        }
        for span in &self.spans {
            let end = span.offset.checked_add(span.bytes).ok_or("a span ends beyond 2^64")?;
            let start = span.vaddr.wrapping_add(skew);
            let whole = [start, span.bytes, span.offset].iter().all(|n| n % page.bytes() == 0);
            if !whole || span.bytes == 0 || span.vaddr.checked_add(span.bytes).is_none() {
                return Err("a span is not of whole pages");
            }
            if span.offset < free {
                return Err("a span overlaps another");
            }
            free = end;
        }
        if free.checked_add(self.names.1) != Some(self.file.bytes) {
            return Err("spans and names do not end with the entry");
        }
        Ok(())
    }

    /// Returns the number of bytes of the object that it holds.
    pub fn bytes(&self) -> u64 {
        self.spans.iter().map(|s| s.bytes).sum()
    }
}

/// Lays out `ranges` of an object that is loaded with `bias` one behind the other in an entry.
pub fn lay_out(ranges: &[Range], bias: u64, page: PageSize) -> Vec<StoredSpan> {
    let mut offset = page.bytes();
    let lay = |range: &Range| {
        let span = StoredSpan { vaddr: range.start.0.wrapping_sub(bias), bytes: range.len(), offset };
        offset += span.bytes;
        span
    };
    ranges.iter().map(lay).collect()
}

/// Returns whether `name` can be an entry's: 64 hexadecimal digits, a BLAKE3 hash.
pub fn is_entry(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns the name of the record for a file. It stays the same when the file is changed, so that the
/// new record replaces the old.
pub fn record_name(device: u64, inode: u64) -> String {
    format!("{device:x}-{inode:x}.json")
}

/// Returns the name of the record of the entries on one memory node. Without a node [`record_name`] gives the name.
pub fn record_name_on(device: u64, inode: u64, node: Option<u32>) -> String {
    match node {
        Some(node) => format!("{device:x}-{inode:x}@node{node}.json"),
        None => record_name(device, inode),
    }
}

/// Returns whether `name` is one that [`record_name_on`] returns.
pub fn is_record(name: &str) -> bool {
    inode_of(name).is_some()
}

/// Returns the inode in a name that [`record_name_on`] has returned; `None` for any other name.
pub fn inode_of(name: &str) -> Option<u64> {
    let number = |s: &str| {
        let is_number = !s.is_empty() && s.len() <= 16 && s.bytes().all(|b| b.is_ascii_hexdigit());
        is_number.then(|| u64::from_str_radix(s, 16).ok()).flatten()
    };
    let (device, inode) = name.strip_suffix(".json")?.split_once('-')?;
    let (inode, node) = inode.split_once("@node").unwrap_or((inode, "0"));
    node.parse::<u32>().ok().filter(|number| number.to_string() == node)?;
    number(device)?;
    number(inode)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB2: u64 = 2 << 20;

    fn record() -> Record {
        let id = Identity { device: 1, inode: 2, bytes: 3 * MB2 + 9, modified: (4, 5), changed: (6, 7) };
        Record {
            version: VERSION,
            path: "/lib/x.so".into(),
            build_id: Some("00ff".into()),
            source: id,
            evidence: Evidence::Times,
            public: true,
            page: MB2,
            skew: 0,
            node: None,
            entries: vec![
                EntryFile {
                    name: "ab".repeat(32),
                    file: id,
                    spans: vec![
                        StoredSpan { vaddr: 0, bytes: MB2, offset: MB2 },
                        StoredSpan { vaddr: 3 * MB2, bytes: MB2, offset: 2 * MB2 },
                    ],
                    names: (MB2, 9),
                },
                EntryFile {
                    name: "cd".repeat(32),
                    file: Identity { bytes: 2 * MB2, ..id },
                    spans: vec![StoredSpan { vaddr: MB2, bytes: MB2, offset: MB2 }],
                    names: (0, 0),
                },
            ],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let record = record();
        let json = record.to_json().unwrap();
        assert_eq!(Record::parse(&json).unwrap(), record);
        let text = String::from_utf8(json.clone()).unwrap();
        assert!(text.contains(r#""evidence":"times","public":true"#), "{text}");
        for cut in 0..json.len() {
            assert!(matches!(Record::parse(&json[..cut]), Err(RecordError::Form(_))), "{cut}");
        }
    }

    /// Version 2 recorded neither the evidence nor whether an entry is public, version 3 a single entry.
    #[test]
    fn records_of_earlier_versions_are_ignored() {
        let text = String::from_utf8(record().to_json().unwrap()).unwrap();
        let old = text.replace(r#""version":4"#, r#""version":3"#);
        assert_ne!(old, text);
        assert_eq!(Record::parse(old.as_bytes()).unwrap_err(), RecordError::Version(3));
        for field in [r#""evidence":"times","#, r#""public":true,"#] {
            let without = text.replace(field, "");
            assert_ne!(without, text);
            assert!(matches!(Record::parse(without.as_bytes()), Err(RecordError::Form(_))), "{field}");
        }
        let other = text.replace(r#""times""#, r#""times, I think""#);
        assert!(matches!(Record::parse(other.as_bytes()), Err(RecordError::Form(_))));
    }

    #[test]
    fn names() {
        assert!(is_record(&record_name(0xfe00, u64::MAX)) && is_entry(&record().entries[0].name));
        for name in ["", "-.json", "1-2", "1-2.json.new", "x-1.json", "../1-2.json"] {
            assert!(!is_record(name) && !is_entry(name), "{name}");
        }
        assert_eq!(inode_of(&record_name(0xfe00, 0x1234)), Some(0x1234));
        assert_eq!(inode_of("0-00000000000000001.json"), None);
    }

    #[test]
    fn issue_33_8_each_node_has_a_record_of_its_own() {
        assert_eq!(record_name_on(0xfe00, 0x12, Some(1)), "fe00-12@node1.json");
        assert_eq!(record_name_on(0xfe00, 0x12, None), record_name(0xfe00, 0x12));
        assert_eq!(inode_of("fe00-12@node63.json"), Some(0x12));
        for name in ["fe00-12@node.json", "fe00-12@node01.json", "fe00-12@node-1.json", "fe00-12@1.json"] {
            assert!(!is_record(name), "{name}");
        }
        // One for all nodes is written as earlier versions wrote it.
        let text = |record: &Record| String::from_utf8(record.to_json().unwrap()).unwrap();
        assert!(!text(&record()).contains(r#""node""#));
        let of_node = Record { node: Some(1), ..record() };
        assert!(text(&of_node).contains(r#""node":1"#));
        assert_eq!(Record::parse(&of_node.to_json().unwrap()).unwrap(), of_node);
    }

    #[test]
    fn contradictions_are_refused() {
        let refused = |change: fn(&mut Record)| {
            let mut bad = record();
            change(&mut bad);
            Record::parse(&bad.to_json().unwrap()).unwrap_err()
        };
        assert_eq!(refused(|r| r.version = 9), RecordError::Version(9));
        let changes: [fn(&mut Record); 17] = [
            |r| r.skew = 4096,
            |r| r.page = 3,
            |r| r.entries[0].name = "../../etc/passwd".into(),
            |r| r.entries[1].name.push('0'),
            |r| r.entries[1].spans.clear(),
            |r| r.entries[0].spans[0].offset = 0,
            |r| r.entries[0].spans[1].offset = MB2,
            |r| r.entries[0].spans[0].bytes = 4096,
            |r| r.entries[0].spans[1].vaddr = !(MB2 - 1),
            |r| r.entries[0].spans[1].bytes = !(MB2 - 1),
            |r| r.entries[0].file.bytes += 1,
            |r| r.entries[0].names.0 += 1,
            |r| r.entries[0].names.1 = u64::MAX,
            |r| r.entries[1].spans[0].vaddr = 3 * MB2,
            |r| r.entries[0].spans[1].vaddr = 0,
            |r| r.entries.clear(),
            |r| r.entries = vec![r.entries[0].clone(); MOST_ENTRIES + 1],
        ];
        for change in changes {
            assert!(matches!(refused(change), RecordError::Contradiction(_)));
        }
    }

    #[test]
    fn spans_are_found_where_the_object_was_loaded() {
        let record = record();
        let bias = 0x7f00_0000_0000;
        let range = |from: u64, to: u64| Range { start: Addr(bias + from), end: Addr(bias + to) };
        let held = |from, to, bias| {
            let held = record.held(range(from, to), bias).into_iter();
            held.map(|h| (h.range.start.0 - bias, h.range.len(), h.entry, h.offset)).collect::<Vec<_>>()
        };
        assert_eq!(held(0, MB2, bias), [(0, MB2, 0, MB2)]);
        assert_eq!(held(3 * MB2 + 4096, 5 * MB2, bias), [(3 * MB2 + 4096, MB2 - 4096, 0, 2 * MB2 + 4096)]);
        assert_eq!(held(4096, 2 * MB2, bias), [(4096, MB2 - 4096, 0, MB2 + 4096), (MB2, MB2, 1, MB2)]);
        assert_eq!(held(2 * MB2, 3 * MB2, bias), []);
        assert_eq!(record.held(range(0, MB2), 0), []);
        let laid = lay_out(&[range(0, MB2), range(3 * MB2, 4 * MB2)], bias, PageSize::MB2);
        assert_eq!(laid, record.entries[0].spans);
        assert_eq!(record.bytes(), 3 * MB2);
    }
}
