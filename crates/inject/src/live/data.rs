// SPDX-License-Identifier: Apache-2.0
//! Replaces data that the threads write to all the time, a piece at a time, with all threads stopped:
//!
//! ```text
//!   all run      copy the piece, compare, copy what has changed
//!   all stopped  compare, copy what has changed, MADV_DOFORK, mremap over the piece
//! ```
//!
//! The tracer may be killed at any moment, and the kernel then lets all threads go. So each of them has registers
//! with which it waits for a word in memory ([`Stub::Waiting`](crate::lent::Stub)), and the leader, the lent
//! thread that makes the calls, sets this word behind its call:
//!
//! ```text
//!   tracer   stop leader | stop others | copy | registers for mremap |          | let others go | give leader back
//!   leader                                                           | mremap   | word = 1
//!   others               ( each: own code ----> waits for the word --------------------> own code )
//! ```
//!
//! Until the registers for mremap are loaded, its death lets the leader set the word and nothing is replaced. From
//! then on the leader makes the call first. In no case does a thread write to the old bytes after they were copied
//! for the last time and before they are replaced.
//!
//! The bytes are compared. To find out what was written by the page tables (soft-dirty, `PAGEMAP_SCAN` with write
//! protection) would need every page to be write-protected while the program runs, which then pays a fault for
//! each page that it writes to. Comparing a piece takes less time than the stop itself.

use super::came::{Came, came_of, not_now};
use super::others::Others;
use super::piece::Piece;
use super::urgent::Urgent;
use super::writers::Writers;
use super::{LIFTS_DATA, Live, PAUSE, RETURN, late};
use crate::calls::mremap_call;
use crate::filter::Known;
use crate::lent::{Lent, NotLent};
use crate::ptrace::{Error, Tid};
use crate::threads;
use hugelift_core::maps::Mapping;
use hugelift_core::target::Fault;
use hugelift_linux::faultpoint;
use hugelift_linux::proc::procfs::Process;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long to wait for a moment in which all threads can be stopped, for one process.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often all threads are stopped for nothing, at most.
const IN_VAIN: u32 = 10;

/// How long the threads are sampled before one is lent, and again while it is.
const SAMPLING: Duration = Duration::from_millis(50);
const LAST_SAMPLING: Duration = Duration::from_micros(500);

/// The most passes over a piece while the program runs. A pass that finds little changed is the last one.
const PASSES: u32 = 3;

impl Live {
    /// Replaces a piece as soon as all threads can be stopped.
    pub(super) fn replace_data(&mut self, piece: &mut Piece, expected: &Mapping) -> Result<Came, Fault> {
        if !LIFTS_DATA {
            let why = "not supported on this architecture: hugelift cannot resume each thread from any place in its code";
            return Ok(Came::Never(why.into()));
        }
        let began = Instant::now();
        let limit = PATIENCE.saturating_sub(self.written.waited);
        piece.copy_first(self)?;
        let came = loop {
            match self.try_data(piece, expected)? {
                Came::NotNow(_) if began.elapsed() < limit && self.written.in_vain < IN_VAIN => {
                    std::thread::sleep(PAUSE * (1 << self.written.in_vain.min(6)));
                }
                came => break came,
            }
        };
        if came != Came::Replaced {
            self.written.waited += began.elapsed();
        }
        Ok(came)
    }

    fn try_data(&mut self, piece: &mut Piece, expected: &Mapping) -> Result<Came, Fault> {
        let pid = self.pid;
        let is_filtered = || {
            Process::new(pid.cast_unsigned()).status().is_ok_and(|s| s.seccomp.is_some_and(|mode| mode != 0))
        };
        if self.takes_filtered && is_filtered() {
            let why = "it is under a seccomp filter that is not asked (--seccomp try): if the filter ended one thread, \
                       the others would wait for it";
            return Ok(Came::Never(why.into()));
        }
        self.late.retain(|tid| late::release(pid, *tid, self.watch.timed(*tid)));
        if let Some(tid) = self.late.first() {
            return Ok(not_now(Error::Late(*tid).into()));
        }
        let filters = match self.filters_of_all() {
            Ok(filters) => filters,
            Err(why) => return Ok(not_now(why)),
        };
        if let Err(why) = self.written.samples.take(pid, None, &mut self.watch, SAMPLING) {
            return Ok(not_now(why));
        }
        let region = match self.region()? {
            Ok(region) => region,
            Err(came) => return Ok(came),
        };
        for _ in 0..PASSES {
            let changed = piece.catch_up(self)?;
            if piece.is_calm(changed) {
                break;
            }
        }
        // As late as possible: what is opened from here on is checked when all are stopped.
        let writers = match Writers::none(pid) {
            Ok(writers) => writers,
            Err(writer) if writer.passes => return Ok(Came::NotNow(writer.why)),
            Err(writer) => return Ok(Came::Never(writer.why)),
        };
        let mut samples = std::mem::take(&mut self.written.samples);
        let urgent = Urgent::new();
        let came = match self.find(region.slot(0)) {
            Err(why) => came_of(why),
            Ok(mut leader) => {
                let sampled = samples.take(pid, leader.tid(), &mut self.watch, LAST_SAMPLING);
                let others = Others { samples: &samples, filters, region, stopped: Vec::new() };
                let worked = match sampled {
                    Err(why) => Ok(Ok(not_now(why))),
                    Ok(()) => self.with_others(&mut leader, others, writers, piece, expected),
                };
                let came = self.give_back(leader, worked, urgent).unwrap_or_else(came_of);
                // Nothing is printed while threads are stopped: whoever reads it may be one of them.
                let (gathered, replaced, released) = self.written.times;
                tracing::debug!(?gathered, ?replaced, ?released, ?came, "stopped all threads");
                came
            }
        };
        self.written.samples = samples;
        came
    }

