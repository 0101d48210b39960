// SPDX-License-Identifier: Apache-2.0
//! The process being changed, as a handful of memory system calls.

use crate::addr::{Addr, PageSize, Range, human_bytes};
use crate::maps::Prot;
use crate::placement::Placement;
use crate::scratch::{Scratch, moved};
use std::fmt;

/// What new memory is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Private anonymous memory on base pages (THP may back it).
    Anonymous,
    /// Private anonymous memory from the hugetlb pool.
    Hugetlb(PageSize),
    /// A shared mapping of a file that [`Target::memfd`] made, from its start.
    Shared(FileHandle),
    /// A private mapping of a file from this offset on that reserves nothing (`MAP_NORESERVE`),
    /// faulted in as far as possible (`MAP_POPULATE`).
    Private(FileHandle, u64),
}

/// A mapping of a copy in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapStored {
    /// Its addresses.
    pub range: Range,
    /// Its protection.
    pub prot: Prot,
    /// Index into the store's open files ([`crate::snapshot::StoredCopy::entry`]).
    pub entry: usize,
    /// The offset in that file.
    pub offset: u64,
}

/// A file descriptor of the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileHandle(pub i32);

/// Whether a mapping may replace what is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Only where nothing is mapped (`MAP_FIXED_NOREPLACE`): scratch memory.
    Free,
    /// Only where nothing is mapped, as memory of the program: a failed call has unmapped what was there.
    Back,
    /// Over what is mapped (`MAP_FIXED`).
    Over,
}

/// Why a call on the target failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The target's kernel refused the call: the target is unchanged.
    Call {
        /// Name of the system call, with its distinguishing argument.
        call: &'static str,
        /// The addresses that it was called for.
        range: Range,
        /// errno(3).
        errno: i32,
    },
    /// The kernel gave small pages where huge ones were wanted.
    NotHuge {
        /// Bytes on huge pages.
        got: u64,
        /// Bytes wanted.
        want: u64,
    },
    /// The bytes were left where they are, for this reason: nothing was touched.
    Kept(String),
    /// The call could not be made at all: the target is gone or no longer under our control.
    Lost(String),
}

