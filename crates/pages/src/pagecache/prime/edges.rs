// SPDX-License-Identifier: Apache-2.0
//! Reads what lies outside of a file's whole huge pages into folios as large as fit. The kernel's fault path does that under
//! MADV_HUGEPAGE as for whole pages, and takes smaller folios where the file ends (mm/readahead.c, `page_cache_ra_order`).
//!
//! Which folios a file has is visible to root alone. For others nothing is done: what is in memory already would be read again
//! each time.

use super::file::CacheFile;
use super::pace::Pace;
use super::view::{Advice, View};
use super::{cache, holders};
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::folios::Folios;
use hugelift_core::prime::{Edge, Edges, LARGE, edges};
use hugelift_linux::machine;
use hugelift_linux::proc::folios::Reader;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;

/// The huge pages for which it is done. Where base pages have 16 or 64 kB, the kernel would read 32 or 512 MB for an edge.
const HUGE: PageSize = PageSize::MB2;

/// Primes edges, and remembers where that is in vain.
#[derive(Debug, Default)]
pub struct Primer {
    /// Devices whose file system has no large folios.
    vain: BTreeSet<u64>,
}

impl Primer {
    /// Reads the edges of a file in anew where their folios are small, and returns how large the folios are then. It reads in
    /// at this pace, data files within the pace's budget. Without a pace it only finds out how large the folios are. Returns `None` if there are no edges, or if
    /// the sizes of their folios cannot be read: by others than root, in a container, in a file so large that it takes too long.
    /// Code that a process has open for writing is not changed.
    pub fn prime(&mut self, file: &CacheFile, page: PageSize, pace: Option<&mut Pace>) -> Option<Edges> {
        let job = Job { file: file.file(), page, is_code: matches!(file, CacheFile::Code(_)) };
        let edges = edges(&file.candidates(page), page);
        if edges.is_empty() || job.page != HUGE {
            return None;
        }
        let mut reader = Reader::open(std::process::id()).ok()?;
        let pages: Vec<&[Edge]> = edges.chunk_by(|a, b| a.page == b.page).collect();
        let mut all = Vec::new();
        for edges in &pages {
            all.push(job.read(edges, &mut reader).ok()?);
            // What was not read in its time would count as small.
            if !reader.is_whole() {
                return None;
            }
        }
        let device = job.file.metadata().ok()?.dev();
        if let Some(pace) = pace.filter(|_| !self.vain.contains(&device))
            && job.improve(&pages, &mut all, pace)
        {
            self.vain.insert(device);
        }
        let sum = |of: fn(&Found) -> u64| all.iter().map(of).sum();
        Some(Edges { bytes: sum(|found| found.bytes), large_bytes: sum(|found| found.large) })
    }
}

struct Job<'a> {
    file: &'a File,
    page: PageSize,
    is_code: bool,
}

/// What is known of the edges of one huge page.
struct Found {
    page: u64,
    bytes: u64,
    in_memory: u64,
    large: u64,
}

impl Found {
    /// Returns whether a folio of [`LARGE`] bytes or more is missing. The end of a file may have smaller ones.
    fn lacks(&self) -> bool {
        self.bytes - self.large >= LARGE
    }
}

impl Job<'_> {
    /// Reads those edges anew that have small folios. Returns whether that was in vain: the file system has no large folios.
    fn improve(&self, pages: &[&[Edge]], all: &mut [Found], pace: &mut Pace) -> bool {
        for i in self.changeable(all) {
            let missing = all[i].bytes - all[i].in_memory;
            let need = if self.is_code { 0 } else { missing };
            if machine::memory_left_here() <= self.page.bytes()
                || pace.wait(all[i].bytes).and_then(|()| pace.take(need)).is_err()
            {
                continue;
            }
            self.read_anew(all[i].page);
            // A reader of its own: what was read from the disk takes time too.
            let found = Reader::open(std::process::id()).and_then(|mut reader| {
                let found = self.read(pages[i], &mut reader)?;
                if reader.is_whole() { Ok(found) } else { Err(io::ErrorKind::TimedOut.into()) }
            });
            let Ok(found) = found else { return false };
            let is_vain = found.large == 0 && found.in_memory == found.bytes;
            all[i] = found;
            if is_vain {
                return true;
            }
        }
        false
    }

    /// Returns which edges have small folios and lie in huge pages of the file that no process maps: what is mapped would stay,
    /// and leave no room for a large folio. A file of code that is open for writing has none.
    fn changeable(&self, all: &[Found]) -> Vec<usize> {
        let lacking: Vec<usize> = (0..all.len()).filter(|&i| all[i].lacks()).collect();
        let Some(first) = lacking.first() else { return lacking };
        if self.is_code && holders::written(self.file).is_some() {
            return Vec::new();
        }
        let view = View::new(self.file, &[all[*first].page], self.page, Advice::Random);
        let id = view.ok().and_then(|view| view.huge().ok()?.1);
        let offsets: Vec<u64> = lacking.iter().map(|&i| all[i].page).collect();
        let Some(id) = id else { return Vec::new() };
        let users = holders::mappers(id, &offsets, self.page);
        lacking.into_iter().zip(users).filter(|(_, users)| users.is_empty()).map(|(i, _)| i).collect()
    }

    /// Reads of which size the folios of the edges of one huge page are. It reads nothing from the file.
    fn read(&self, edges: &[Edge], reader: &mut Reader) -> io::Result<Found> {
        let page = edges.first().map_or(0, |edge| edge.page);
        let view = View::new(self.file, &[page], self.page, Advice::Random)?;
        view.touch_present(0, machine::base_page())?;
        let mut folios = Folios::default();
        for edge in edges {
            let start = Addr(view.start(0).0 + edge.start).align_down(machine::base_page());
            let end = Addr(view.start(0).0 + edge.start + edge.bytes).align_up(machine::base_page());
            let range = end.and_then(|end| Range::new(start, end)).ok_or(io::ErrorKind::InvalidData)?;
            reader.add(range, &mut folios)?;
        }
        let bytes = edges.iter().map(|edge| edge.bytes).sum();
        // Whole base pages are counted, which edges may begin and end within.
        let of = |least: u64| folios.bytes.range(least..).map(|(_, n)| n).sum::<u64>().min(bytes);
        Ok(Found { page, bytes, in_memory: of(0), large: of(LARGE) })
    }

    /// Drops the huge page at an offset, and reads it in again. What fails leaves it as it is, or not in memory.
    fn read_anew(&self, offset: u64) {
        cache::sync(self.file);
        cache::forget(self.file, offset, self.page);
        if let Ok(view) = View::new(self.file, &[offset], self.page, Advice::Huge) {
            // EFAULT: the file ends within the page.
            let _ = view.populate(0, self.page);
        }
    }
}