    /// Stops the other threads, replaces the piece and lets them go on.
    ///
    /// # Errors
    /// The outer error is that the leader did not come back; the others then go on when it has set the word.
    fn with_others(
        &mut self,
        leader: &mut Lent,
        mut others: Others<'_>,
        writers: Writers,
        piece: &mut Piece,
        expected: &Mapping,
    ) -> Result<Result<Came, Fault>, Error> {
        let region = others.region;
        let began = Instant::now();
        let tid = leader.tid().ok_or(Error::Vanished(self.pid))?;
        let stopped = self.stop_others(tid, &mut others);
        let gathered = began.elapsed();
        let _ = self.deadline.renew(faultpoint::patience(RETURN));
        let made = match stopped {
            Err(why) => Ok(Ok(not_now(why))),
            Ok(()) => self.replace_now(leader, writers, piece, expected),
        };
        let replaced = began.elapsed();
        match &made {
            Ok(_) => {}
            // It cannot set the word any more, or does not run the code that would.
            Err(Error::Vanished(_) | Error::Raised { .. }) => {
                let _ = self.set_word(region, 1);
                self.let_go(others.stopped);
                return made;
            }
            Err(_) => {
                others.stopped.into_iter().for_each(Lent::leave);
                return made;
            }
        }
        // Should the tracer die now, those that were not let go yet find the word.
        let _ = self.set_word(region, 1);
        self.let_go(others.stopped);
        let took = began.elapsed();
        self.written.times = (gathered, replaced, took);
        self.stops.all += 1;
        self.stops.longest_of_all = self.stops.longest_of_all.max(took);
        self.written.in_vain += u32::from(!matches!(made, Ok(Ok(Came::Replaced))));
        made
    }

    /// Replaces the piece while nobody runs.
    fn replace_now(
        &mut self,
        leader: &mut Lent,
        mut writers: Writers,
        piece: &mut Piece,
        expected: &Mapping,
    ) -> Result<Result<Came, Fault>, Error> {
        let began = Instant::now();
        if let Err(writer) = writers.still_none() {
            return Ok(Ok(Came::NotNow(writer.why)));
        }
        if !self.mappings.has(expected) {
            return Ok(Ok(Came::Never("it has another protection now, or is another mapping".into())));
        }
        let checked = began.elapsed();
        if let Err(fault) = piece.catch_up_at_last(self.pid) {
            return Ok(Ok(Came::Never(fault.to_string())));
        }
        tracing::debug!(?checked, copied = ?began.elapsed(), "all threads are stopped");
        put_in_place(leader, piece).map(Ok)
    }

    /// Returns what is known of the seccomp filters of each thread.
    ///
    /// # Errors
    /// One forbids the calls, or may do so.
    fn filters_of_all(&self) -> Result<BTreeMap<Tid, Known>, NotLent> {
        let all = threads::list(self.pid)?.into_iter();
        let known = |tid| self.known_filters(tid).map_err(|forbids| NotLent::Filtered(tid, forbids));
        all.map(|tid| Ok((tid, known(tid)?))).collect()
    }
}

/// Moves the copy over the piece. A child that is forked from then on inherits the copy. A child that is forked earlier must
/// not: it would share the huge pages, and a write would split them.
fn put_in_place(leader: &mut Lent, piece: &Piece) -> Result<Came, Error> {
    let inherit = [piece.from.start.0, piece.from.len(), libc::MADV_DOFORK as u64, 0, 0, 0];
    if let errno @ -4095..0 = leader.call(libc::SYS_madvise, inherit)? {
        let why = std::io::Error::from_raw_os_error(-errno as i32);
        return Ok(Came::Never(format!("madvise(MADV_DOFORK) of {}: {why}", piece.from)));
    }
    // From here on the leader replaces the piece and sets the word, whether the tracer lives or not.
    let (number, args) = mremap_call(piece.from, piece.over.start);
    let Err(errno) = result_of(leader.call(number, args)?) else { return Ok(Came::Replaced) };
    // The kernel may have unmapped the old bytes before it ran out of memory (mm/mremap.c, `mremap_to`). Then less is
    // needed the second time. If that fails too, the program gets its bytes on small pages.
    if result_of(leader.call(number, args)?).is_ok() {
        return Ok(Came::Replaced);
    }
    const FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let (len, prot) = (piece.over.len(), (libc::PROT_READ | libc::PROT_WRITE) as u64);
    let anew = [piece.over.start.0, len, prot, FLAGS as u64, u64::MAX, 0];
    let error = std::io::Error::from_raw_os_error;
    let now = match result_of(leader.call(libc::SYS_mmap, anew)?) {
        Ok(_) => match leader.write(piece.over.start, piece.copy()) {
            Ok(()) => "it is on small pages again".into(),
            Err(why) => format!("what it held could not be written back: {why}"),
        },
        Err(libc::EEXIST) => "it is as it was".into(),
        Err(errno) => format!("the kernel has unmapped it, and mmap(2) failed: {}", error(errno)),
    };
    let hint = if errno == libc::ENOMEM { " (wc -l /proc/PID/maps, vm.max_map_count)" } else { "" };
    Ok(Came::Never(format!("mremap(2) over {}: {}{hint}; {now}", piece.over, error(errno))))
}

/// Returns the errno of a failed call.
fn result_of(value: i64) -> Result<i64, i32> {
    if let errno @ -4095..0 = value { Err(-errno as i32) } else { Ok(value) }
}
