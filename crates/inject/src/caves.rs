// SPDX-License-Identifier: Apache-2.0
//! Code caves: unused bytes of executable mappings, for the code of borrowed threads.

use crate::arch;
use hugelift_core::addr::Addr;
use hugelift_core::maps::Mapping;
use hugelift_linux::proc::mapped::MappedFiles;
use hugelift_linux::proc::memory;
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::proc::snapshot::keeps_its_end;

/// Bytes of a cave: the code, and after it [`DATA_BYTES`] for what arguments point to.
pub const CAVE_BYTES: usize = 256;
/// Zeros that must be in front of a cave, unless it begins a page.
const GAP_BYTES: usize = 16;
/// Bytes that are searched at the end of a mapping.
const SEARCHED: usize = 4096;
/// Bytes in a cave that arguments of calls can point to.
pub const DATA_BYTES: usize = CAVE_BYTES - arch::LENT_STUB_BYTES;

/// The caves of a process.
#[derive(Clone, Debug)]
pub struct Caves {
    /// The caves that are free, best first.
    free: Vec<Addr>,
    /// Bytes that arguments can point to. They do not depend on the cave that a thread gets.
    data: Addr,
    /// A place for what is written down.
    ledger: Option<Addr>,
}

impl Caves {
    /// Searches for zeros at the end of the vdso, then of each executable mapping of a file. `None` if there are
    /// none.
    ///
    /// A tracer that was killed leaves its code: a thread may still run it, or come back to it from a
    /// signal handler. So only zeros are taken, and a page is searched from its end on.
    pub fn find(pid: i32, mappings: &[Mapping]) -> Option<Caves> {
        let mut free: Vec<Addr> =
            candidates(pid, mappings).iter().flat_map(|mapping| at_the_end_of(pid, mapping)).collect();
        let first = *free.first()?;
        // In the page that becomes private memory in any case if possible, far from what is used first.
        let is_beside = |at: &Addr| *at != first && at.0 / SEARCHED as u64 == first.0 / SEARCHED as u64;
        let other = free.len().checked_sub(1).filter(|last| *last > 0);
        let ledger = free.iter().rposition(is_beside).or(other).map(|index| free.remove(index));
        Some(Caves { free, data: data_of(first), ledger })
    }

    /// Returns the place for what is written down about the process.
    pub fn ledger(&self) -> Option<Addr> {
        self.ledger
    }

    /// Returns the best cave for a thread that is at `pc`.
    pub fn within_reach(&self, pc: Addr) -> Option<Addr> {
        self.free.iter().copied().find(|cave| arch::reaches(*cave, pc))
    }

    /// Leaves a cave to code that stays there.
    pub fn give_up(&mut self, cave: Addr) {
        self.free.retain(|free| *free != cave);
    }

    /// Takes a cave out of the choice that is no longer what it was.
    pub fn lose(&mut self, cave: Addr) {
        self.give_up(cave);
        if self.data == data_of(cave)
            && let Some(next) = self.free.first()
        {
            self.data = data_of(*next);
        }
    }

    /// Returns the address of the bytes that arguments can point to.
    pub fn data(&self) -> Addr {
        self.data
    }
}

/// Reads all places that can be a cave, free or not.
pub fn all(pid: i32, mappings: &[Mapping]) -> Vec<(Addr, [u8; CAVE_BYTES])> {
    let places = |mapping: &&Mapping| {
        let start = mapping.range.end.0 - SEARCHED as u64;
        let page = memory::read_array::<SEARCHED>(pid, Addr(start)).unwrap_or([0; SEARCHED]);
        let starts = (start..).step_by(CAVE_BYTES).map(Addr);
        starts.zip(page.as_chunks().0.to_vec()).collect::<Vec<_>>()
    };
    candidates(pid, mappings).iter().flat_map(places).collect()
}

/// Returns the mappings at whose ends a few instructions can be put: the vdso, then code of files.
pub(crate) fn executable(mappings: &[Mapping]) -> impl Iterator<Item = &Mapping> {
    let vdso = |m: &&Mapping| m.is_named("[vdso]");
    let code = |m: &&Mapping| m.prot.exec && m.prot.read && !m.prot.write && m.is_file();
    mappings.iter().filter(vdso).chain(mappings.iter().filter(code))
}

/// Returns the mappings at whose ends caves can be: the vdso, and code whose last page stays as it is.
fn candidates(pid: i32, mappings: &[Mapping]) -> Vec<&Mapping> {
    // To read memory of a file on a file system that does not answer would be to wait for ever.
    let files = MappedFiles::of(Process::of(pid));
    let stays = |m: &&Mapping| !m.is_file() || keeps_its_end(m) && files.may_be_read(m.file);
    executable(mappings).filter(stays).collect()
}

/// Returns the bytes of a cave behind the code.
fn data_of(cave: Addr) -> Addr {
    Addr(cave.0 + arch::LENT_STUB_BYTES as u64)
}

/// Returns the places for a cave in the last bytes of a mapping, the last one first.
fn at_the_end_of(pid: i32, mapping: &Mapping) -> Vec<Addr> {
    let start = Addr(mapping.range.end.0 - SEARCHED as u64);
    let Ok(page) = memory::read_array::<SEARCHED>(pid, start) else { return Vec::new() };
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    // What is in front of the zeros may be the end of an instruction: leave a gap.
    let is_free = |at: &usize| is_zero(&page[at.saturating_sub(GAP_BYTES)..at + CAVE_BYTES]);
    let slots = (0..SEARCHED).step_by(CAVE_BYTES).rev();
    slots.filter(is_free).map(|at| Addr(start.0 + at as u64)).collect()
}
