// SPDX-License-Identifier: Apache-2.0
//! Replaces memory that the program has written to, or writes to.
//!
//! **RELRO** is read-only while the program runs. It is replaced as code is, but its pages are no longer the
//! file's, so its bytes are compared with the copy once more while the lent thread is stopped.
//!
//! **Data** that is written all the time is replaced a piece at a time, with all threads stopped ([`Others`]):
//!
//! ```text
//!   all run      copy the piece, compare, copy what has changed
//!   all stopped  compare, copy what has changed, MADV_DOFORK, mremap over the piece
//! ```
//!
//! The bytes are compared. To find out what was written by the page tables (soft-dirty, `PAGEMAP_SCAN` with write
//! protection) would need every page to be write-protected while the program runs, which then pays a fault for
//! each page that it writes to. Comparing a piece takes less time than the stop itself.

use super::all::{self, Filters, Looks, Others};
use super::files::is_mapped_alike;
use super::writers::Writers;
use super::{Live, PAUSE};
use crate::arch;
use crate::machine::thp_page;
use crate::proc::memory;
use crate::trace::calls::{mremap_call, refused};
use crate::trace::filter::Known;
use crate::trace::lent::{Lent, NotLent};
use crate::trace::ptrace::{Error, Tid};
use crate::trace::waits::Watch;
use hugelift_core::addr::{Addr, Range};
use hugelift_core::maps::Mapping;
use hugelift_core::target::Fault;
use std::io;
use std::time::{Duration, Instant};

/// How long a moment is looked for in which all threads can be stopped, for one process.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often all threads are stopped for nothing, at most.
const IN_VAIN: u32 = 10;

/// Bytes that are replaced in one stop, unless a huge page has more.
const PIECE: u64 = 2 << 20;

/// Bytes that are compared, and copied if they differ, together.
const CHUNK: usize = 4096;

/// How long the threads are looked at before one is lent, and again while it is.
const LOOKS: Duration = Duration::from_millis(50);
const LAST_LOOKS: Duration = Duration::from_micros(500);

/// Passes over a piece while the program runs, at most; one that finds less than this share changed is the last.
const PASSES: u32 = 3;
const CALM: usize = 16;

/// What is known of memory that the program writes to.
#[derive(Default)]
pub(super) struct Written {
    /// The ranges that may be replaced although they are no longer their files'.
    ranges: Vec<Range>,
    /// When the threads were seen where a stop is not noticed.
    looks: Looks,
    /// How long such a moment was looked for so far.
    waited: Duration,
    /// How often all were stopped for nothing.
    in_vain: u32,
}

/// What became of an attempt.
enum Came {
    Replaced,
    /// The kernel refused a call: its name and errno.
    Refused(&'static str, i32),
    /// Nothing was done. A later attempt may succeed.
    NotNow(String),
    /// Nothing was done, and no later attempt helps.
    Never(String),
}

/// A piece that is replaced.
struct Piece {
    /// The copy.
    from: Range,
    /// What it replaces.
    over: Range,
    /// What the copy holds.
    copy: Vec<u8>,
    /// What the program's memory holds, as it was read last.
    seen: Vec<u8>,
}

impl Live {
    /// Names memory that may be replaced although the program has written to it.
    pub fn may_be_written(&mut self, ranges: impl IntoIterator<Item = Range>) {
        self.written.ranges.extend(ranges);
    }

    pub(super) fn is_written(&self, range: Range) -> bool {
        self.written.ranges.iter().any(|known| known.covers(range))
    }

    /// Returns whether the program may write to `range` now, so that a copy made now is not the last.
    pub(super) fn is_writable(&self, range: Range) -> bool {
        self.is_written(range) && self.planned.iter().any(|m| m.prot.write && m.range.covers(range))
    }

    /// Moves a copy over memory that was written to, piece by piece.
    pub(super) fn replace_written(&mut self, from: Range, to: Addr) -> Result<(), Fault> {
        let piece = thp_page().map_or(PIECE, |page| page.bytes().max(PIECE));
        let mut done = 0;
        while done < from.len() {
            let start = Addr(from.start.0 + done);
            let from = Range { start, end: Addr((start.0 + piece).min(from.end.0)) };
            let over = Range::sized(Addr(to.0 + done), from.len());
            let over = over.ok_or(Fault::Call { call: "mremap", range: from, errno: libc::EINVAL })?;
            self.replace_written_piece(from, over)?;
            done += from.len();
        }
        Ok(())
    }

    fn replace_written_piece(&mut self, from: Range, over: Range) -> Result<(), Fault> {
        let expected = self.planned.iter().find(|m| m.range.covers(over)).cloned();
        let expected = expected.ok_or_else(|| Fault::Kept("another mapping is there now".into()))?;
        let length = over.len() as usize;
        let mut piece = Piece { from, over, copy: vec![0; length], seen: vec![0; length] };
        let came = match expected.prot.write {
            true => self.replace_data(&mut piece, &expected)?,
            false => self.replace_relro(&mut piece, &expected)?,
        };
        match came {
            Came::Replaced => {
                self.forget(over);
                Ok(())
            }
            Came::Refused(call, errno) => Err(Fault::Call { call, range: from, errno }),
            Came::NotNow(why) | Came::Never(why) => Err(Fault::Kept(why)),
        }
    }

