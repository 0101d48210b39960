// SPDX-License-Identifier: Apache-2.0
//! What of the process is lifted, as signal handlers and other threads may read it at any time.
//!
//! A child of fork(2) has only the thread that forked, so another thread that was reading will never leave. So
//! the first change in a child makes a table of its own; the old one stays for ever, as does the text of a path.

use crate::registry::Registry;
use hugelift_core::policy::Backing;
use hugelift_core::snapshot::Part;
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};
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
    pid: u32,
    ranges: Registry<Vec<Lifted>>,
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
    table.ranges.read(search).ok_or(Crowded)
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
    table.ranges.read(copy).ok_or(Crowded)
}

/// More threads and signal handlers read than there is room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crowded;

/// Replaces what is lifted; `ranges` is sorted by address. One thread at a time may call this.
pub(crate) fn set(ranges: Vec<Lifted>) {
    let pid = std::process::id();
    match table() {
        Some(table) if table.pid == pid => table.ranges.replace(ranges),
        _ => {
            let table = Box::new(Table { pid, ranges: Registry::new(READERS, ranges) });
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
