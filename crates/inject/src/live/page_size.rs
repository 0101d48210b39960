// SPDX-License-Identifier: Apache-2.0
//! Maps the same bytes by huge pages or by small ones.
//!
//! *A copy of a file* stays where it is: the page tables alone change, which takes less than a millisecond for 64 MB.
//!
//! *Anonymous memory*, a copy or the program's own, is split without moving a byte too: the kernel splits a huge page when a
//! mapping ends within it (`vma_adjust_trans_huge` in mm/huge_memory.c). It becomes huge again by `MADV_COLLAPSE`, which copies
//! it: about 0.3 ms for 2 MB.

use super::read_only::{FORBIDDEN, OTHER, WRITTEN};
use super::{Live, Pages};
use crate::calls::Calls as _;
use crate::lent::NotLent;
use crate::planned::has_file;
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::maps::Mapping;
use hugelift_core::target::Fault;
use hugelift_linux::machine::{base_page, thp_page};
use hugelift_linux::proc::pagemap;
use std::rc::Rc;

/// `MADV_POPULATE_READ` (Linux 5.14), which is not in the C library of every target.
const POPULATE_READ: u64 = 22;

/// How many huge pages one call makes, or one stop of a thread splits. ctrl-C waits for the end of such a call. To split
/// one huge page takes some microseconds.
const TOGETHER: usize = 64;

/// The advice (madvise(2)) by which the huge pages of a mapping are split, and the advice that the mapping has afterwards.
struct Advice {
    sweeping: u64,
    at_last: u64,
    /// The advice that is given before the mapping is made huge again.
    to_be_huge: Option<u64>,
}

impl Advice {
    /// For a copy: the kernel does not make it huge by itself.
    const OF_COPY: Advice = Advice {
        sweeping: libc::MADV_NOHUGEPAGE as u64,
        at_last: libc::MADV_NOHUGEPAGE as u64,
        to_be_huge: Some(libc::MADV_HUGEPAGE as u64),
    };
    /// For memory of the program, which has no advice of this kind before and afterwards: it is about the order in which pages
    /// are read from a file or from swap space. Advice about huge pages could not be taken back.
    const OF_MEMORY: Advice =
        Advice { sweeping: libc::MADV_RANDOM as u64, at_last: libc::MADV_NORMAL as u64, to_be_huge: None };

    fn of(mapping: &Mapping) -> Advice {
        if mapping.prot.write { Advice::OF_MEMORY } else { Advice::OF_COPY }
    }
}

impl Live {
    /// Maps the bytes of this private mapping, which may be a part of one, by pages of the other size. A file's mapping is
    /// changed only if it cannot be written to. A copy keeps the advice for such pages (`MADV_HUGEPAGE` or `MADV_NOHUGEPAGE`),
    /// and writable memory keeps what it had, where that was neither `MADV_RANDOM` nor `MADV_SEQUENTIAL`. If the process has
    /// forbidden huge pages to itself, they are allowed meanwhile.
    ///
    /// # Errors
    /// [`Fault::Kept`] if it is not such a mapping any more; [`Fault::Call`] if madvise(2) fails; [`Fault::Lost`].
    pub fn map_by(&mut self, expected: &Mapping, pages: Pages) -> Result<(), Fault> {
        let of_file = has_file(expected);
        if expected.shared || of_file && expected.prot.write {
            return Err(Fault::Kept(OTHER.into()));
        }
        let range = expected.range;
        match (of_file, pages) {
            (true, Pages::Small) => self.map_file_by(expected, libc::MADV_NOHUGEPAGE),
            (true, Pages::Huge) => {
                self.with_thp(range, |live| live.map_file_by(expected, libc::MADV_HUGEPAGE))
            }
            (false, Pages::Small) => {
                let advice = Advice::of(expected);
                chunks(expected).into_iter().try_for_each(|chunk| self.split(&chunk, &advice))
            }
            (false, Pages::Huge) => self.with_thp(range, |live| live.join(expected, &Advice::of(expected))),
        }
    }

    /// Splits the huge pages of an anonymous mapping. The mapping with the sweeping advice grows from its start to its end, and
    /// ends once within each huge page.
    fn split(&mut self, expected: &Mapping, advice: &Advice) -> Result<(), Fault> {
        let (mappings, range) = (Rc::clone(&self.mappings), expected.range);
        let advise = |end: Addr, advice: u64| {
            (libc::SYS_madvise, [range.start.0, end.0 - range.start.0, advice, 0, 0, 0])
        };
        let within = blocks(range).map(|block| Addr(block.start.0 + base_page().bytes()));
        let mut why = None;
        let made = self.borrow(|lent| {
            why = (!mappings.has_part(expected)).then_some(OTHER);
            if why.is_some() {
                return Ok(0);
            }
            let mut swept = 0;
            for end in within.take_while(|end| *end < range.end) {
                let (number, args) = advise(end, advice.sweeping);
                swept = lent.call(number, args)?;
                if swept < 0 {
                    break;
                }
            }
            // Whatever came of the others, the mapping is to have one advice.
            let (number, args) = advise(range.end, advice.at_last);
            let last = lent.call(number, args)?;
            why = lent.refused().is_some().then_some(FORBIDDEN);
            Ok(swept.min(last))
        });
        outcome(made, why, range)
    }

