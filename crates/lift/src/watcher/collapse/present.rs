// SPDX-License-Identifier: Apache-2.0
//! Which base pages of the memory of a process are present, and what is huge already.
//!
//! The pagemap of the process says that of its own memory. Shared memory has the pages that its file has: other processes may
//! have touched more of it, or have it on huge pages that this process has not mapped yet. The file shows that, if it may be
//! opened (CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE); else the pagemap shows what this process has touched.

use crate::watcher::process::Program;
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::collapse::{Area, Block, Pages, Sharing};
use hugelift_core::shared_memory::SharedFile;
use hugelift_core::snapshot::Snapshot;
use hugelift_linux::io::holes::data;
use hugelift_linux::machine::base_page;
use hugelift_linux::proc::mapped::MappedFiles;
use hugelift_linux::proc::pagemap;
use hugelift_linux::proc::procfs::Process;
use hugelift_pages::pagecache::{huge_stretches, in_memory};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;

/// Offsets in a file.
type Stretch = std::ops::Range<u64>;

/// A file may have more stretches of data; the others count as absent.
const MAX_STRETCHES: usize = 1 << 20;

/// Shows which pages of a process are present.
pub(super) struct Present<'a> {
    program: &'a Program,
    page: PageSize,
    /// The kernel shows which blocks are huge (`PAGEMAP_SCAN`, Linux 6.7).
    pub(super) scans: bool,
    /// The shared memory that the process maps, by address.
    shared: BTreeMap<Addr, Shared>,
}

/// A mapping of shared memory.
struct Shared {
    range: Range,
    offset: u64,
    id: SharedFile,
    file: Option<File>,
}

