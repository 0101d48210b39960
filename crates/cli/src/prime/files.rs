// SPDX-License-Identifier: Apache-2.0
//! Primes files, or checks them, and reports each.

use super::wanted::{Item, Wanted};
use hugelift_core::addr::{Addr, PageSize, Range, human_bytes};
use hugelift_core::maps::Mapping;
use hugelift_core::policy::ObjectFilter;
use hugelift_core::prime::{FileReport, Keeps, Obstacle, PrimeReport};
use hugelift_core::printable::Escape as _;
use hugelift_linux::machine::memory_left_here;
use hugelift_linux::proc::pidfd::{pidfd_open, process_madvise};
use hugelift_pages::pagecache::prime::{CacheFile, MappedBy, Pace, Primer, fits, huge_page, is_memory};
use std::os::fd::OwnedFd;

/// How much of a mapping is mapped anew in one stop of a thread, which takes about a millisecond.
const TOGETHER: u64 = 128 << 20;

/// The most parts of mappings that are mapped anew at once. A process may have made its mappings so that it takes for ever.
const MOST_PARTS: usize = 4096;
/// The most mappings whose addresses fit no huge page that are named.
const NAMED: usize = 8;

/// Primes files one after the other.
pub(super) struct FilePrimer {
    page: Result<PageSize, Obstacle>,
    /// Changes nothing.
    is_check: bool,
    pace: Pace,
    edges: Primer,
    /// The process that gives up its pages of data files.
    process: Option<(u32, OwnedFd)>,
}

impl FilePrimer {
    /// Primes by huge pages of this size, or says of each file why there are none.
    pub fn new(page: Result<PageSize, Obstacle>, is_check: bool, pace: Pace) -> FilePrimer {
        FilePrimer { page, is_check, pace, edges: Primer::default(), process: None }
    }

    /// Primes or checks a file.
    pub fn treat(&mut self, item: &Item) -> FileReport {
        match (item, &self.page) {
            (Item::Unreadable(report), _) => report.clone(),
            (Item::File { file, .. }, Err(obstacle)) => file.blocked(obstacle),
            (Item::File { file, .. }, Ok(page)) if self.is_check => {
                FileReport { edges: self.edges.prime(file, *page, None), ..file.check(*page) }
            }
            (Item::File { file, mappings, .. }, Ok(page)) => self.prime(file, *page, mappings),
        }
    }

    /// Primes the whole huge pages of a file, which the process has mapped there, then its edges.
    pub fn prime(&mut self, file: &CacheFile, page: PageSize, mappings: &[Mapping]) -> FileReport {
        let process = self.process.as_ref().map(|(pid, process)| (*pid, process));
        let by = process.and_then(|process| MappedBy::new(process, mappings, page).ok().flatten());
        let report = file.prime(page, &mut self.pace, by.as_ref());
        let pace = may_improve(&report).then_some(&mut self.pace);
        FileReport { edges: self.edges.prime(file, page, pace), ..report }
    }
}

/// Returns whether the edges of a file may get large folios, after its whole huge pages were primed.
fn may_improve(report: &FileReport) -> bool {
    let forbids = |obstacle: &Obstacle| {
        matches!(
            obstacle,
            Obstacle::NoLargeFolios(_)
                | Obstacle::MemoryShort { .. }
                | Obstacle::OverBudget { .. }
                | Obstacle::Pressure(_)
        )
    };
    !report.obstacles().iter().any(|(_, blocked)| forbids(&blocked.obstacle))
}

/// What became of the files that a process has mapped.
pub(crate) struct OfProcess {
    pub report: PrimeReport,
    /// Why it has no huge pages of files that have some, a line each.
    pub notes: Vec<String>,
    /// Where it maps data files that are on huge pages now, and shows the pages of the page cache.
    pub to_map_anew: Vec<Mapping>,
}