    /// Replaces memory that nobody writes to any more.
    fn replace_relro(&mut self, piece: &mut Piece, expected: &Mapping) -> Result<Came, Fault> {
        let pid = self.pid;
        read(pid, piece.from, &mut piece.copy)?;
        let made = self.borrow(|lent| {
            if !is_mapped_alike(pid, expected) {
                return Ok(Came::Never("it has another protection now, or is another mapping".into()));
            }
            match read(pid, piece.over, &mut piece.seen) {
                Ok(()) if piece.copy == piece.seen => put_in_place(lent, piece),
                Ok(()) => Ok(Came::Never("it was written to while it was copied".into())),
                Err(why) => Ok(Came::Never(why.to_string())),
            }
        });
        came_of(made)
    }

    /// Replaces memory that is written to, as soon as all threads can be stopped.
    fn replace_data(&mut self, piece: &mut Piece, expected: &Mapping) -> Result<Came, Fault> {
        if !arch::SHOWS_CALLS {
            let why = "on this architecture a stop of all threads could end a call of one with EINTR";
            return Ok(Came::Never(why.into()));
        }
        let began = Instant::now();
        let limit = PATIENCE.saturating_sub(self.written.waited);
        piece.copy_first(self)?;
        let came = loop {
            let came = self.try_data(piece, expected)?;
            match came {
                Came::NotNow(_) if began.elapsed() < limit && self.written.in_vain < IN_VAIN => {
                    std::thread::sleep(PAUSE * (1 << self.written.in_vain.min(6)));
                }
                other => break other,
            }
        };
        if !matches!(came, Came::Replaced) {
            self.written.waited += began.elapsed();
        }
        Ok(came)
    }

    fn try_data(&mut self, piece: &mut Piece, expected: &Mapping) -> Result<Came, Fault> {
        let pid = self.pid;
        self.late.retain(|tid| all::release_late(pid, *tid));
        if let Some(tid) = self.late.first() {
            return Ok(not_now(Error::Late(*tid).into()));
        }
        let writers = match Writers::none(pid) {
            Ok(writers) => writers,
            Err(writer) if writer.passes => return Ok(Came::NotNow(writer.why)),
            Err(writer) => return Ok(Came::Never(writer.why)),
        };
        if let Err(why) = self.written.looks.look(pid, None, &mut self.watch, LOOKS) {
            return Ok(not_now(why));
        }
        let is_filtered = |tid: &Tid| !matches!(self.known_filters(*tid), Ok(Known::None));
        let filters = match crate::trace::threads::list(pid) {
            Ok(all) if !all.iter().any(is_filtered) => Filters::None,
            _ => Filters::Some,
        };
        for _ in 0..PASSES {
            if piece.catch_up(self)? < piece.copy.len() / CALM {
                break;
            }
        }
        let looks = std::mem::take(&mut self.written.looks);
        let (mut late, mut stop) = (Vec::new(), None);
        let mut moment = Moment { pid, writers, looks, filters, late: &mut late, stop: &mut stop };
        let made = self.borrow_watching(|lent, watch| moment.replace(lent, watch, piece, expected));
        self.written.looks = moment.looks;
        self.late.extend(late);
        if let Some(stop) = stop {
            self.stops.all += 1;
            self.stops.longest_of_all = self.stops.longest_of_all.max(stop);
            self.written.in_vain += u32::from(!matches!(made, Ok(Came::Replaced)));
        }
        came_of(made)
    }
}

/// The moment in which all threads are stopped.
struct Moment<'a> {
    pid: i32,
    writers: Writers,
    looks: Looks,
    filters: Filters,
    late: &'a mut Vec<Tid>,
    /// How long it was.
    stop: &'a mut Option<Duration>,
}

impl Moment<'_> {
    fn replace(
        &mut self,
        lent: &mut Lent,
        watch: &mut Watch,
        piece: &mut Piece,
        expected: &Mapping,
    ) -> Result<Came, Error> {
        if let Err(why) = self.looks.look(self.pid, lent.tid(), watch, LAST_LOOKS) {
            return Ok(not_now(why));
        }
        let began = Instant::now();
        let came = match Others::stop(self.pid, lent.tid(), &self.looks, self.filters, self.late) {
            Ok(others) => {
                let gathered = began.elapsed();
                let came = self.replace_now(lent, piece, expected);
                let replaced = began.elapsed();
                others.release();
                tracing::debug!(?gathered, ?replaced, released = ?began.elapsed(), "stopped all threads");
                came
            }
            Err(why) => Ok(not_now(why)),
        };
        *self.stop = Some(began.elapsed());
        let came = came?;
        Ok(came)
    }

    /// Replaces the piece while nobody runs.
    fn replace_now(&mut self, lent: &mut Lent, piece: &mut Piece, expected: &Mapping) -> Result<Came, Error> {
        if let Err(writer) = self.writers.still_none() {
            return Ok(Came::NotNow(writer.why));
        }
        if !is_mapped_alike(self.pid, expected) {
            return Ok(Came::Never("it has another protection now, or is another mapping".into()));
        }
        match piece.catch_up_at_last(self.pid) {
            Ok(()) => put_in_place(lent, piece),
            Err(why) => Ok(Came::Never(why.to_string())),
        }
    }
}