    /// Makes the pages of an anonymous mapping huge. The program may have released some of its memory, which stays as it is.
    fn join(&mut self, expected: &Mapping, advice: &Advice) -> Result<(), Fault> {
        let range = expected.range;
        if !self.mappings.has_part(expected) {
            return Err(Fault::Kept(OTHER.into()));
        }
        if let Some(advice) = advice.to_be_huge {
            let args = [range.start.0, range.len(), advice, 0, 0, 0];
            self.call("madvise(MADV_HUGEPAGE)", range, libc::SYS_madvise, args)?;
        }
        let (mut first, mut joined) = (None, false);
        // The kernel prepares each call, whatever its length.
        let many: Vec<Range> = blocks(range).collect();
        for blocks in many.chunks(TOGETHER) {
            let (Some(start), Some(end)) = (blocks.first(), blocks.last()) else { continue };
            let all = Range { start: start.start, end: end.end };
            if matches!(self.collapse_outside(all), Some(Ok(()))) {
                joined = true;
                continue;
            }
            for block in blocks {
                match self.collapse_somehow(*block) {
                    Ok(()) => joined = true,
                    Err(lost @ Fault::Lost(_)) => return Err(lost),
                    Err(fault) if !expected.prot.write => return Err(fault),
                    Err(fault) => first = first.or(Some(fault)),
                }
            }
        }
        first.filter(|_| !joined).map_or(Ok(()), Err)
    }

    /// Drops the pages of a private mapping of a file from the page tables (`MADV_DONTNEED`, which for such a mapping brings the
    /// file's bytes back), and maps them again. That is done only if none of its pages was written to: their bytes would be
    /// lost. It is checked when the lent thread has entered the kernel for the call.
    fn map_file_by(&mut self, expected: &Mapping, advice: i32) -> Result<(), Fault> {
        let (pid, mappings, range) = (self.pid, Rc::clone(&self.mappings), expected.range);
        let madvise = |advice: u64| (libc::SYS_madvise, [range.start.0, range.len(), advice, 0, 0, 0]);
        let mut why = None;
        let made = self.borrow(|lent| {
            // A mapping that stays as it is keeps its advice, too.
            why = match (mappings.has_part(expected), pagemap::is_written(pid, range)) {
                (false, _) => Some(OTHER),
                (true, Ok(false)) => None,
                (true, _) => Some(WRITTEN),
            };
            if why.is_some() {
                return Ok(0);
            }
            let (number, args) = madvise(advice as u64);
            let advised = lent.call(number, args)?;
            let (number, args) = madvise(libc::MADV_DONTNEED as u64);
            let dropped = match advised {
                0 => lent.call_unless(number, args, &mut || {
                    // In this order: who writes after the first check has made the memory writable before the second.
                    why = match (pagemap::is_written(pid, range), mappings.has_part(expected)) {
                        (_, false) => Some(OTHER),
                        (Ok(false), true) => None,
                        _ => Some(WRITTEN),
                    };
                    why.map(|_| libc::ESTALE)
                })?,
                refused => refused,
            };
            if lent.refused().is_some() {
                why = Some(FORBIDDEN);
            }
            if dropped == 0 {
                // Where the kernel does not know it, each page is mapped when it is touched.
                let (number, args) = madvise(POPULATE_READ);
                lent.call(number, args)?;
            }
            Ok(dropped)
        });
        outcome(made, why, range)
    }
}

/// Returns what became of calls in a borrowed thread: what it made them return last, or why they were not made.
pub(super) fn outcome(
    made: Result<i64, NotLent>,
    why: Option<&'static str>,
    range: Range,
) -> Result<(), Fault> {
    match (made, why) {
        (Err(why), _) if why.is_final() => Err(Fault::Lost(why.to_string())),
        (Err(why), _) => Err(Fault::Kept(format!("no thread of it could be borrowed: {why}"))),
        (Ok(_), Some(why)) => Err(Fault::Kept(why.into())),
        (Ok(errno @ -4095..0), None) => Err(Fault::Call { call: "madvise", range, errno: -errno as i32 }),
        (Ok(_), None) => Ok(()),
    }
}

/// Divides a mapping at huge pages.
fn chunks(mapping: &Mapping) -> Vec<Mapping> {
    let all: Vec<Range> = blocks(mapping.range).collect();
    let inner = all.iter().skip(TOGETHER).step_by(TOGETHER).map(|block| block.start);
    let ends = inner.chain([mapping.range.end]);
    let mut start = mapping.range.start;
    ends.filter_map(|end| mapping.within(Range { start: std::mem::replace(&mut start, end), end })).collect()
}

/// Returns the huge pages that lie in a range as a whole.
fn blocks(range: Range) -> impl Iterator<Item = Range> {
    let page = thp_page().unwrap_or(PageSize::MB2);
    let inner = range.inner(page);
    let starts = inner.map(|inner| (inner.start.0..inner.end.0).step_by(page.bytes() as usize));
    starts.into_iter().flatten().filter_map(move |start| Range::sized(Addr(start), page.bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::maps;

    #[test]
    fn chunks_cover_a_mapping_and_meet_at_huge_pages() {
        let page = thp_page().unwrap_or(PageSize::MB2).bytes();
        for (pages, before, after, count) in [(0, 1, 1, 1), (64, 0, 0, 1), (65, 1, 1, 2), (200, 3, 0, 4)] {
            let base = base_page().bytes();
            let (start, end) = (1000 * page - before * base, (1000 + pages) * page + after * base);
            let line = format!("{start:x}-{end:x} rw-p 00000000 00:00 0 \n");
            let mapping = maps::parse_maps(line.as_bytes()).expect("a mapping").remove(0);
            let chunks = chunks(&mapping);
            assert_eq!(chunks.len(), count, "{chunks:?}");
            let joints: Vec<_> =
                chunks.windows(2).map(|two| (two[0].range.end, two[1].range.start)).collect();
            assert!(joints.iter().all(|(end, start)| end == start && start.0 % page == 0), "{chunks:?}");
            let ends = (chunks[0].range.start.0, chunks[count - 1].range.end.0);
            assert_eq!(ends, (start, end));
        }
    }
}
