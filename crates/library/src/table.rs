// SPDX-License-Identifier: Apache-2.0
//! What of the process is lifted, as signal handlers and other threads may read it at any time.
//!
//! A child of fork(2) has only the thread that forked, so another thread that was reading will never leave its slot. So
//! the first change in a child makes a table of its own. The old one never changes any more, and is read without a
//! slot; it stays for ever, as does the text of a path.

use crate::registry::Registry;
use hugelift_core::policy::Backing;
use hugelift_core::snapshot::Part;
use hugelift_inject::forks;
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, TryLockError};

/// Threads and signal handlers that can read at the same time.
const READERS: usize = 64;

/// A range of the process that was lifted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lifted {
    /// The first address.
    pub start: usize,
    /// The first address behind it.
    pub end: usize,
    /// What it holds.
    pub part: Part,
    /// Where its huge pages come from.
    pub backing: Backing,
    /// The object that it belongs to, as in `/proc/PID/maps`.
    pub path: &'static CStr,
    /// The offset in that file of the bytes that were mapped at `start`. It has no meaning for bss and heap.
    pub offset: u64,
}

struct Table {
    /// A number that no other table has, and no table that a parent process has made.
    number: u64,
    ranges: Registry<Vec<Lifted>>,
}

impl Table {
    /// Calls `visit` with the ranges.
    fn read<R>(&self, visit: impl FnOnce(&Vec<Lifted>) -> R) -> Result<R, Crowded> {
        // The number is stored before the table is published, so whoever has found a table of this process finds its
        // number, or a later one.
        let own = forks::words().map(|words| words.table.load(Ordering::Acquire));
        match own == Some(self.number) {
            true => self.ranges.read(visit).ok_or(Crowded),
            // SAFETY: `set` replaces the ranges of a table only in the process that has made it.
            false => Ok(unsafe { self.ranges.read_unchanging(visit) }),
        }
    }
}

static TABLE: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());

fn table() -> Option<&'static Table> {
    // SAFETY: a table that was once published is never freed.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

/// Returns the lifted range that holds `addr`. It allocates nothing, waits for nobody and makes no system call.
///
/// # Errors
/// More than 64 threads and signal handlers read at this moment.
pub(crate) fn find(addr: usize) -> Result<Option<Lifted>, Crowded> {
    let Some(table) = table() else { return Ok(None) };
    let search = |ranges: &Vec<Lifted>| {
        let at = ranges.partition_point(|range| range.end <= addr);
        ranges.get(at).copied().filter(|range| range.start <= addr)
    };
    table.read(search)
}

/// Copies the lifted ranges, by address, to `into` as far as they fit, and returns how many there are.
///
/// # Errors
/// See [`find`].
pub(crate) fn each(mut into: impl FnMut(usize, &Lifted)) -> Result<usize, Crowded> {
    let Some(table) = table() else { return Ok(0) };
    let copy = |ranges: &Vec<Lifted>| {
        ranges.iter().enumerate().for_each(|(at, range)| into(at, range));
        ranges.len()
    };
    table.read(copy)
}

/// More threads and signal handlers read than there is room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crowded;

/// Replaces what is lifted; `ranges` is sorted by address. One thread at a time may call this.
pub(crate) fn set(ranges: Vec<Lifted>) {
    static TABLES: AtomicU64 = AtomicU64::new(0);
    let words = forks::prepare();
    let own = words.table.load(Ordering::Acquire);
    match table() {
        Some(table) if table.number == own => table.ranges.replace(ranges),
        _ => {
            let number = TABLES.fetch_add(1, Ordering::Relaxed) + 1;
            let table = Box::new(Table { number, ranges: Registry::new(READERS, ranges) });
            words.table.store(number, Ordering::Release);
            TABLE.store(Box::into_raw(table), Ordering::Release);
        }
    }
}

/// Returns the path as text that is never freed. Each path is kept once.
pub(crate) fn kept(path: &Path) -> &'static CStr {
    static PATHS: Mutex<BTreeSet<&'static CStr>> = Mutex::new(BTreeSet::new());
    let bytes = path.as_os_str().as_bytes();
    let Ok(text) = std::ffi::CString::new(bytes) else { return c"" };
    // One thread at a time comes here. In a child, a thread of the parent may hold the lock for ever.
    let mut paths = match PATHS.try_lock() {
        Ok(paths) => paths,
        Err(TryLockError::Poisoned(paths)) => paths.into_inner(),
        Err(TryLockError::WouldBlock) => return Box::leak(text.into_boxed_c_str()),
    };
    if let Some(kept) = paths.get(text.as_c_str()) {
        return kept;
    }
    let kept: &'static CStr = Box::leak(text.into_boxed_c_str());
    paths.insert(kept);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Lifted = Lifted {
        start: 0x20_0000,
        end: 0x40_0000,
        part: Part::Text,
        backing: Backing::Thp,
        path: c"/bin/x",
        offset: 0,
    };

    /// Calls `work` while this thread has `depth` slots, as so many threads might.
    fn reading(depth: usize, work: &mut dyn FnMut()) {
        match depth {
            0 => work(),
            _ => {
                table().expect("a table").read(|_| reading(depth - 1, work)).expect("a free slot");
            }
        }
    }

    /// Runs `work` in a child, and returns whether it returned true.
    fn in_a_child(bare: bool, work: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls `work`, and ends.
        unsafe {
            let pid = match bare {
                true => libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32,
                false => libc::fork(),
            };
            if pid == 0 {
                libc::alarm(20);
                libc::_exit(i32::from(!work()));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
            status == 0
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no fork(2)")]
    fn a_child_reads_and_changes_what_threads_of_its_parent_were_reading() {
        set(vec![ONE]);
        let is_found = || find(0x30_0000) == Ok(Some(ONE)) && find(0x40_0000) == Ok(None);
        assert!(is_found());
        reading(READERS, &mut || {
            assert_eq!(find(0x30_0000), Err(Crowded));
            for bare in [false, true] {
                let child = || {
                    let is_inherited = is_found();
                    // A child of the child inherits the table once more, and also the one that its parent has made.
                    let inherits = bare || in_a_child(true, is_found);
                    // malloc(3) may wait for ever in the child of a bare clone(2).
                    let changes = bare || {
                        set(Vec::new());
                        set(vec![ONE, Lifted { start: 0x60_0000, end: 0x80_0000, ..ONE }]);
                        is_found() && each(|_, _| {}) == Ok(2) && in_a_child(false, is_found)
                    };
                    is_inherited && inherits && changes
                };
                assert!(in_a_child(bare, child), "{bare}");
            }
        });
        assert!(is_found());
    }
}