impl<'a> Present<'a> {
    /// Opens the files of the shared memory among `areas`, which are of the process that `snapshot` shows.
    pub(super) fn new(
        program: &'a Program,
        snapshot: &Snapshot,
        areas: &[Area],
        page: PageSize,
        scans: bool,
    ) -> Present<'a> {
        let files = MappedFiles::of(Process::new(program.pid));
        let shared = |area: &Area| {
            let Sharing::Memory(offset) = area.sharing else { return None };
            let mapping = snapshot.mapping_at(area.range.start)?;
            let file = files.find(mapping).and_then(|found| found.open()).ok();
            Some((area.range.start, Shared { range: area.range, offset, id: SharedFile::of(mapping), file }))
        };
        let wanted = areas.iter().filter(|area| area.refusal(page).is_none());
        Present { program, page, scans, shared: wanted.filter_map(shared).collect() }
    }

    /// Returns the shared memory that a block lies in.
    fn shared(&self, block: Range) -> Option<&Shared> {
        self.shared.range(..=block.start).next_back().map(|(_, s)| s).filter(|s| s.range.covers(block))
    }

    /// Returns the file of a block of shared memory; `None` for other memory.
    pub(super) fn file(&self, block: Range) -> Option<SharedFile> {
        self.shared(block).map(|shared| shared.id)
    }

    /// Returns the base pages of a block; `None` if the process no longer has this memory.
    pub(super) fn pages(&self, block: Range) -> Option<Pages> {
        // To find the end of data, the kernel would walk through all that follows the block.
        self.pages_with(block, |shared, file| {
            let offsets = shared.offsets(block);
            in_memory(file, Range { start: Addr(offsets.start), end: Addr(offsets.end) })
        })
    }

    /// Returns the base pages of a block; `in_file` returns how many bytes of it a file has.
    fn pages_with(&self, block: Range, in_file: impl Fn(&Shared, &File) -> Option<u64>) -> Option<Pages> {
        let base = base_page().bytes();
        let entries = pagemap::entries(&self.program.pagemap, block).ok()?;
        let pages = match self.shared(block) {
            None => Pages::of(&entries),
            Some(shared) => {
                let bytes = shared.file.as_ref().and_then(|file| in_file(shared, file));
                Pages::of_shared(&entries, bytes.map(|bytes| bytes.div_ceil(base)))
            }
        };
        (pages.all * base == block.len()).then_some(pages)
    }

    /// Adds the blocks of `inner` that have pages. Memory that the process maps at several addresses is in one block: `seen`
    /// has the files and offsets of those before.
    pub(super) fn blocks(
        &self,
        inner: Range,
        seen: &mut BTreeSet<(SharedFile, u64)>,
        blocks: &mut Vec<Block>,
    ) -> io::Result<()> {
        let (mut huge, mut present) = (BTreeSet::new(), BTreeSet::new());
        let pagemap = &self.program.pagemap;
        let starts_in = |r: Range| (r.start.0..r.end.0).step_by(self.page.bytes() as usize).map(Addr);
        if self.scans {
            let found = &mut |r: Range| huge.extend(r.inner(self.page).into_iter().flat_map(starts_in));
            pagemap::huge_stretches(pagemap, inner, false, found)?;
            let found = &mut |r: Range| {
                present.extend(starts_in(Range { start: r.start.align_down(self.page), ..r }));
            };
            pagemap::present_stretches(pagemap, inner, found)?;
        } else {
            present.extend(starts_in(inner));
        }
        let shared = self.shared(inner);
        let mut stretches = Vec::new();
        if let Some((shared, file)) = shared.and_then(|shared| Some((shared, shared.file.as_ref()?))) {
            let offsets = shared.offsets(inner);
            let all = Range { start: Addr(offsets.start), end: Addr(offsets.end) };
            let found = huge_stretches(file, all, self.page);
            huge.extend(found.iter().filter_map(|r| shared.address(*r)).flat_map(starts_in));
            present.extend(&huge);
            // Only what is not huge may have holes.
            let mut at = offsets.start;
            for next in found.iter().chain([&Range { start: all.end, end: all.end }]) {
                let rest = MAX_STRETCHES.saturating_sub(stretches.len());
                stretches.extend(data(file, at..next.start.0).take(rest));
                at = next.end.0;
            }
            for found in stretches.iter().filter_map(|data| Range::new(Addr(data.start), Addr(data.end))) {
                let here = shared.address(found).unwrap_or_default();
                present.extend(starts_in(Range { start: here.start.align_down(self.page), ..here }));
            }
        }
        for start in present {
            let range = Range::sized(start, self.page.bytes()).unwrap_or_default();
            if shared.is_some_and(|shared| !seen.insert((shared.id, shared.offsets(range).start))) {
                continue;
            }
            let huge = huge.contains(&start);
            let pages = if huge {
                Some(Pages::default())
            } else {
                self.pages_with(range, |shared, _| Some(overlap(&stretches, &shared.offsets(range))))
            };
            let Some(pages) = pages else { return Err(io::Error::from_raw_os_error(libc::ESRCH)) };
            blocks.push(Block { start, huge, pages, heat: None });
        }
        Ok(())
    }
}

impl Shared {
    /// Returns the offsets in the file of a part of the mapping.
    fn offsets(&self, part: Range) -> Stretch {
        let start = self.offset.saturating_add(part.start.0.saturating_sub(self.range.start.0));
        start..start.saturating_add(part.len())
    }

    /// Returns where the mapping has these offsets of the file.
    fn address(&self, offsets: Range) -> Option<Range> {
        let start = self.range.start.0.checked_add(offsets.start.0.checked_sub(self.offset)?)?;
        Range::sized(Addr(start), offsets.len())
    }
}

/// Returns how many bytes of `offsets` are in the stretches, which are in order.
fn overlap(stretches: &[Stretch], offsets: &Stretch) -> u64 {
    let from = stretches.partition_point(|stretch| stretch.end <= offsets.start);
    let over = stretches[from..].iter().take_while(|stretch| stretch.start < offsets.end);
    over.map(|stretch| stretch.end.min(offsets.end) - stretch.start.max(offsets.start)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_summed_for_each_block() {
        let stretches = [0..3, 5..6, 9..20];
        let of = |offsets: Stretch| overlap(&stretches, &offsets);
        assert_eq!((of(0..4), of(2..10), of(6..9), of(10..15), of(19..40)), (3, 3, 0, 5, 1));
        assert_eq!(overlap(&[], &(0..9)), 0);
    }
}
