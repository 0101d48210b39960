// SPDX-License-Identifier: Apache-2.0
//! A line of `hugelift attach --watch --json`: what became of a process.

use hugelift_core::policy::Backing;
use hugelift_core::snapshot::Part;
use serde::Deserialize;
use std::collections::BTreeMap;

/// What became of a process.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Line {
    /// The process.
    pub pid: u32,
    /// Why it was not changed.
    pub error: Option<String>,
    /// What is huge, or what was given back, a line each.
    #[serde(default)]
    pub lines: Vec<String>,
    /// What smaps shows afterwards.
    pub report: Option<Report>,
}

/// What smaps shows of a process.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
pub struct Report {
    /// Its program and shared objects.
    #[serde(default)]
    pub objects: Vec<Object>,
}

/// A program or a shared object.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Object {
    /// Its parts.
    pub parts: Vec<Piece>,
}

/// A stretch of a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub struct Piece {
    /// What it holds.
    pub part: Part,
    /// Bytes on huge pages.
    pub huge_bytes: u64,
    /// Where they come from.
    pub backing: Option<Backing>,
}

/// Bytes on huge pages, by what they hold and where they come from.
pub type Huge = BTreeMap<(Part, Backing), u64>;

impl Line {
    /// Returns the bytes of objects on huge pages.
    pub fn huge(&self) -> Huge {
        let mut huge = Huge::new();
        let objects = self.report.iter().flat_map(|report| &report.objects);
        for piece in objects.flat_map(|object| &object.parts).filter(|piece| piece.huge_bytes > 0) {
            let backing = piece.backing.unwrap_or(Backing::Thp);
            let sum = huge.entry((piece.part, backing)).or_default();
            *sum = sum.saturating_add(piece.huge_bytes);
        }
        huge
    }
}

/// Parses a line; `None` if it is none.
pub fn parse(line: &[u8]) -> Option<Line> {
    serde_json::from_slice(line).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_33_2_what_became_of_a_process_is_read() {
        let line = br#"{"version":1,"pid":7,"error":null,"lines":["text 2 MB"],"took_ms":1.5,
            "report":{"version":1,"objects":[{"path":"/a","parts":[
            {"part":"text","bytes":9,"huge_bytes":2097152,"backing":"shared"},
            {"part":"text","bytes":9,"huge_bytes":2097152,"backing":"shared"},
            {"part":"data","bytes":1,"huge_bytes":0,"backing":null}]}]}}"#;
        let line = parse(line).expect("a line");
        assert_eq!((line.pid, &line.error, line.lines.len()), (7, &None, 1));
        assert_eq!(line.huge(), Huge::from([((Part::Text, Backing::Shared), 4 << 20)]));
        let refused = parse(br#"{"version":1,"pid":7,"error":"no"}"#).expect("a line");
        assert_eq!((refused.error.as_deref(), refused.huge().len()), (Some("no"), 0));
        for bad in [&b""[..], b"{", b"[]", b"{\"pid\":-1,\"error\":null}", b"\xff"] {
            assert_eq!(parse(bad), None);
        }
    }
}
