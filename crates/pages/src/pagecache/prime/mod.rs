// SPDX-License-Identifier: Apache-2.0
//! Priming: brings the page cache of an ELF file or of a data file onto huge pages, from where the kernel maps them
//! huge in every process that maps the file at a congruent address.
//!
//! ```text
//!   read in      under MADV_HUGEPAGE the fault path reads whole huge pages: that suffices for what is
//!                not in memory, and changes nothing for what is there in small pages
//!   collapse     MADV_COLLAPSE: where the kernel can, also for a file in use (tmpfs;
//!                READ_ONLY_THP_FOR_FS)
//!   drop         fsync, POSIX_FADV_DONTNEED for these huge pages alone, then read in again; what a process that was named has
//!                mapped of a data file is unmapped before (MADV_PAGEOUT)
//!   verify       what smaps shows of a new mapping, page by page
//!   edges        what is in no whole huge page is read into folios as large as fit
//! ```
//!
//! Each step is done only for pages that are still small: pages that are huge already are never dropped.
//! Nothing is written to the file, and no other file is touched.
//!
//! A file of code that a process has open for writing is left alone, as it is not complete. A data file may be written to all
//! the time: the kernel writes to its huge pages as to its small ones, and what is dirty is not dropped.

mod cache;
mod data;
mod edges;
mod file;
mod holders;
mod locked;
mod mapped_by;
mod pace;
mod view;

pub(crate) use cache::open_for_writing;
pub use cache::{file_system, is_memory, sees_cache};
pub use data::DataFile;
pub use edges::Primer;
pub use file::{CacheFile, Stamp};
pub use holders::written;
pub use locked::Locked;
pub use mapped_by::{MappedBy, fits};
pub use pace::Pace;

use file::candidates_of;
use hugelift_core::addr::PageSize;
use hugelift_core::elf::Headers;
use hugelift_core::maps::FileId;
use hugelift_core::prime::{Candidate, FileReport, Holder, Obstacle, SegmentReport};
use hugelift_linux::elf::elf_file::ElfFile;
use hugelift_linux::machine;
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;
use view::{Advice, View};

/// Huge pages that are mapped together, so that smaps is read once for all of them.
const BATCH: usize = 64;
/// How often to drop pages that the kernel keeps (in a queue, under write-back); [`PAUSE`] is between the
/// tries.
const TRIES: u32 = 5;
/// How many huge pages of a file are tried before all others.
const PROBES: usize = 3;
/// How often pages are dropped and read in before that counts as a failure.
const ROUNDS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(20);

/// Returns the size of the huge pages by which a file's page cache can be mapped.
///
/// # Errors
/// [`Obstacle::NoThp`] or [`Obstacle::ThpDisabled`].
pub fn huge_page() -> Result<PageSize, Obstacle> {
    let page = machine::thp_page().ok_or(Obstacle::NoThp)?;
    if machine::thp_disabled(None) { Err(Obstacle::ThpDisabled) } else { Ok(page) }
}

/// Primes the whole huge pages of `page` in the file's text and read-only data; pages that are huge already
/// are left as they are. Loading the file adds `bias` to the stated addresses. The report calls a page huge only if a
/// mapping made afterwards showed it.
pub fn prime(file: &ElfFile, bias: u64, page: PageSize) -> FileReport {
    let candidates = candidates_of(file, bias, page);
    Job::new(file.file(), &file.path, Some(&file.headers), page, candidates).run(Job::prime_batch)
}

impl CacheFile {
    /// Does the same as [`prime`] at a pace; of a data file within its budget too. What a process has mapped of a data
    /// file is taken from it, which changes nothing that it sees: it waits for the disk if it touches its small pages before
    /// they are read in anew.
    pub fn prime(&self, page: PageSize, pace: &mut Pace, by: Option<&MappedBy>) -> FileReport {
        Job { pace: Some(pace), mapped_by: by, ..Job::of(self, page) }.run(Job::prime_batch)
    }

    /// Reports what [`CacheFile::prime`] would find huge now, and the obstacles. It changes nothing: no page of the file is
    /// read into memory or dropped.
    pub fn check(&self, page: PageSize) -> FileReport {
        Job::of(self, page).run(Job::check_batch)
    }

