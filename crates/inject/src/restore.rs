// SPDX-License-Identifier: Apache-2.0
//! Replaces the copies in a running process by the pages of the file.
//!
//! It maps the file at a free address first, and compares its bytes with the copy. Then it moves the mapping over the
//! copy.

use crate::calls::Calls as _;
use crate::live::Live;
use hugelift_core::addr::{Addr, Range};
use hugelift_core::attribute::Attribute;
use hugelift_core::maps::{Mapping, Prot};
use hugelift_core::printable::Untrusted;
use hugelift_core::restore::Replaced;
use hugelift_core::scratch::moved;
use hugelift_core::snapshot::{Object, Snapshot};
use hugelift_core::target::{Fault, Target, put_back};
use hugelift_linux::machine::base_page;
use hugelift_linux::proc::mapped::MappedFiles;
use hugelift_linux::proc::memory::Reader;
use hugelift_linux::proc::pagemap;
use hugelift_linux::proc::procfs::Process;
use std::fs::File;
use std::io;

/// Bytes that are compared at a time.
const CHUNK: usize = 256 << 10;

/// Why a copy stays.
#[derive(Debug, thiserror::Error)]
pub enum NotRestored {
    /// Its file cannot be opened, or the memory cannot be read.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: Untrusted,
        /// errno(3)
        source: io::Error,
    },
    /// The copy was written to, or the file has changed.
    #[error("the copy at {at} differs from {path}: one of them was written to")]
    Differs {
        /// The first byte that differs.
        at: Addr,
        /// The file.
        path: Untrusted,
    },
    /// The copy was sealed since it was made.
    #[error("it {}", Attribute::Sealed)]
    Sealed,
    /// A system call in the process failed.
    #[error("{0}")]
    Fault(#[from] Fault),
}

/// A target that can map files at free addresses.
pub trait Remap: Target {
    /// Maps `len` bytes of the file of an existing mapping from `offset` on at an address of the kernel's
    /// choice, and returns it. `page` is a page of that mapping, mapped from `page_offset`, which is not larger.
    ///
    /// # Errors
    /// [`Fault`]
    fn map_again(&mut self, page: Range, page_offset: u64, offset: u64, len: u64) -> Result<Range, Fault>;

    /// Maps `len` bytes of `file` from `offset` on at an address of the kernel's choice, and returns it.
    ///
    /// # Errors
    /// [`Fault`]
    fn map_file(&mut self, file: File, offset: u64, len: u64, prot: Prot) -> Result<Range, Fault>;

    /// Moves `mapped` over the copy at `over`, which is as long, if both hold the same bytes.
    ///
    /// # Errors
    /// [`NotPutBack`]
    fn put_back(&mut self, mapped: Range, over: Range) -> Result<(), NotPutBack>;
}

/// Why a file's pages were not moved over a copy.
#[derive(Debug)]
pub enum NotPutBack {
    /// At this address of the copy its bytes are others.
    Differs(Addr),
    /// One of the two cannot be read.
    Unreadable(io::Error),
    /// A system call in the process failed.
    Fault(Fault),
}

impl Remap for Live {
    fn map_again(&mut self, page: Range, page_offset: u64, offset: u64, len: u64) -> Result<Range, Fault> {
        Live::map_again(self, page, page_offset, offset, len)
    }

    fn map_file(&mut self, file: File, offset: u64, len: u64, prot: Prot) -> Result<Range, Fault> {
        let entry = self.offer(file);
        self.map_anywhere(entry, offset, len, prot)
    }

    fn put_back(&mut self, mapped: Range, over: Range) -> Result<(), NotPutBack> {
        let mut compare = Compare::new(Process::of(self.pid())).map_err(NotPutBack::Unreadable)?;
        match compare.first_difference(over, mapped) {
            Ok(None) => self.mremap(mapped, over.start).map_err(NotPutBack::Fault),
            Ok(Some(at)) => Err(NotPutBack::Differs(at)),
            Err(errno) => Err(NotPutBack::Unreadable(io::Error::from_raw_os_error(errno))),
        }
    }
}

/// Restores these copies, and returns the result of each. After [`Fault::Lost`] the rest is not tried.
pub fn restore(
    target: &mut impl Remap,
    process: Process,
    snapshot: &Snapshot,
    copies: &[Replaced],
) -> Vec<Result<(), NotRestored>> {
    let mut results = Vec::new();
    for copy in copies {
        let result = restore_one(target, process, snapshot, copy);
        let is_lost = matches!(result, Err(NotRestored::Fault(Fault::Lost(_))));
        results.push(result);
        if is_lost {
            break;
        }
    }
    results
}

fn restore_one(
    target: &mut impl Remap,
    process: Process,
    snapshot: &Snapshot,
    copy: &Replaced,
) -> Result<(), NotRestored> {
    let path = || Untrusted::from(&snapshot.objects[copy.object].path);
    let mut special = snapshot.special.iter();
    if special.any(|(range, what)| *what == Attribute::Sealed && range.intersect(copy.range).is_some()) {
        return Err(NotRestored::Sealed);
    }
    let mapped = map_file(target, process, snapshot, copy)?;
    let Err(why) = target.put_back(mapped, copy.range) else { return Ok(()) };
    let why = match why {
        NotPutBack::Fault(fault) => {
            if let Fault::Call { range: piece, .. } = fault
                && let Some(over) = moved(piece, mapped, copy.range.start).filter(|_| mapped.covers(piece))
            {
                put_back(target, piece, over.start, &[copy.range], copy.prot)?;
            }
            fault.into()
        }
        NotPutBack::Differs(at) => NotRestored::Differs { at, path: path() },
        NotPutBack::Unreadable(source) => NotRestored::File { path: path(), source },
    };
    Err(released(target, mapped, why))
}

