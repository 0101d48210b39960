// SPDX-License-Identifier: Apache-2.0
//! Finds the huge pages of a process that are mostly zeros, and gives the zeros back ([`hugelift_core::unused`]).
//!
//! *How*: `MADV_COLD` of one base page. A base page cannot be cold on its own within a huge page, so the kernel splits that, and
//! maps the zero page in place of each base page of zeros. It does so while the pages are unmapped: a thread that touches one of
//! them waits, about half a millisecond, and no thread is stopped. A huge page that a device or a system call uses is referenced
//! once more, and the kernel does not split it. So no byte is lost that is on its way into it, which `MADV_DONTNEED` of the
//! zeros could not ensure.
//!
//! The contents are read from outside, and compared with zero alone.

use crate::watcher::collapse::{Meter, areas};
use crate::watcher::process::Program;
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::attribute::Attribute;
use hugelift_core::collapse::{Area, Pages, Sharing};
use hugelift_core::snapshot::{Part, Snapshot};
use hugelift_core::unused::{Contents, GivenBack, Kept, Unused};
use hugelift_linux::machine::{base_page, thp_page};
use hugelift_linux::proc::memory::Reader;
use hugelift_linux::proc::pagemap;
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::proc::snapshot;
use std::cell::Cell;
use std::io;
use std::time::Duration;

/// The private memory that a program writes.
pub(crate) const PARTS: [Part; 5] = [Part::Data, Part::Bss, Part::Heap, Part::Stack, Part::Anon];
/// So many base pages are read at once.
const AT_ONCE: usize = 64;
/// A huge page that was in use gets so many turns, with a pause before each.
const ROUNDS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(5);
/// So many huge pages in a row show that the kernel keeps zeros.
const MISSES: u32 = 3;

/// Returns how much of the private memory of a process huge pages waste.
///
/// # Errors
/// One line: the process cannot be read, or the kernel does not show which memory is huge.
pub fn unused(pid: u32) -> Result<Unused, String> {
    let (program, snapshot) = open(Process::new(pid).with_memory().pid())?;
    let mut found = Unused::default();
    Search::new(&program, &snapshot, Limit::cpu(None, Addr(0)))?.visit(
        &mut found,
        &mut |_| Ok(()),
        &mut |_, _| {},
    )?;
    Ok(found)
}

/// Opens a process to read its memory.
pub(crate) fn open(pid: u32) -> Result<(Program, Snapshot), String> {
    let snapshot = snapshot::live(Some(pid), 0).map_err(|e| e.to_string())?;
    if snapshot.mappings.is_empty() {
        Process::new(pid).check_memory().map_err(|e| e.to_string())?;
        return Err("it has no memory of its own: it has ended, or it is a thread of the kernel".into());
    }
    let program = Program::open(pid).map_err(|e| format!("/proc/{pid}/pagemap: {e}"))?;
    Ok((program, snapshot))
}

/// How far a search may go.
pub(crate) struct Limit {
    /// What it takes, from when it began.
    pub(crate) meter: Meter,
    /// How much of that it may take; `None` for as much as it needs.
    pub(crate) most: Option<Duration>,
    /// It begins at this address.
    pub(crate) from: Addr,
}

impl Limit {
    /// Returns the limit of a search by CPU time of this thread.
    pub(crate) fn cpu(most: Option<Duration>, from: Addr) -> Limit {
        Limit { meter: Meter::cpu(), most, from }
    }

    fn is_reached(&self) -> bool {
        self.most.is_some_and(|most| self.meter.spent() > most)
    }
}

/// A huge page that is mostly zeros.
struct Sparse {
    range: Range,
    /// The first base page of zeros.
    zero: Range,
}

/// Reads the private memory of a process.
struct Search<'a> {
    program: &'a Program,
    reader: Reader,
    page: PageSize,
    areas: Vec<Area>,
    limit: Limit,
    /// Why the rest is not read.
    over: Cell<Option<Kept>>,
}

