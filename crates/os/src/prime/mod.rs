// SPDX-License-Identifier: Apache-2.0
//! Priming: brings an ELF file's page cache onto huge pages, from where the kernel maps them
//! huge in every process that maps the file at a congruent address.
//!
//! ```text
//!   read in      under MADV_HUGEPAGE the fault path reads whole huge pages: enough for what
//!                was not in memory, nothing for what is there in small pages
//!   collapse     MADV_COLLAPSE: where the kernel can, also for a file in use (tmpfs;
//!                READ_ONLY_THP_FOR_FS)
//!   drop         fsync, POSIX_FADV_DONTNEED for these huge pages alone, then read in again
//!   verify       what a fresh mapping shows in smaps, page by page
//! ```
//!
//! Each step is done for those huge pages alone that are still small: what is huge already is
//! never dropped. Nothing is written to the file, and no other file is touched.

mod cache;
mod holders;
mod view;

pub(crate) use cache::file_system;

use crate::elf_file::ElfFile;
use crate::machine;
use hugelift_core::addr::PageSize;
use hugelift_core::maps::FileId;
use hugelift_core::prime::{Candidate, FileReport, Obstacle, SegmentReport, candidates};
use std::io;
use std::time::Duration;
use view::{Advice, View};

/// Huge pages that are looked at together: one reading of smaps for so many.
const BATCH: usize = 64;
/// Pages that the kernel has just in hand (in a queue, under write-back) are not dropped:
/// tried again so often, after so long.
const TRIES: u32 = 5;
/// How often pages are dropped and read in before they count as refused.
const ROUNDS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(20);

/// Size of the huge pages that a file's page cache can be mapped with.
///
/// # Errors
/// [`Obstacle::NoThp`] or [`Obstacle::ThpDisabled`].
pub fn huge_page() -> Result<PageSize, Obstacle> {
    let page = machine::thp_page().ok_or(Obstacle::NoThp)?;
    if machine::thp_disabled(None) { Err(Obstacle::ThpDisabled) } else { Ok(page) }
}

/// Primes the whole huge pages of `page` in the file's text and read-only data; what is huge
/// already is left as it is. What the report calls huge, a mapping made afterwards has shown.
pub fn prime(file: &ElfFile, page: PageSize) -> FileReport {
    Job::new(file, page).run(Job::prime_batch)
}

/// What [`prime`] would find huge now, and what stands in the way. Changes nothing: no page of
/// the file is read into memory or dropped.
pub fn check(file: &ElfFile, page: PageSize) -> FileReport {
    Job::new(file, page).run(Job::check_batch)
}

/// The report on a file of which nothing can be huge for the same reason.
pub fn blocked(file: &ElfFile, obstacle: &Obstacle) -> FileReport {
    let mut job = Job::new(file, PageSize::MB2);
    job.refusal = Some(obstacle.clone());
    job.run(Job::check_batch)
}

/// A huge page of the file that is not huge yet, and why, as far as is known.
type Fate = Option<Obstacle>;

struct Job<'a> {
    file: &'a ElfFile,
    page: PageSize,
    base: PageSize,
    candidates: Vec<Candidate>,
    refusal: Fate,
    /// As `/proc/PID/maps` calls the file; known from the first look at a mapping of it.
    id: Option<FileId>,
    /// Some page of it is huge: its file system can.
    made: bool,
}