/// Unmaps what is left of a mapping of the file, and returns why the copy stays.
fn released(target: &mut impl Remap, mapped: Range, why: NotRestored) -> NotRestored {
    if matches!(why, NotRestored::Fault(Fault::Lost(_))) {
        return why;
    }
    // If this fails, memory that nothing uses stays mapped. Why the copy stays is worth more.
    match target.release(mapped) {
        Err(lost @ Fault::Lost(_)) => lost.into(),
        _ => why,
    }
}

/// Maps the bytes of the file that `copy` hides at a free address.
fn map_file(
    target: &mut impl Remap,
    process: Process,
    snapshot: &Snapshot,
    copy: &Replaced,
) -> Result<Range, NotRestored> {
    let object = &snapshot.objects[copy.object];
    if let Some((page, offset, mapping)) = neighbour(process, snapshot, object, copy)
        && let Ok(mapped) = target.map_again(page, offset, copy.offset, copy.range.len())
    {
        match if mapping.prot == copy.prot { Ok(()) } else { target.mprotect(mapped, copy.prot) } {
            Ok(()) => return Ok(mapped),
            // What was not mapped as code may not become code (PR_SET_MDWE), but the file can be mapped as code.
            Err(Fault::Call { .. }) if copy.prot.exec && target.release(mapped).is_ok() => {}
            Err(fault) => return Err(released(target, mapped, fault.into())),
        }
    }
    let failed = |source| NotRestored::File { path: Untrusted::from(&object.path), source };
    let file = open_file(process, object, &snapshot.mappings).map_err(failed)?;
    Ok(target.map_file(file, copy.offset, copy.range.len(), copy.prot)?)
}

/// Returns a page of the same file that lies before the bytes of `copy` in it, with its offset and its
/// mapping: best the last one, of the same protection. A page that was written to is not the file's.
fn neighbour<'a>(
    process: Process,
    snapshot: &'a Snapshot,
    object: &Object,
    copy: &Replaced,
) -> Option<(Range, u64, &'a Mapping)> {
    let page = base_page().bytes();
    // The call that maps a page again would take the lock of mlock(2) from all of its mapping.
    let is_locked = |m: &Mapping| {
        snapshot.special.iter().any(|(range, what)| *what == Attribute::Locked && *range == m.range)
    };
    let mappings = snapshot.mappings.iter().filter(|m| !is_locked(m));
    let before = mappings.filter(|m| m.file == object.file && !m.shared && !m.prot.write);
    let last_page = |m: &'a Mapping| {
        let end = copy.offset.min(m.offset + m.range.len());
        let offset = end.checked_sub(page).filter(|offset| *offset >= m.offset)?;
        let range = Range::sized(Addr(m.range.start.0 + (offset - m.offset)), page)?;
        Some((range, offset, m))
    };
    let is_clean = |range: Range| {
        pagemap::written_bytes(process.pid().cast_signed(), range).is_ok_and(|bytes| bytes == 0)
    };
    let pages = before.filter_map(last_page).filter(|(range, ..)| is_clean(*range));
    pages.max_by_key(|(_, offset, m)| (m.prot == copy.prot, *offset))
}

/// Opens the file of an object: the very file that the process has mapped. The process gets it, so it must be no other.
fn open_file(process: Process, object: &Object, mappings: &[Mapping]) -> io::Result<File> {
    let found = MappedFiles::of(process).find_any(object.file, mappings)?;
    match found.proven {
        true => found.open(),
        false => Err(io::Error::from_raw_os_error(libc::ESTALE)),
    }
}

/// Compares memory of a process with other memory of it.
pub(crate) struct Compare {
    memory: Reader,
    here: Vec<u8>,
    there: Vec<u8>,
}

impl Compare {
    /// # Errors
    /// The memory of the process cannot be read.
    pub(crate) fn new(process: Process) -> io::Result<Compare> {
        let buffer = || vec![0; CHUNK];
        let memory = Reader::without_pins(process).or_else(|_| Reader::new(process))?;
        Ok(Compare { memory, here: buffer(), there: buffer() })
    }

    /// Returns the first address in `copy` at which it differs from `file`, which is as long. It allocates nothing.
    ///
    /// # Errors
    /// errno(3)
    pub(crate) fn first_difference(&mut self, copy: Range, file: Range) -> Result<Option<Addr>, i32> {
        let mut done = 0;
        while done < copy.len() {
            let want = CHUNK.min((copy.len() - done) as usize);
            let at = Addr(copy.start.0 + done);
            let here = &mut self.here[..want];
            let got = self.memory.read(at, here)?;
            let there = &mut self.there[..want];
            let same = self.memory.read(Addr(file.start.0 + done), there)?.min(got);
            if same == 0 {
                return Err(libc::EFAULT);
            }
            let (here, there) = (&here[..same], &there[..same]);
            if here != there {
                let n = here.iter().zip(there).take_while(|(a, b)| a == b).count();
                return Ok(Some(Addr(at.0 + n as u64)));
            }
            done += same as u64;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