/// Primes the files that a process has mapped, or checks them. It gives up what it has mapped of data files, so that they can be
/// read in anew. Files in tmpfs are left out: they are the memory of their processes, which the part `shm` takes. So are those that
/// `objects` does not take. `still` checks that the process is the one that is meant.
///
/// # Errors
/// One line: the process cannot be read, or has ended.
pub(crate) fn of_process(
    pid: u32,
    is_check: bool,
    objects: &ObjectFilter,
    still: impl Fn() -> Result<(), String>,
) -> Result<OfProcess, String> {
    let process = pidfd_open(pid).map_err(|error| format!("pidfd_open: {error}"))?;
    let mut wanted = Wanted::new(false);
    wanted.add_process(pid).map_err(|error| error.to_string())?;
    // What was opened and read meanwhile was this process's.
    still()?;
    wanted.items.retain(|item| objects.takes_path(item.path()));
    wanted.items.retain(
        |item| !matches!(item, Item::File { file: CacheFile::Data(file), .. } if is_memory(file.file())),
    );
    // The kernel checks the right to ask before it reads which memory is meant.
    let may_ask = !is_check && process_madvise(&process, None, libc::MADV_PAGEOUT).is_ok();
    let page = huge_page();
    let mut notes = page.as_ref().map(|page| misplaced(&wanted.items, *page)).unwrap_or_default();
    let pace = Pace::new(memory_left_here() / 2, None);
    let mut primer =
        FilePrimer { process: Some((pid, process)), ..FilePrimer::new(page.clone(), is_check, pace) };
    let mut to_map_anew = Vec::new();
    let mut files = Vec::new();
    for item in wanted.items {
        let report = match (primer.treat(&item), &page) {
            (report, Ok(page)) if may_ask && !report.is_huge() => {
                keeps(mappings_of(&item), *page).map_or(report.clone(), |why| report.kept_by(pid, why))
            }
            (report, _) => report,
        };
        if let (Ok(page), false) = (&page, is_check) {
            to_map_anew
                .extend(mappings_of(&item).iter().flat_map(|mapping| huge_parts(mapping, &report, *page)));
        }
        files.push(report);
    }
    let left = to_map_anew.len().saturating_sub(MOST_PARTS);
    if left > 0 {
        to_map_anew.truncate(MOST_PARTS);
        notes.push(format!(
            "{left} parts of its mappings stay on small pages: not more than {MOST_PARTS} are mapped anew at once; run hugelift again"
        ));
    }
    Ok(OfProcess { report: PrimeReport::new(page.ok(), files), notes, to_map_anew })
}

/// Returns why a process that has these mappings of a data file keeps small pages of it, if it does; `None` if it has none. What is
/// smaller than a huge page decides nothing.
fn keeps(mappings: &[Mapping], page: PageSize) -> Option<Keeps> {
    let mut large: Vec<&Mapping> = mappings.iter().filter(|one| one.range.len() >= page.bytes()).collect();
    large.sort_by_key(|one| one.offset);
    let mut end = 0;
    let is_twice = large.iter().any(|one| {
        let is_shown = one.offset < end;
        end = end.max(one.offset.saturating_add(one.range.len()));
        is_shown
    });
    match &large[..] {
        [] => None,
        all if all.iter().any(|one| !one.shared && one.prot.write) => Some(Keeps::PrivateWritable),
        all if all.iter().any(|one| !fits(one, page)) => Some(Keeps::Misplaced),
        _ if is_twice => Some(Keeps::MappedTwice),
        _ => Some(Keeps::Unknown),
    }
}

/// Returns where the process maps a data file.
fn mappings_of(item: &Item) -> &[Mapping] {
    match item {
        Item::File { mappings, .. } => mappings,
        Item::Unreadable(_) => &[],
    }
}

/// Returns the parts of a mapping, of shared or read-only memory, that show huge pages of the file and have their addresses. Each is
/// as large as possible, and has at most [`TOGETHER`] bytes.
fn huge_parts(mapping: &Mapping, report: &FileReport, page: PageSize) -> Vec<Mapping> {
    if !mapping.shared && mapping.prot.write || !fits(mapping, page) {
        return Vec::new();
    }
    let at = |offset: u64| mapping.range.start.0.checked_add(offset.checked_sub(mapping.offset)?);
    let mut parts: Vec<Range> = Vec::new();
    for start in report.huge_pages.iter().filter_map(|offset| at(*offset)) {
        let Some(huge) = Range::sized(Addr(start), page.bytes()).filter(|huge| mapping.range.covers(*huge))
        else {
            continue;
        };
        match parts.last_mut() {
            Some(last) if last.end == huge.start && last.len() < TOGETHER => last.end = huge.end,
            _ => parts.push(huge),
        }
    }
    parts.into_iter().filter_map(|part| mapping.within(part)).collect()
}

/// Returns a line for each of the first mappings of a data file whose address fits no huge page of the file.
fn misplaced(items: &[Item], page: PageSize) -> Vec<String> {
    let large = items.iter().flat_map(mappings_of).filter(|mapping| mapping.range.len() >= page.bytes());
    let misplaced = large.filter(|mapping| !fits(mapping, page));
    let line = |mapping: &Mapping| {
        format!(
            "{}: {} are mapped at {}, where no huge page of the file fits: address and file offset differ modulo {page}; the kernel \
             places a new mapping of this size better on ext4 and XFS",
            mapping.path.escaped(),
            human_bytes(mapping.range.len()),
            mapping.range.start
        )
    };
    misplaced.take(NAMED).map(line).collect()
}