impl<'a> Job<'a> {
    fn new(file: &'a ElfFile, page: PageSize) -> Job<'a> {
        let base = machine::base_page();
        let len = file.file().metadata().map_or(0, |m| m.len());
        let candidates = candidates(&file.headers, len, base, page);
        Job { file, page, base, candidates, refusal: None, id: None, made: false }
    }

    /// Treats all pages in batches, and books what `treat` says of each: nothing for huge ones.
    fn run(mut self, treat: fn(&mut Job<'a>, &[u64]) -> io::Result<Vec<Fate>>) -> FileReport {
        let offsets: Vec<u64> = self.candidates.iter().flat_map(|c| c.pages(self.page)).collect();
        if self.refusal.is_none() && !offsets.is_empty() {
            self.refusal = self.written();
        }
        let before = cache::stamp(self.file.file());
        let mut fates: Vec<Fate> = Vec::new();
        for batch in offsets.chunks(BATCH) {
            let done = match &self.refusal {
                Some(obstacle) => vec![Some(obstacle.clone()); batch.len()],
                None => {
                    treat(&mut self, batch).unwrap_or_else(|e| vec![Some(failed("mmap", &e)); batch.len()])
                }
            };
            fates.extend(done);
        }
        let changed = cache::stamp(self.file.file()) != before;
        let mut fates = fates.into_iter();
        let segments = self.candidates.iter().map(|candidate| {
            let mut segment = SegmentReport::new(candidate, self.page);
            for fate in fates.by_ref().take(candidate.pages(self.page).count()) {
                segment.book(self.page.bytes(), fate.or_else(|| changed.then_some(Obstacle::Changed)));
            }
            segment
        });
        let mut report = FileReport::new(self.file.path.to_string_lossy().into_owned(), segments.collect());
        report.random_base = self.file.headers.relocatable && self.file.headers.interp.is_some();
        report
    }

    /// A file that is being written is left alone.
    fn written(&self) -> Fate {
        let writers = || holders::writers(self.file.file());
        match cache::open_for_writing(self.file.file()) {
            Some(true) => Some(Obstacle::BeingWritten(writers())),
            Some(false) => None,
            // The kernel does not tell: what can be seen has to do.
            None => Some(writers()).filter(|w| !w.is_empty()).map(Obstacle::BeingWritten),
        }
    }

    fn view(&self, offsets: &[u64], advice: Advice) -> io::Result<View> {
        View::new(self.file.file(), offsets, self.page, advice)
    }

    /// Which pages of the view are mapped huge.
    fn huge(&mut self, view: &View) -> Vec<bool> {
        let (huge, id) = view.huge();
        self.id = self.id.or(id);
        self.made |= huge.contains(&true);
        huge
    }

    fn prime_batch(&mut self, offsets: &[u64]) -> io::Result<Vec<Fate>> {
        if let Some(short) = self.memory_short(offsets)? {
            return Ok(vec![Some(short); offsets.len()]);
        }
        let view = self.view(offsets, Advice::Huge)?;
        let mut errors: Vec<Fate> = vec![None; offsets.len()];
        for (i, error) in errors.iter_mut().enumerate() {
            *error = view.populate(i, self.page).err().map(|e| read_failed(&e));
        }
        let found = self.huge(&view);
        let mut small: Vec<usize> =
            (0..offsets.len()).filter(|&i| !found[i] && errors[i].is_none()).collect();
        if small.is_empty() {
            return Ok(errors);
        }
        cache::sync(self.file.file());
        small.iter().for_each(|&i| view.collapse(i));
        drop(view);
        // What the call says is not believed: Linux 6.1 has EINVAL for what it has done.
        let after = self.view(offsets, Advice::Random)?;
        small.iter().for_each(|&i| drop(after.populate(i, self.base)));
        let found = self.huge(&after);
        drop(after);
        small.retain(|&i| !found[i]);
        // A program that starts between the two steps brings small pages in again.
        for _ in 0..ROUNDS {
            let left: Vec<u64> = small.iter().map(|&i| offsets[i]).collect();
            if left.is_empty() {
                break;
            }
            for (&i, fate) in small.iter().zip(self.drop_and_read(&left)?) {
                errors[i] = fate;
            }
            small.retain(|&i| matches!(errors[i], Some(Obstacle::Fragmented | Obstacle::Stays)));
        }
        Ok(errors)
    }

    /// Drops these huge pages, which are in memory in small ones, and reads them in again.
    fn drop_and_read(&mut self, offsets: &[u64]) -> io::Result<Vec<Fate>> {
        let mut users = None;
        let mut stays = vec![false; offsets.len()];
        for attempt in 0..TRIES {
            if attempt > 0 {
                std::thread::sleep(PAUSE);
            }
            for (&offset, _) in offsets.iter().zip(&stays).filter(|(_, s)| attempt == 0 || **s) {
                cache::forget(self.file.file(), offset, self.page);
            }
            let Some(left) = self.resident(offsets)? else { break };
            stays = left.iter().map(|r| r.any).collect();
            if !stays.contains(&true) {
                break;
            }
            // What somebody maps stays, however often it is tried.
            if users.get_or_insert_with(|| self.users(offsets)).iter().any(|u| !u.is_empty()) {
                break;
            }
        }
        let view = self.view(offsets, Advice::Huge)?;
        let errors: Vec<Fate> =
            (0..offsets.len()).map(|i| view.populate(i, self.page).err().map(|e| read_failed(&e))).collect();
        drop(view);
        let fresh = self.view(offsets, Advice::Random)?;
        (0..offsets.len()).filter(|&i| errors[i].is_none()).for_each(|i| drop(fresh.populate(i, self.base)));
        let found = self.huge(&fresh);
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
                Some(users) if !Vec::is_empty(&users) => Obstacle::InUse(users),
                _ if stays[i] => Obstacle::Stays,
                _ => lacking.clone(),
            }),
        };
        Ok((0..offsets.len()).map(|i| fate(i, users.next())).collect())
    }

    /// Why pages that were read anew are small.
    fn lacking(&self) -> Obstacle {
        if self.made || !machine::has_free_block(self.page) {
            Obstacle::Fragmented
        } else {
            Obstacle::NoLargeFolios(cache::file_system(self.file.file()))
        }
    }

    fn users(&self, offsets: &[u64]) -> Vec<Vec<hugelift_core::prime::Holder>> {
        match self.id {
            Some(id) => holders::mappers(id, offsets, self.page),
            None => vec![Vec::new(); offsets.len()],
        }
    }

    /// What of these pages is in memory; `None` if the kernel does not tell us, for it tells
    /// only those who might write to the file.
    fn resident(&self, offsets: &[u64]) -> io::Result<Option<Vec<view::Resident>>> {
        if !cache::may_look(self.file.file()) {
            return Ok(None);
        }
        let view = self.view(offsets, Advice::Random)?;
        Ok((0..offsets.len()).map(|i| view.resident(i, self.base).ok()).collect())
    }

    /// What is not in memory must fit into what is left of it.
    fn memory_short(&self, offsets: &[u64]) -> io::Result<Fate> {
        let resident = self.resident(offsets)?;
        let absent = |i: &usize| resident.as_ref().is_none_or(|r| !r[*i].any);
        let need = (0..offsets.len()).filter(absent).count() as u64 * self.page.bytes();
        if need == 0 {
            return Ok(None);
        }
        let left = machine::memory_left_here();
        Ok((need > left).then_some(Obstacle::MemoryShort { left, need }))
    }

    fn check_batch(&mut self, offsets: &[u64]) -> io::Result<Vec<Fate>> {
        let Some(resident) = self.resident(offsets)? else {
            return Ok(vec![Some(Obstacle::NotOwner); offsets.len()]);
        };
        // Touching what is in memory reads nothing, not even ahead.
        let view = self.view(offsets, Advice::Random)?;
        (0..offsets.len()).filter(|&i| resident[i].first).for_each(|i| drop(view.populate(i, self.base)));
        let found = self.huge(&view);
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

fn failed(call: &'static str, error: &io::Error) -> Obstacle {
    Obstacle::Failed { call, error: error.to_string() }
}

/// What a touch would have met as SIGBUS: the file has become shorter.
fn read_failed(error: &io::Error) -> Obstacle {
    if error.raw_os_error() == Some(libc::EFAULT) { Obstacle::Changed } else { failed("madvise", error) }
}
