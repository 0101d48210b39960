// SPDX-License-Identifier: Apache-2.0
//! Reads what lies outside of a file's whole huge pages into folios as large as fit. The kernel's fault path does that under
//! MADV_HUGEPAGE as for whole pages, and takes smaller folios where the file ends (mm/readahead.c, `page_cache_ra_order`).
//!
//! Which folios a file has is visible to root alone. For others nothing is done: what is in memory already would be read again
//! each time.

use super::data::DataFile;
use super::view::{Advice, View};
use super::{cache, holders};
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::folios::Folios;
use hugelift_core::prime::{Edge, Edges, LARGE, candidates, edges, stretches};
use hugelift_linux::elf::elf_file::ElfFile;
use hugelift_linux::machine;
use hugelift_linux::proc::folios::Reader;
use std::fs::File;
use std::io;

/// Returns how large the folios of an ELF file's edges are, after it has read them in anew where they are small. It `changes`
/// nothing if that is false. Returns `None` if there are none, if the sizes of folios cannot be read, or if a process has the
/// file open for writing.
pub fn prime_edges(file: &ElfFile, page: PageSize, changes: bool) -> Option<Edges> {
    let len = file.file().metadata().ok()?.len();
    let found = edges(&candidates(&file.headers, 0, len, machine::base_page(), page), page);
    let changes = changes && holders::written(file.file()).is_none();
    Job { file: file.file(), page, changes, only_in_memory: false }.run(&found)
}

/// Does the same for a data file. What is not in memory is left there.
pub fn prime_data_edges(file: &DataFile, page: PageSize, changes: bool) -> Option<Edges> {
    let found = edges(&stretches(&file.stretches(), file.len, page), page);
    Job { file: file.file(), page, changes, only_in_memory: true }.run(&found)
}

struct Job<'a> {
    file: &'a File,
    page: PageSize,
    changes: bool,
    only_in_memory: bool,
}

/// What is known of the edges of one huge page.
#[derive(Clone, Copy)]
struct Found {
    bytes: u64,
    in_memory: u64,
    large: u64,
}

impl Job<'_> {
    fn run(&self, edges: &[Edge]) -> Option<Edges> {
        if edges.is_empty() {
            return None;
        }
        let mut reader = Reader::open(std::process::id()).ok()?;
        let mut sum = Edges::default();
        let mut changes = self.changes;
        for edges in edges.chunk_by(|a, b| a.page == b.page) {
            let mut found = self.read(edges, &mut reader).ok()?;
            let is_wanted = found.in_memory > 0 || !self.only_in_memory;
            if changes && is_wanted && found.bytes - found.large >= LARGE && self.read_anew(edges[0].page) {
                found = self.read(edges, &mut reader).ok()?;
                // A file system without large folios has none for the other edges either.
                changes = found.large > 0 || found.in_memory < found.bytes;
            }
            sum.bytes += found.bytes;
            sum.large_bytes += found.large;
        }
        Some(sum)
    }

    /// Reads of which size the folios of these edges are. It reads nothing from the file.
    fn read(&self, edges: &[Edge], reader: &mut Reader) -> io::Result<Found> {
        let view = View::new(self.file, &[edges[0].page], self.page, Advice::Random)?;
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
        Ok(Found { bytes, in_memory: of(0), large: of(LARGE) })
    }

    /// Drops the huge page at an offset, and reads it in again. Returns false if that could not help: a process maps a part of
    /// it, which stays as it is.
    fn read_anew(&self, offset: u64) -> bool {
        let read = || -> io::Result<bool> {
            let view = View::new(self.file, &[offset], self.page, Advice::Random)?;
            let is_used = match view.huge() {
                Ok((_, Some(id))) => !holders::mappers(id, &[offset], self.page)[0].is_empty(),
                _ => true,
            };
            drop(view);
            if is_used || machine::memory_left_here() < self.page.bytes() {
                return Ok(false);
            }
            cache::sync(self.file);
            cache::forget(self.file, offset, self.page);
            let view = View::new(self.file, &[offset], self.page, Advice::Huge)?;
            // EFAULT: the file ends within the page.
            let _ = view.populate(0, self.page);
            Ok(true)
        };
        read().unwrap_or(false)
    }
}
