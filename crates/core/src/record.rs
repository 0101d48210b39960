// SPDX-License-Identifier: Apache-2.0
//! The record that the store writes of an entry: which file it was copied from, and which file holds it.
//!
//! ```text
//!   record  1f-2a3b.json  --- source: /usr/lib/libLLVM.so, inode, size, times
//!                         '-- entry:  9c1d…04 (a hash of the bytes), inode, size, change time
//!   entry   9c1d…04       | head, hole to the next huge page | span | span | tail |
//! ```
//!
//! A record is valid while both files are still as it describes them.

use crate::addr::{Addr, PageSize, Range};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Version of the format. Records of other versions are ignored: the next start writes a new one.
pub const VERSION: u32 = 3;

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

/// One entry of the store, and the file that it was copied from.
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
    /// Every user may read the object, and so the entry and this record.
    pub public: bool,
    /// Name of the entry's file: a hash of its contents, with a secret of the store if the
    /// object is not public.
    pub entry: String,
    /// The entry's file.
    pub held: Identity,
    /// Size of its huge pages, in bytes.
    pub page: u64,
    /// The object's bias modulo `page`, which decides where its huge pages begin.
    pub skew: u64,
    /// The spans that it holds, by offset.
    pub spans: Vec<StoredSpan>,
    /// Number of bytes at its start and behind the spans that name the functions in it
    /// ([`crate::entry_elf`]).
    pub names: (u64, u64),
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
    /// Reads what [`Record::to_json`] wrote. An accepted record has no contradictions: its spans are
    /// whole huge pages of the entry, in order and without overlap.
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
        if !is_entry(&self.entry) {
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
            let start = span.vaddr.wrapping_add(self.skew);
            let whole = [start, span.bytes, span.offset].iter().all(|n| n % page.bytes() == 0);
            if !whole || span.bytes == 0 || span.vaddr.checked_add(span.bytes).is_none() {
                return Err("a span is not of whole pages");
            }
            if span.offset < free {
                return Err("a span overlaps another");
            }
            free = end;
        }
        if free.checked_add(self.names.1) != Some(self.held.bytes) {
            return Err("spans and names do not end with the entry");
        }
        Ok(())
    }

    /// Returns the offset in the entry of `range` of an object that is loaded with `bias`.
    pub fn offset_of(&self, range: Range, bias: u64) -> Option<u64> {
        if bias % self.page != self.skew {
            return None;
        }
        let stated = Range::sized(Addr(range.start.0.wrapping_sub(bias)), range.len())?;
        let holds = |s: &&StoredSpan| Range::sized(Addr(s.vaddr), s.bytes).is_some_and(|r| r.covers(stated));
        let span = self.spans.iter().find(holds)?;
        Some(span.offset + (stated.start.0 - span.vaddr))
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

/// Returns whether `name` is one that [`record_name`] returns.
pub fn is_record(name: &str) -> bool {
    inode_of(name).is_some()
}

/// Returns the inode in a name that [`record_name`] has returned; `None` for any other name.
pub fn inode_of(name: &str) -> Option<u64> {
    let number = |s: &str| {
        let is_number = !s.is_empty() && s.len() <= 16 && s.bytes().all(|b| b.is_ascii_hexdigit());
        is_number.then(|| u64::from_str_radix(s, 16).ok()).flatten()
    };
    let (device, inode) = name.strip_suffix(".json")?.split_once('-')?;
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
            entry: "ab".repeat(32),
            held: id,
            page: MB2,
            skew: 0,
            spans: vec![
                StoredSpan { vaddr: 0, bytes: MB2, offset: MB2 },
                StoredSpan { vaddr: 3 * MB2, bytes: MB2, offset: 2 * MB2 },
            ],
            names: (MB2, 9),
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

    /// Version 2 recorded neither the evidence nor whether an entry is public.
    #[test]
    fn records_of_earlier_versions_are_ignored() {
        let text = String::from_utf8(record().to_json().unwrap()).unwrap();
        let old = text.replace(r#""version":3"#, r#""version":2"#);
        assert_ne!(old, text);
        assert_eq!(Record::parse(old.as_bytes()).unwrap_err(), RecordError::Version(2));
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
        assert!(is_record(&record_name(0xfe00, u64::MAX)) && is_entry(&record().entry));
        for name in ["", "-.json", "1-2", "1-2.json.new", "x-1.json", "../1-2.json"] {
            assert!(!is_record(name) && !is_entry(name), "{name}");
        }
        assert_eq!(inode_of(&record_name(0xfe00, 0x1234)), Some(0x1234));
        assert_eq!(inode_of("0-00000000000000001.json"), None);
    }

    #[test]
    fn contradictions_are_refused() {
        let refused = |change: fn(&mut Record)| {
            let mut bad = record();
            change(&mut bad);
            Record::parse(&bad.to_json().unwrap()).unwrap_err()
        };
        assert_eq!(refused(|r| r.version = 9), RecordError::Version(9));
        let changes: [fn(&mut Record); 13] = [
            |r| r.skew = 4096,
            |r| r.page = 3,
            |r| r.entry = "../../etc/passwd".into(),
            |r| r.entry.push('0'),
            |r| r.spans.clear(),
            |r| r.spans[0].offset = 0,
            |r| r.spans[1].offset = MB2,
            |r| r.spans[0].bytes = 4096,
            |r| r.spans[1].vaddr = !(MB2 - 1),
            |r| r.spans[1].bytes = !(MB2 - 1),
            |r| r.held.bytes += 1,
            |r| r.names.0 += 1,
            |r| r.names.1 = u64::MAX,
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
        assert_eq!(record.offset_of(range(0, MB2), bias), Some(MB2));
        assert_eq!(record.offset_of(range(3 * MB2 + 4096, 4 * MB2), bias), Some(2 * MB2 + 4096));
        assert_eq!(record.offset_of(range(0, 2 * MB2), bias), None);
        assert_eq!(record.offset_of(range(0, MB2), 0), None);
        assert_eq!(record.offset_of(range(0, MB2), bias + 4096), None);
        let laid = lay_out(&[range(0, MB2), range(3 * MB2, 4 * MB2)], bias, PageSize::MB2);
        assert_eq!(laid, record.spans);
        assert_eq!(record.bytes(), 2 * MB2);
    }
}
