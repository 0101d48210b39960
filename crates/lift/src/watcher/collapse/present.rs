// SPDX-License-Identifier: Apache-2.0
//! Which base pages of the memory of a process are present, and what is huge already.
//!
//! The pagemap of the process says this about its own memory. Shared memory has the pages that its file has: other processes may
//! have touched more of it, or have it on huge pages that this process has not mapped yet. The file shows these pages, if it
//! may be opened (CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE); else the pagemap shows the pages that this process has touched.

use crate::watcher::process::Program;
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::collapse::{Area, Block, Pages, Sharing};
use hugelift_core::shared_memory::SharedFile;
use hugelift_core::snapshot::Snapshot;
use hugelift_linux::machine::base_page;
use hugelift_linux::proc::mapped::MappedFiles;
use hugelift_linux::proc::pagemap;
use hugelift_linux::proc::procfs::Process;
use hugelift_pages::pagecache::{Resident, in_memory};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::rc::Rc;

/// So many files are open at once, so that descriptors are left for all else. Of others the pagemap says what is present.
const FILES: usize = 64;
/// A JVM with ZGC maps its heap three times, in many pieces. A program that maps a file so often may mean harm.
const MAPPINGS: usize = 10_000;

/// Shows which pages of a process are present.
pub(super) struct Present<'a> {
    program: &'a Program,
    page: PageSize,
    /// The kernel shows which blocks are huge (`PAGEMAP_SCAN`, Linux 6.7).
    pub(super) scans: bool,
    /// The shared memory that the process maps, by address.
    shared: BTreeMap<Addr, Shared>,
    /// Files that it maps very often.
    often: BTreeSet<SharedFile>,
}

/// A mapping of shared memory.
struct Shared {
    range: Range,
    offset: u64,
    id: SharedFile,
    file: Option<Rc<File>>,
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
        let mut opened: BTreeMap<SharedFile, Option<Rc<File>>> = BTreeMap::new();
        let shared = |area: &Area| {
            let Sharing::Memory(offset) = area.sharing else { return None };
            let mapping = snapshot.mapping_at(area.range.start)?;
            let id = SharedFile::of(mapping);
            let file = match opened.get(&id) {
                Some(file) => file.clone(),
                None if opened.len() < FILES => {
                    let file = files.find(mapping).and_then(|found| found.open()).ok().map(Rc::new);
                    opened.entry(id).or_insert(file).clone()
                }
                None => None,
            };
            Some((area.range.start, Shared { range: area.range, offset, id, file }))
        };
        let wanted = areas.iter().filter(|area| area.refusal(page).is_none());
        let shared = wanted.filter_map(shared).collect();
        let mut counts: BTreeMap<SharedFile, usize> = BTreeMap::new();
        let ids = snapshot.shared_memory().map(SharedFile::of);
        ids.for_each(|id| *counts.entry(id).or_default() += 1);
        counts.retain(|_, count| *count > MAPPINGS);
        Present { program, page, scans, shared, often: counts.into_keys().collect() }
    }

    /// Returns the shared memory that a block lies in.
    fn shared(&self, block: Range) -> Option<&Shared> {
        self.shared.range(..=block.start).next_back().map(|(_, s)| s).filter(|s| s.range.covers(block))
    }

    /// Returns whether the process maps the file of a stretch of shared memory very often: for each of the mappings the kernel
    /// walks through the page tables of a block.
    pub(super) fn is_mapped_often(&self, part: Range) -> bool {
        self.file(part).is_some_and(|id| self.often.contains(&id))
    }

    /// Returns the file of a block of shared memory; `None` for other memory.
    pub(super) fn file(&self, block: Range) -> Option<SharedFile> {
        self.shared(block).map(|shared| shared.id)
    }

    /// Returns the base pages of a block; `None` if the process no longer has this memory.
    pub(super) fn pages(&self, block: Range) -> Option<Pages> {
        let in_file =
            self.shared(block).and_then(|shared| shared.in_file(block, self.page)?.first().copied());
        Some(self.pages_with(block, in_file)?.0)
    }

    /// Returns the base pages of a block, with what its file has of it, and how many of them this process has mapped.
    fn pages_with(&self, block: Range, in_file: Option<Resident>) -> Option<(Pages, u64)> {
        let own = Pages::of(&pagemap::entries(&self.program.pagemap, block).ok()?);
        if own.all * base_page().bytes() != block.len() {
            return None;
        }
        let pages = match self.shared(block) {
            None => own,
            Some(_) => own.of_shared(in_file.map(|found| found.pages)),
        };
        Some((pages, own.own + own.others))
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
        let in_file = shared.and_then(|shared| shared.in_file(inner, self.page)).unwrap_or_default();
        let in_file: BTreeMap<Addr, Resident> = starts_in(inner).zip(in_file).collect();
        present.extend(in_file.iter().filter(|(_, found)| found.pages > 0).map(|(start, _)| *start));
        for start in present {
            let range = Range::sized(start, self.page.bytes()).unwrap_or_default();
            if shared.is_some_and(|shared| !seen.insert((shared.id, shared.offset_of(start)))) {
                continue;
            }
            if huge.contains(&start) {
                blocks.push(Block { start, huge: true, pages: Pages::default(), heat: None });
                continue;
            }
            let found = in_file.get(&start).copied();
            let Some((pages, mapped)) = self.pages_with(range, found) else {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            };
            // It is mapped as a whole at the next access, unless the process maps its base pages still. It may have been mapped so
            // since the pages were read.
            let is_mapped = || {
                let mut bytes = 0;
                let found = pagemap::huge_stretches(pagemap, range, false, &mut |r: Range| bytes += r.len());
                found.is_ok() && bytes == range.len()
            };
            let huge = found.is_some_and(|found| found.huge) && (mapped == 0 || is_mapped());
            blocks.push(Block { start, huge, pages, heat: None });
        }
        Ok(())
    }
}

impl Shared {
    /// Returns the offset in the file of an address of the mapping.
    fn offset_of(&self, at: Addr) -> u64 {
        self.offset.saturating_add(at.0.saturating_sub(self.range.start.0))
    }

    /// Returns what is in memory of each huge page of a part of the mapping, if the file says that.
    fn in_file(&self, part: Range, page: PageSize) -> Option<Vec<Resident>> {
        let offsets = Range::sized(Addr(self.offset_of(part.start)), part.len())?;
        in_memory(self.file.as_ref()?, offsets, page)
    }
}