    /// Reports that nothing of it can be huge, for one reason.
    pub fn blocked(&self, obstacle: &Obstacle) -> FileReport {
        Job { refusal: Some(obstacle.clone()), ..Job::of(self, PageSize::MB2) }.run(Job::check_batch)
    }
}

/// Why a huge page of the file is not huge; `None` if it is.
type Fate = Option<Obstacle>;

struct Job<'a> {
    file: &'a File,
    path: &'a Path,
    /// Its program headers, if it is an ELF file.
    headers: Option<&'a Headers>,
    page: PageSize,
    base: PageSize,
    candidates: Vec<Candidate>,
    refusal: Fate,
    /// The file's identity in `/proc/PID/maps`; known once it was mapped.
    id: Option<FileId>,
    /// Whether some page of it is huge: then its file system supports huge pages.
    made: bool,
    /// The limits of what is read into memory.
    pace: Option<&'a mut Pace>,
    /// A process that gives up what it has mapped of it.
    mapped_by: Option<&'a MappedBy>,
}

impl<'a> Job<'a> {
    fn of(file: &'a CacheFile, page: PageSize) -> Job<'a> {
        let headers = match file {
            CacheFile::Code(file) => Some(&file.headers),
            CacheFile::Data(_) => None,
        };
        Job::new(file.file(), file.path(), headers, page, file.candidates(page))
    }

    fn new(
        file: &'a File,
        path: &'a Path,
        headers: Option<&'a Headers>,
        page: PageSize,
        candidates: Vec<Candidate>,
    ) -> Job<'a> {
        Job {
            file,
            path,
            headers,
            page,
            base: machine::base_page(),
            candidates,
            refusal: None,
            id: None,
            made: false,
            pace: None,
            mapped_by: None,
        }
    }

