// SPDX-License-Identifier: Apache-2.0
//! In folios of which sizes the memory of a process lies, part by part.

use hugelift_core::addr::{PageSize, Range};
use hugelift_core::folios::Folios;
use hugelift_core::maps::FileId;
use hugelift_core::report::{FolioSizes, is_data};
use hugelift_core::snapshot::Part;
use hugelift_linux::proc::folios::Reader;
use hugelift_linux::proc::snapshot;
use std::collections::BTreeMap;

/// The folios of a process.
pub(super) struct OfProcess {
    /// Their sizes.
    pub sizes: FolioSizes,
    /// How many bytes of each data file it maps that are in huge folios.
    pub in_huge_folios: BTreeMap<FileId, u64>,
    /// The size of a huge page.
    pub huge: PageSize,
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
    for (name, range) in all {
        // It may have ended meanwhile.
        reader.add(range, sizes.parts.entry(name).or_default()).ok()?;
    }
    let mut files: BTreeMap<FileId, Folios> = BTreeMap::new();
    let is_data = is_data(&snapshot);
    for mapping in snapshot.mappings.iter().filter(|m| is_data(m) && !m.is_anonymous_hugetlb()) {
        reader.add(mapping.range, files.entry(mapping.file).or_default()).ok()?;
    }
    for folios in files.values() {
        sizes.parts.entry("file".into()).or_default().merge(folios);
    }
    sizes.parts.retain(|_, folios| !folios.bytes.is_empty());
    (sizes.whole, sizes.base_page) = (reader.is_whole(), snapshot.machine.base_page.bytes());
    let in_huge = |folios: &Folios| folios.bytes.range(huge.bytes()..).map(|(_, bytes)| bytes).sum();
    let in_huge_folios = files.iter().map(|(file, folios)| (*file, in_huge(folios))).collect();
    Some(OfProcess { sizes, in_huge_folios, huge })
}
