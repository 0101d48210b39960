// SPDX-License-Identifier: Apache-2.0
//! The sizes of the folios that hold the memory of a process, part by part.

use hugelift_core::addr::{Addr, Range};
use hugelift_core::folios::Folios;
use hugelift_core::report::{FolioSizes, is_data};
use hugelift_core::snapshot::Part;
use hugelift_linux::proc::folios::Reader;
use hugelift_linux::proc::snapshot;
use std::collections::BTreeMap;

/// The folios of a process.
pub(super) struct OfProcess {
    /// Their sizes.
    pub sizes: FolioSizes,
    /// How many bytes it maps that are in huge folios, of each mapping of a data file by its start.
    pub in_huge_folios: BTreeMap<Addr, u64>,
    /// All of these were read.
    pub files_were_read: bool,
}

/// Reads them; `None` without root, or if the process cannot be read.
pub(super) fn read(pid: u32) -> Option<OfProcess> {
    let mut reader = Reader::open(pid).ok()?;
    let snapshot = snapshot::live(Some(pid), 0).ok()?;
    let huge = snapshot.machine.thp_page?;
    let mut extents = snapshot.extents();
    extents.extend(snapshot.anonymous(&extents));
    let mut all: Vec<(String, Range)> = extents.iter().map(|e| (e.part.to_string(), e.range)).collect();
    all.extend(snapshot.shared_memory().map(|m| (Part::Shm.to_string(), m.range)));
    let mut sizes = FolioSizes::default();
    // Files come first: what is not read in its time is unknown of the others.
    let is_data = is_data(&snapshot);
    let mut in_huge_folios = BTreeMap::new();
    for mapping in snapshot.mappings.iter().filter(|m| is_data(m) && !m.is_anonymous_hugetlb()) {
        let mut folios = Folios::default();
        // It may have ended meanwhile.
        reader.add(mapping.range, &mut folios).ok()?;
        let bytes = folios.bytes.range(huge.bytes()..).map(|(_, bytes)| bytes).sum();
        in_huge_folios.insert(mapping.range.start, bytes);
        sizes.parts.entry("file".into()).or_default().merge(&folios);
    }
    let files_were_read = reader.is_whole();
    for (name, range) in all {
        reader.add(range, sizes.parts.entry(name).or_default()).ok()?;
    }
    sizes.parts.retain(|_, folios| !folios.bytes.is_empty());
    (sizes.whole, sizes.base_page) = (reader.is_whole(), snapshot.machine.base_page.bytes());
    Some(OfProcess { sizes, in_huge_folios, files_were_read })
}