impl<'a> Search<'a> {
    fn new(program: &'a Program, snapshot: &Snapshot, limit: Limit) -> Result<Search<'a>, String> {
        let page = thp_page().ok_or("this kernel has no transparent huge pages")?;
        let reader = Reader::without_pins(Process::new(program.pid));
        let reader =
            reader.map_err(|e| format!("its memory cannot be read: {e}; run hugelift as root (sudo)"))?;
        let areas = areas(snapshot, &PARTS).into_iter().filter(|area| area.sharing == Sharing::Private);
        Ok(Search { program, reader, page, areas: areas.collect(), limit, over: Cell::new(None) })
    }

    /// Calls `each` with each huge page that is mostly zeros, and `kept` with memory that is not read.
    fn visit(
        &self,
        found: &mut Unused,
        each: &mut dyn FnMut(Sparse) -> Result<(), String>,
        kept: &mut dyn FnMut(Kept, Range),
    ) -> Result<(), String> {
        let mut buffer = vec![0; AT_ONCE * base_page().bytes() as usize];
        for area in &self.areas {
            let mut blocks = Vec::new();
            let inner = area.range.inner(self.page).unwrap_or_default();
            pagemap::huge_stretches(&self.program.pagemap, inner, false, &mut |range: Range| {
                blocks.extend(range.inner(self.page));
            })
            .map_err(|error| self.unseen(&error))?;
            if let Some(why) = refusal(area) {
                blocks.into_iter().for_each(|range| kept(why, range));
                continue;
            }
            for range in blocks.into_iter().flat_map(|stretch| self.pages_of(stretch)) {
                if range.start < self.limit.from {
                    continue;
                }
                if self.over.get().is_none() && self.limit.is_reached() {
                    self.over.set(Some(Kept::NoTime));
                }
                if let Some(why) = self.over.get() {
                    kept(why, range);
                    continue;
                }
                if !self.is_exclusive(range) {
                    kept(Kept::Shared, range);
                    continue;
                }
                // Memory that was unmapped meanwhile wastes nothing.
                let Some((contents, zero)) = self.contents(range, &mut buffer) else { continue };
                found.huge_bytes += range.len();
                if let Some(zero) = zero.filter(|_| contents.is_mostly_zero()) {
                    found.sparse_bytes += range.len();
                    found.zero_bytes += contents.zeros * base_page().bytes();
                    each(Sparse { range, zero })?;
                }
            }
        }
        Ok(())
    }

    /// Returns the huge pages of a stretch.
    fn pages_of(&self, stretch: Range) -> impl Iterator<Item = Range> + use<> {
        let bytes = self.page.bytes();
        (stretch.start.0..stretch.end.0)
            .step_by(bytes as usize)
            .filter_map(move |at| Range::sized(Addr(at), bytes))
    }

    /// Reads a huge page until it is known whether most of it is zeros. Returns also its first base page of zeros.
    fn contents(&self, range: Range, buffer: &mut [u8]) -> Option<(Contents, Option<Range>)> {
        let base = base_page().bytes();
        let mut contents = Contents { pages: range.len() / base, zeros: 0 };
        let (mut zero, mut read) = (None, 0);
        while read < contents.pages && read - contents.zeros < contents.pages.div_ceil(2) {
            let count = (contents.pages - read).min(AT_ONCE as u64);
            let bytes = &mut buffer[..(count * base) as usize];
            let at = Addr(range.start.0 + read * base);
            if self.reader.read(at, bytes).ok()? < bytes.len() {
                return None;
            }
            for (page, n) in bytes.chunks(base as usize).zip(read..) {
                if is_zero(page) {
                    contents.zeros += 1;
                    zero = zero.or_else(|| Range::sized(Addr(range.start.0 + n * base), base));
                }
            }
            read += count;
        }
        Some((contents, zero))
    }

    /// Returns whether no other process has any page of it.
    fn is_exclusive(&self, range: Range) -> bool {
        pagemap::is_exclusive(self.program.pid.cast_signed(), range).unwrap_or(false)
    }

    fn is_huge(&self, range: Range) -> bool {
        let mut bytes = 0;
        let found =
            pagemap::huge_stretches(&self.program.pagemap, range, false, &mut |r: Range| bytes += r.len());
        found.is_ok() && bytes == range.len()
    }

    /// Says why the kernel does not show which memory is huge.
    fn unseen(&self, error: &io::Error) -> String {
        let pid = self.program.pid;
        match error.raw_os_error() {
            Some(libc::ESRCH) => "it has ended, or has become another program (execve)".into(),
            Some(libc::ENOTTY) => "the kernel does not show which memory is huge (Linux 6.7 can)".into(),
            _ => format!("/proc/{pid}/pagemap: {error}; run hugelift as root (sudo)"),
        }
    }
}

/// Returns why nothing of an area is given back.
fn refusal(area: &Area) -> Option<Kept> {
    area.attributes.iter().find_map(|attribute| match attribute {
        Attribute::Locked => Some(Kept::Locked),
        Attribute::Watched => Some(Kept::Watched),
        // The zero page has no tags of its own.
        Attribute::Tagged => Some(Kept::Tagged),
        _ => None,
    })
}

fn is_zero(page: &[u8]) -> bool {
    let (words, rest) = page.as_chunks::<16>();
    words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && rest.iter().all(|byte| *byte == 0)
}

/// Gives back the zeros of the huge pages that are mostly zeros, as far as `limit` allows. `how` makes a base page cold, as by
/// madvise(2) in a thread of the process. It must be known that the kernel frees zeros, or `is_known` is false: then the first
/// huge page shows it.
///
/// # Errors
/// One line: the process cannot be read, or the kernel keeps the zeros.
pub(crate) fn give_back(
    program: &Program,
    snapshot: &Snapshot,
    limit: Limit,
    is_known: bool,
    how: &mut dyn FnMut(Range) -> io::Result<()>,
) -> Result<GivenBack, String> {
    let search = Search::new(program, snapshot, limit)?;
    let given = GivenBack::default();
    let mut split = Split { search: &search, how, is_known, misses: 0, given, again: Vec::new() };
    let (mut found, mut kept) = (Unused::default(), GivenBack::default());
    search.visit(&mut found, &mut |sparse| split.split(sparse), &mut |why, range| {
        if why == Kept::NoTime && kept.next.is_none() {
            kept.next = Some(range.start);
        }
        kept.keep(why, range.len());
    })?;
    for _ in 1..ROUNDS {
        let again = std::mem::take(&mut split.again);
        if again.is_empty() {
            break;
        }
        std::thread::sleep(PAUSE);
        again.into_iter().try_for_each(|sparse| split.split(sparse))?;
    }
    let Split { mut given, again, .. } = split;
    (given.found, given.next) = (found, kept.next);
    again.iter().for_each(|sparse| given.keep(Kept::InUse, sparse.range.len()));
    kept.kept.into_iter().filter(|(_, bytes)| *bytes > 0).for_each(|(why, bytes)| given.keep(why, bytes));
    Ok(given)
}

/// Splits huge pages.
struct Split<'a> {
    search: &'a Search<'a>,
    how: &'a mut dyn FnMut(Range) -> io::Result<()>,
    is_known: bool,
    /// How many huge pages were split and kept their zeros, while it is not known that the kernel frees them.
    misses: u32,
    given: GivenBack,
    /// Huge pages that were in use.
    again: Vec<Sparse>,
}