impl Piece {
    /// Copies all of it.
    fn copy_first(&mut self, live: &Live) -> Result<(), Fault> {
        read(live.pid, self.over, &mut self.copy)?;
        live.write(self.from.start, &self.copy, self.from)
    }

    /// Copies what has changed, while the program runs. Returns how many bytes that were.
    fn catch_up(&mut self, live: &Live) -> Result<usize, Fault> {
        let from = self.from;
        self.update(live.pid, |at, bytes| live.write(at, bytes, from))
    }

    /// Copies what has changed, while nobody runs: no other process can have its id, as its stopped threads are
    /// this process's to wait for.
    fn catch_up_at_last(&mut self, pid: i32) -> Result<(), Fault> {
        let from = self.from;
        self.update(pid, |at, bytes| memory::write(pid, at, bytes).map_err(|e| refused("write", from, &e)))?;
        Ok(())
    }

    fn update(
        &mut self,
        pid: i32,
        mut write: impl FnMut(Addr, &[u8]) -> Result<(), Fault>,
    ) -> Result<usize, Fault> {
        read(pid, self.over, &mut self.seen)?;
        let mut changed = 0;
        for run in differences(&self.copy, &self.seen) {
            write(Addr(self.from.start.0 + run.start as u64), &self.seen[run.clone()])?;
            self.copy[run.clone()].copy_from_slice(&self.seen[run.clone()]);
            changed += run.len();
        }
        Ok(changed)
    }
}

/// Returns the stretches in which two slices of one length differ, in whole chunks.
fn differences(one: &[u8], other: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    for (index, (a, b)) in one.chunks(CHUNK).zip(other.chunks(CHUNK)).enumerate() {
        let start = index * CHUNK;
        match runs.last_mut() {
            _ if a == b => {}
            Some(last) if last.end == start => last.end += a.len(),
            _ => runs.push(start..start + a.len()),
        }
    }
    runs
}

/// Moves the copy over the piece. A child that is forked from then on inherits it: one that were forked earlier
/// would share its huge pages, and a write would split them.
fn put_in_place(lent: &mut Lent, piece: &Piece) -> Result<Came, Error> {
    let inherit = [piece.from.start.0, piece.from.len(), libc::MADV_DOFORK as u64, 0, 0, 0];
    if let errno @ -4095..0 = lent.call(libc::SYS_madvise, inherit)? {
        return Ok(Came::Refused("madvise(MADV_DOFORK)", -errno as i32));
    }
    let (number, args) = mremap_call(piece.from, piece.over.start);
    Ok(match lent.call(number, args)? {
        errno @ -4095..0 => Came::Refused("mremap", -errno as i32),
        _ => Came::Replaced,
    })
}

/// Fills `into` with the bytes of a range.
fn read(pid: i32, range: Range, into: &mut [u8]) -> Result<(), Fault> {
    let mut done = 0;
    while done < into.len() {
        let n = memory::read(pid, Addr(range.start.0 + done as u64), &mut into[done..])
            .and_then(|n| if n == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(n) });
        done += n.map_err(|e| refused("read", range, &e))?;
    }
    Ok(())
}

/// Says why nobody was stopped.
fn not_now(why: NotLent) -> Came {
    let words = format!("its threads could not all be stopped for a moment: {why}");
    match why {
        // A filter does not change, and a thread of the kernel or of another tracer stays one.
        NotLent::Filtered(..) => Came::Never(words),
        why if why.is_final() => Came::Never(words),
        _ => Came::NotNow(words),
    }
}

fn came_of(made: Result<Came, NotLent>) -> Result<Came, Fault> {
    match made {
        Ok(came) => Ok(came),
        Err(why) if !why.is_final() => Ok(not_now(why)),
        Err(why) => Err(Fault::Lost(why.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_whole_chunks_and_neighbours_are_joined() {
        let one = vec![0; 5 * CHUNK + 10];
        let mut other = one.clone();
        assert!(differences(&one, &other).is_empty());
        for at in [0, CHUNK + 5, 3 * CHUNK, 5 * CHUNK + 9] {
            other[at] = 1;
        }
        assert_eq!(
            differences(&one, &other),
            [0..2 * CHUNK, 3 * CHUNK..4 * CHUNK, 5 * CHUNK..5 * CHUNK + 10]
        );
    }
}