impl Fault {
    /// Returns what the user can do about it.
    pub fn hint(&self) -> Option<String> {
        const EPERM: i32 = 1;
        const ENOMEM: i32 = 12;
        const EFAULT: i32 = 14;
        Some(match self {
            Fault::NotHuge { .. } => "echo 1 > /proc/sys/vm/compact_memory".into(),
            Fault::Call { call, errno: ENOMEM, .. }
                if call.starts_with("mmap") || call.starts_with("memfd") =>
            {
                "see 'ulimit -v', vm.overcommit_memory, vm.max_map_count and HugePages_Free in /proc/meminfo"
                    .into()
            }
            // mremap(2) needs up to four mappings more (mm/mremap.c).
            Fault::Call { call, errno: ENOMEM, .. } if call.starts_with("mremap") => {
                "compare the lines of /proc/PID/maps with vm.max_map_count".into()
            }
            Fault::Call { call, errno: EFAULT | ENOMEM, .. } if call.contains("POPULATE") => {
                "see the limits of its cgroup (hugetlb.*.max, memory.max) and its memory policy".into()
            }
            Fault::Call { call, errno: EPERM, .. } if call.starts_with("mremap") => {
                "is it sealed (mseal(2); 'sl' in VmFlags of /proc/PID/smaps)? Then nobody can replace it"
                    .into()
            }
            Fault::Call { call: "mbind", .. } => {
                "hugelift run without --numa, or see 'numactl --hardware'".into()
            }
            _ => return None,
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Call { call, range, errno } => {
                let why = std::io::Error::from_raw_os_error(*errno);
                write!(f, "{call} of {} at {}: {why}", human_bytes(range.len()), range.start)
            }
            Fault::NotHuge { got, want } => {
                write!(
                    f,
                    "no free huge pages: the kernel gave {} of {}",
                    human_bytes(*got),
                    human_bytes(*want)
                )
            }
            Fault::Kept(why) | Fault::Lost(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Fault {}

/// A process whose address space can be changed: a process under ptrace, the calling one, or a
/// [`Model`](crate::model::Model) in memory. Each method makes one system call, or one for each element
/// of its list or each piece of its range.
///
/// # Errors
/// All methods return [`Fault`]. The target is then unchanged, with three exceptions: after
/// [`Fault::Lost`] nothing is known of it; a failed [`Target::mmap`] with [`Place::Over`] or a
/// failed [`Target::mremap`] may have unmapped what it was to replace (as Linux does), which [`put_back`] maps again; and
/// a part of what was to be mapped or moved may be mapped or may have moved, as [`Target::scratch`] says.
pub trait Target {
    /// Maps `range` with `prot`, at exactly this address.
    fn mmap(&mut self, range: Range, prot: Prot, source: Source, place: Place) -> Result<(), Fault>;
    /// Returns the memory that was mapped in it with [`Place::Free`] or by [`Target::map_stored`], less what has moved
    /// away or was released.
    fn scratch(&self) -> &Scratch;
    /// Unmaps what of `range` is scratch memory (munmap(2)).
    fn release(&mut self, range: Range) -> Result<(), Fault>;
    /// mprotect(2).
    fn mprotect(&mut self, range: Range, prot: Prot) -> Result<(), Fault>;
    /// mremap(2) with `MREMAP_FIXED`: moves `from`, pages and all, over what is at `to`, maybe piece by piece. The
    /// addresses of [`Fault::Call`] are the addresses of the piece that did not move.
    fn mremap(&mut self, from: Range, to: Addr) -> Result<(), Fault>;
    /// madvise(2) with `MADV_HUGEPAGE`.
    fn advise_huge(&mut self, range: Range) -> Result<(), Fault>;
    /// mbind(2) with `MPOL_MF_MOVE`: sets the NUMA nodes of its pages (`None`: follow the process's
    /// policy). Existing pages move, unless another process shares them.
    fn bind(&mut self, range: Range, placement: Option<Placement>) -> Result<(), Fault>;
    /// Makes every page of `range` (of size `page`) resident and writable, so that a lack of pages is
    /// an error here and not a SIGBUS later.
    fn populate(&mut self, range: Range, page: PageSize) -> Result<(), Fault>;
    /// Reads one byte of each page (of size `page`) of `range`, so that the kernel maps the folios of
    /// that size in the page cache.
    fn fault_in(&mut self, range: Range, page: PageSize) -> Result<(), Fault>;
    /// Copies `from` to `to` within the target.
    fn copy(&mut self, from: Range, to: Addr) -> Result<(), Fault>;
    /// madvise(2) with `MADV_COLLAPSE` (Linux 6.1): moves small pages to huge ones.
    fn collapse(&mut self, range: Range) -> Result<(), Fault>;
    /// Returns the bytes of `range` that huge pages map.
    fn huge_bytes(&mut self, range: Range) -> Result<u64, Fault>;
    /// Creates an unnamed file of `bytes` bytes on hugetlb pages (memfd_create(2)).
    fn memfd(&mut self, page: PageSize, bytes: u64) -> Result<FileHandle, Fault>;
    /// Maps each of `copies`, where nothing is mapped, as [`Source::Private`] of its file, and closes
    /// the file. One may fail without the others; after [`Fault::Lost`] no other is tried.
    fn map_stored(&mut self, copies: &[MapStored]) -> Vec<Result<(), Fault>>;
    /// Calls [`Target::mremap`] for each of `moves`, which fail like `map_stored`'s copies.
    fn move_all(&mut self, moves: &[(Range, Addr)]) -> Vec<Result<(), Fault>> {
        moves.iter().map(|(from, to)| self.mremap(*from, *to)).collect()
    }
    /// close(2).
    fn close(&mut self, file: FileHandle) -> Result<(), Fault>;
}

/// Maps memory again that a failed call has unmapped: at `to`, where the bytes of `copy` were to go, with these bytes and
/// this protection, on base pages. If all is still mapped there, nothing is changed: the call usually leaves its
/// destination alone, but the kernel unmaps the destination before it allocates its own records, and that may fail.
///
/// # Errors
/// [`Fault::Lost`]: it is not known to be mapped.
pub fn put_back<T: Target + ?Sized>(
    target: &mut T,
    copy: Range,
    to: Addr,
    held: &[Range],
    prot: Prot,
) -> Result<(), Fault> {
    const EEXIST: i32 = 17;
    let over = moved(copy, copy, to).unwrap_or_default();
    for here in held.iter().filter_map(|held| held.intersect(over)) {
        let from = moved(here, over, copy.start).unwrap_or_default();
        let mapped = match target.mmap(here, Prot::RW, Source::Anonymous, Place::Back) {
            Err(Fault::Call { errno: EEXIST, .. }) => continue,
            mapped => mapped,
        };
        mapped
            .and_then(|()| target.copy(from, here.start))
            .and_then(|()| target.mprotect(here, prot))
            .map_err(|fault| {
                Fault::Lost(format!("{here} may be unmapped, and could not be restored: {fault}"))
            })?;
    }
    Ok(())
}