    /// Calls `treat` with all pages in batches, and reports what it returns for each.
    fn run(mut self, treat: fn(&mut Job<'a>, &[u64]) -> Result<Vec<Fate>, Obstacle>) -> FileReport {
        let offsets: Vec<u64> = self.candidates.iter().flat_map(|c| c.pages(self.page)).collect();
        if self.refusal.is_none() && !offsets.is_empty() && self.headers.is_some() {
            self.refusal = written(self.file);
        }
        let before = cache::stamp(self.file);
        let mut fates: Vec<Fate> = Vec::new();
        let at_once = self.pace.as_ref().map_or(BATCH, |pace| pace.batch(self.page.bytes(), BATCH));
        for batch in offsets.chunks(at_once) {
            let done = match &self.refusal {
                Some(obstacle) => vec![Some(obstacle.clone()); batch.len()],
                None => treat(&mut self, batch).unwrap_or_else(|o| vec![Some(o); batch.len()]),
            };
            fates.extend(done);
        }
        // A data file may change all the time. Its pages were found huge after that.
        let changed = self.headers.is_some() && cache::stamp(self.file) != before;
        // The last base page may be a part of one.
        let len = self.file.metadata().map_or(0, |meta| meta.len().next_multiple_of(self.base.bytes()));
        let mut fates = fates.into_iter();
        let mut huge_pages = Vec::new();
        let segments = self.candidates.iter().map(|candidate| {
            let mut segment = SegmentReport::new(candidate, self.page);
            for (offset, fate) in candidate.pages(self.page).zip(fates.by_ref()) {
                let is_cut_off = self.headers.is_none() && offset + self.page.bytes() > len;
                let fate = fate.or_else(|| (changed || is_cut_off).then_some(Obstacle::Changed));
                huge_pages.extend(fate.is_none().then_some(offset));
                segment.book(self.page.bytes(), fate);
            }
            segment
        });
        let segments = segments.collect();
        let Some(headers) = self.headers else {
            return FileReport { huge_pages, ..FileReport::of_data(self.path.into(), segments) };
        };
        let mut report = FileReport::new(self.path.into(), segments);
        report.huge_pages = huge_pages;
        // The kernel aligns the base of a program to its largest p_align (since Linux 5.10).
        let aligned = headers.segments.iter().any(|s| s.align >= self.page.bytes());
        report.random_base = headers.relocatable && headers.interp.is_some() && !aligned;
        report
    }

    fn view(&self, offsets: &[u64], advice: Advice) -> Result<View, Obstacle> {
        View::new(self.file, offsets, self.page, advice).map_err(|e| failed("mmap", &e))
    }

    /// Returns which pages of the view are mapped huge.
    fn huge(&mut self, view: &View) -> Result<Vec<bool>, Obstacle> {
        let (huge, id) = view.huge().map_err(|e| failed("smaps", &e))?;
        self.id = self.id.or(id);
        self.made |= huge.contains(&true);
        Ok(huge)
    }

    fn prime_batch(&mut self, offsets: &[u64]) -> Result<Vec<Fate>, Obstacle> {
        if let Some(short) = self.memory_short(offsets)? {
            return Ok(vec![Some(short); offsets.len()]);
        }
        let view = self.view(offsets, Advice::Huge)?;
        let mut errors: Vec<Fate> = vec![None; offsets.len()];
        for (i, error) in errors.iter_mut().enumerate() {
            *error = view.populate(i, self.page).err().map(|e| read_failed(&e));
        }
        let found = self.huge(&view)?;
        let mut small: Vec<usize> =
            (0..offsets.len()).filter(|&i| !found[i] && errors[i].is_none()).collect();
        if small.is_empty() {
            return Ok(errors);
        }
        cache::sync(self.file);
        small.iter().for_each(|&i| view.collapse(i));
        drop(view);
        // The result of the call is ignored: Linux 6.1 returns EINVAL for pages that it has collapsed.
        let after = self.view(offsets, Advice::Random)?;
        small.iter().for_each(|&i| drop(after.populate(i, self.base)));
        let found = self.huge(&after)?;
        drop(after);
        small.retain(|&i| !found[i]);
        // Pages that are dropped are read in again, charged to this process: they must fit.
        if let Some(short) = self.does_not_fit(small.len()) {
            small.drain(..).for_each(|i| errors[i] = Some(short.clone()));
        }
        if let Some(none) = self.probe(offsets, &mut small, &mut errors)? {
            small.drain(..).for_each(|i| errors[i] = Some(none.clone()));
            self.refusal = Some(none);
        }
        // A program that starts between the two steps brings small pages in again.
        for _ in 0..ROUNDS {
            let left: Vec<u64> = small.iter().map(|&i| offsets[i]).collect();
            if left.is_empty() {
                break;
            }
            let bytes = left.len() as u64 * self.page.bytes();
            if let Some(short) = self.pace.as_mut().and_then(|pace| pace.wait(bytes).err()) {
                small.drain(..).for_each(|i| errors[i] = Some(short.clone()));
                break;
            }
            for (&i, fate) in small.iter().zip(self.drop_and_read(&left)?) {
                errors[i] = fate;
            }
            // A process that has given them up may have touched them again.
            let again = |fate: &Fate| match fate {
                Some(Obstacle::Fragmented | Obstacle::Stays) => true,
                Some(Obstacle::InUse(by)) => self.mapped_by.is_some_and(|one| one.is_the_only(by)),
                _ => false,
            };
            small.retain(|&i| again(&errors[i]));
        }
        Ok(errors)
    }

    /// If none of the file's pages is huge yet, tries some of the small ones first: on a file system without
    /// huge pages, all would be dropped and read again in vain. Returns that obstacle; else removes the pages that
    /// have become huge from `small`.
    fn probe(
        &mut self,
        offsets: &[u64],
        small: &mut Vec<usize>,
        fates: &mut [Fate],
    ) -> Result<Fate, Obstacle> {
        for i in small.clone().into_iter().take(PROBES) {
            if self.made {
                break;
            }
            fates[i] = self.drop_and_read(&[offsets[i]])?.remove(0);
            match &fates[i] {
                Some(Obstacle::NoLargeFolios(_)) => return Ok(fates[i].clone()),
                Some(_) => {}
                None => small.retain(|&j| j != i),
            }
        }
        Ok(None)
    }

    /// Drops a huge page that a process may have mapped in small pages, and reads it in again at once: the process may touch it at
    /// any moment, which brings small pages in. Returns why it could not be read, and whether nothing of it was in memory in between.
    fn exchange(&mut self, offset: u64, by: &MappedBy) -> Result<(Fate, bool), Obstacle> {
        let mut done = (None, false);
        for _ in 0..TRIES {
            let view = self.view(&[offset], Advice::Huge)?;
            // What its writes have made dirty could not be dropped.
            cache::write_back(self.file, offset, self.page);
            by.give_up(offset, self.page);
            cache::forget(self.file, offset, self.page);
            let dropped = view.resident(0, self.base).is_ok_and(|left| !left.any);
            done = (view.populate(0, self.page).err().map(|e| read_failed(&e)), dropped);
            drop(view);
            // As long as no page is huge, the process may have been faster, or the file system may have no huge pages.
            if self.made || !dropped || self.is_huge(offset)? {
                break;
            }
        }
        Ok(done)
    }

    /// Returns whether a huge page of the file, which was read in, is huge.
    fn is_huge(&mut self, offset: u64) -> Result<bool, Obstacle> {
        let view = self.view(&[offset], Advice::Random)?;
        drop(view.populate(0, self.base));
        Ok(self.huge(&view)?.contains(&true))
    }

    /// Drops these huge pages, which are in memory as small pages, and reads them in again.
    fn drop_and_read(&mut self, offsets: &[u64]) -> Result<Vec<Fate>, Obstacle> {
        if let Some(by) = self.mapped_by {
            let done = offsets.iter().map(|&offset| self.exchange(offset, by));
            let (errors, dropped): (Vec<Fate>, Vec<bool>) =
                done.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
            // Small pages that were read in anew are not in use: huge ones were not to be had.
            let in_vain: Vec<bool> = dropped.iter().map(|dropped| *dropped && !self.made).collect();
            let stays: Vec<bool> = dropped.iter().map(|dropped| !dropped).collect();
            return self.verified(offsets, errors, &stays, &in_vain);
        }
        let mut users = None;
        let mut stays = vec![false; offsets.len()];
        for attempt in 0..TRIES {
            if attempt > 0 {
                std::thread::sleep(PAUSE);
            }
            let again = offsets.iter().zip(&stays).filter(|(_, stays)| attempt == 0 || **stays);
            again.for_each(|(&offset, _)| cache::forget(self.file, offset, self.page));
            let Some(left) = self.resident(offsets)? else { break };
            stays = left.iter().map(|r| r.any).collect();
            if !stays.contains(&true) {
                break;
            }
            // Pages that a process maps stay, however often it is tried.
            if users.get_or_insert_with(|| self.users(offsets)).iter().any(|u| !u.is_empty()) {
                break;
            }
        }
        let view = self.view(offsets, Advice::Huge)?;
        let errors: Vec<Fate> =
            (0..offsets.len()).map(|i| view.populate(i, self.page).err().map(|e| read_failed(&e))).collect();
        drop(view);
        self.verified(offsets, errors, &stays, &vec![false; offsets.len()])
    }

    /// Returns what became of pages that were read in again. Pages that `stay` could not be dropped. Pages that were dropped and
    /// read `in_vain` are small although nobody had them in between.
    fn verified(
        &mut self,
        offsets: &[u64],
        errors: Vec<Fate>,
        stays: &[bool],
        in_vain: &[bool],
    ) -> Result<Vec<Fate>, Obstacle> {
        let fresh = self.view(offsets, Advice::Random)?;
        (0..offsets.len()).filter(|&i| errors[i].is_none()).for_each(|i| drop(fresh.populate(i, self.base)));
        let found = self.huge(&fresh)?;
        drop(fresh);
        if !found.contains(&false) {
            return Ok(errors);
        }
        let mut users = self.users(offsets).into_iter();
        let lacking = self.lacking();
        let fate = |i: usize, users| match (found[i], &errors[i]) {
            (true, _) => None,
            (false, Some(error)) => Some(error.clone()),
            (false, None) => Some(match users {
                Some(users) if !Vec::is_empty(&users) && !in_vain[i] => Obstacle::InUse(users),
                _ if stays[i] => Obstacle::Stays,
                _ => lacking.clone(),
            }),
        };
        Ok((0..offsets.len()).map(|i| fate(i, users.next())).collect())
    }

    /// Returns why pages that were read anew are small.
    fn lacking(&self) -> Obstacle {
        if self.made || !machine::has_free_block(self.page) {
            Obstacle::Fragmented
        } else {
            Obstacle::NoLargeFolios(cache::file_system(self.file))
        }
    }

    fn users(&self, offsets: &[u64]) -> Vec<Vec<Holder>> {
        match self.id {
            Some(id) => holders::mappers(id, offsets, self.page),
            None => vec![Vec::new(); offsets.len()],
        }
    }

    /// Returns how much of each of these pages is in memory; `None` if the kernel does not show it to this
    /// user ([`cache::sees_cache`]).
    fn resident(&self, offsets: &[u64]) -> Result<Option<Vec<view::Resident>>, Obstacle> {
        if !cache::sees_cache(self.file) {
            return Ok(None);
        }
        let view = self.view(offsets, Advice::Random)?;
        Ok((0..offsets.len()).map(|i| view.resident(i, self.base).ok()).collect())
    }

    /// Waits until the pages that are not in memory may be read. Returns the obstacle if they do not fit into it, or into the
    /// budget, or if memory stays short.
    fn memory_short(&mut self, offsets: &[u64]) -> Result<Fate, Obstacle> {
        let resident = self.resident(offsets)?;
        let count = |is_in: fn(&view::Resident) -> bool| match &resident {
            Some(resident) => resident.iter().filter(|page| !is_in(page)).count(),
            None => offsets.len(),
        };
        if let Some(short) = self.does_not_fit(count(|page| page.any)) {
            return Ok(Some(short));
        }
        let Some(pace) = &mut self.pace else { return Ok(None) };
        let need = count(|page| page.all) as u64 * self.page.bytes();
        let is_data = self.headers.is_none();
        let within = pace.wait(need).and_then(|()| if is_data { pace.take(need) } else { Ok(()) });
        Ok(within.err())
    }

    /// Returns the obstacle if `pages` huge pages do not fit into the memory that is left.
    fn does_not_fit(&self, pages: usize) -> Fate {
        let need = pages as u64 * self.page.bytes();
        let left = if need > 0 { machine::memory_left_here() } else { 0 };
        (need > left).then_some(Obstacle::MemoryShort { left, need })
    }

    fn check_batch(&mut self, offsets: &[u64]) -> Result<Vec<Fate>, Obstacle> {
        let Some(resident) = self.resident(offsets)? else {
            return Ok(vec![Some(Obstacle::NotOwner); offsets.len()]);
        };
        // Touching pages that are in memory reads nothing from the disk, and nothing ahead.
        let view = self.view(offsets, Advice::Random)?;
        (0..offsets.len()).filter(|&i| resident[i].first).for_each(|i| drop(view.populate(i, self.base)));
        let found = self.huge(&view)?;
        drop(view);
        let small = |i: usize| !found[i] && resident[i].any;
        let mut users = match (0..offsets.len()).any(small) {
            true => self.users(offsets),
            false => vec![Vec::new(); offsets.len()],
        };
        let mut fate = |i: usize| match (found[i], resident[i].any) {
            (true, _) => None,
            (false, false) => Some(Obstacle::NotRead),
            (false, true) if users[i].is_empty() => Some(Obstacle::NotPrimed),
            (false, true) => Some(Obstacle::InUse(std::mem::take(&mut users[i]))),
        };
        Ok((0..offsets.len()).map(&mut fate).collect())
    }
}

fn failed(call: &'static str, error: &dyn std::error::Error) -> Obstacle {
    Obstacle::Failed { call, error: error.to_string() }
}

/// Returns the obstacle for a failed read. EFAULT means that the file has become shorter: a touch would have
/// been SIGBUS.
fn read_failed(error: &io::Error) -> Obstacle {
    if error.raw_os_error() == Some(libc::EFAULT) { Obstacle::Changed } else { failed("madvise", error) }
}