impl Split<'_> {
    fn split(&mut self, sparse: Sparse) -> Result<(), String> {
        let (program, range) = (self.search.program, sparse.range);
        match (self.how)(sparse.zero) {
            Ok(()) => {}
            Err(error) => match error.raw_os_error() {
                Some(libc::ESRCH) => return Err(self.search.unseen(&error)),
                Some(libc::EAGAIN | libc::EINTR) => {}
                // It was unmapped, or locked, since it was read.
                Some(libc::EINVAL | libc::ENOMEM) => {
                    self.given.keep(Kept::Changed, range.len());
                    return Ok(());
                }
                // A thread that cannot be borrowed now costs a wait for each further huge page.
                _ => {
                    tracing::debug!(%error, ?range, "cannot make a page of it cold");
                    self.search.over.set(Some(Kept::NoThread));
                    self.given.keep(Kept::NoThread, range.len());
                    return Ok(());
                }
            },
        }
        if self.search.is_huge(range) {
            self.again.push(sparse);
            return Ok(());
        }
        let entries =
            pagemap::entries(&program.pagemap, range).map_err(|error| self.search.unseen(&error))?;
        let pages = Pages::of(&entries);
        let freed = pages.all.saturating_sub(pages.own + pages.swapped);
        // The process may have filled a single one meanwhile.
        self.misses = if freed == 0 && !self.is_known { self.misses + 1 } else { 0 };
        if self.misses >= MISSES {
            return Err(KEEPS_ZEROS.into());
        }
        self.is_known |= freed > 0;
        self.given.split_bytes += range.len();
        self.given.freed_bytes += freed * base_page().bytes();
        Ok(())
    }
}

/// Said on a kernel that splits a huge page into small pages of zeros.
pub(crate) const KEEPS_ZEROS: &str = "this kernel keeps the zeros of a huge page that it splits, so nothing can be given back (Linux 6.12 frees them)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_32_4_one_byte_makes_a_page_no_zeros() {
        let mut page = vec![0; 4096];
        assert!(is_zero(&page));
        for at in [0, 1, 15, 16, 2048, 4095] {
            page[at] = 1;
            assert!(!is_zero(&page), "{at}");
            page[at] = 0;
        }
    }
}
