// SPDX-License-Identifier: Apache-2.0
//! In folios of which sizes the memory of a process lies, part by part.

use hugelift_core::addr::Range;
use hugelift_core::folios::Folios;
use hugelift_core::report::{FolioSizes, is_data};
use hugelift_core::snapshot::Part;
use hugelift_linux::proc::folios::Reader;
use hugelift_linux::proc::snapshot;

/// Reads the sizes; `None` without root, or if the process cannot be read.
pub(super) fn folios(pid: u32) -> Option<FolioSizes> {
    let mut reader = Reader::open(pid).ok()?;
    let snapshot = snapshot::live(Some(pid), 0).ok()?;
    let mut extents = snapshot.extents();
    extents.extend(snapshot.anonymous(&extents));
    let mut all: Vec<(String, Range)> = extents.iter().map(|e| (e.part.to_string(), e.range)).collect();
    all.extend(snapshot.shared_memory().map(|m| (Part::Shm.to_string(), m.range)));
    let is_data = is_data(&snapshot);
    let files =
        snapshot.mappings.iter().filter(|mapping| is_data(mapping) && !mapping.is_anonymous_hugetlb());
    all.extend(files.map(|mapping| ("file".into(), mapping.range)));
    let mut sizes = FolioSizes::default();
    for (name, range) in all {
        // It may have ended meanwhile.
        reader.add(range, sizes.parts.entry(name).or_insert_with(Folios::default)).ok()?;
    }
    sizes.parts.retain(|_, folios| !folios.bytes.is_empty());
    (sizes.whole, sizes.base_page) = (reader.is_whole(), snapshot.machine.base_page.bytes());
    Some(sizes)
}
