// SPDX-License-Identifier: Apache-2.0
//! A report for the tests of what shows reports.

use super::data::{ObjectReport, PartReport, Report, SkipReport, Stretch};
use crate::addr::{Addr, PageSize, Range};
use crate::skip::Reason;
use crate::snapshot::Part;
use std::collections::BTreeMap;

/// Returns a report on one object with these ranges of text, of which nothing is huge.
pub fn report(parts: &[(u64, u64)], page_size: u64) -> Report {
    let part = |&(start, end): &(u64, u64)| PartReport {
        part: Part::Text,
        start,
        bytes: end - start,
        liftable_bytes: end - start,
        huge_bytes: 0,
        backing: None,
        skips: vec![SkipReport {
            reason: Reason::NotLifted.key(),
            bytes: end - start,
            hint: None,
            detail: "<of any length>".into(),
            why: Reason::NotLifted,
        }],
        end,
        fragments: vec![],
        stretches: vec![Stretch {
            range: Range { start: Addr(start), end: Addr(end) },
            huge: 0,
            skip: Some(0),
        }],
    };
    let parts = parts.iter().map(part).collect();
    let path = "/bin/<x>".to_string();
    Report {
        version: super::data::VERSION,
        objects: vec![ObjectReport {
            path: path.into(),
            build_id: None,
            parts,
            executable: true,
            bias: 0,
            page_cache_bytes: None,
        }],
        totals: BTreeMap::new(),
        pid: Some(7),
        assumed_addresses: false,
        page_size,
        usual_page: PageSize::MB2,
        spans: Default::default(),
        tlb_entries: Default::default(),
        anonymous: None,
        jit: None,
        shm: None,
        folios: None,
        unused: None,
        data_files: None,
        heat: None,
        data: None,
        code_on_nodes: None,
    }
}
