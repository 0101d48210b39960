// SPDX-License-Identifier: Apache-2.0
//! What is lifted, for profilers and handlers of faults.

#![allow(non_camel_case_types, reason = "the names of C")]

use super::codes::{HUGELIFT_E_BUSY, HUGELIFT_E_INVALID};
use super::options::{
    HUGELIFT_BACKING_HUGETLB, HUGELIFT_BACKING_PAGECACHE, HUGELIFT_BACKING_SHARED, HUGELIFT_BACKING_THP,
    HUGELIFT_PART_BSS, HUGELIFT_PART_DATA, HUGELIFT_PART_HEAP, HUGELIFT_PART_RODATA, HUGELIFT_PART_TEXT,
};
use crate::table::{self, Lifted};
use hugelift_core::policy::Backing;
use hugelift_core::snapshot::Part;
use std::ffi::{c_char, c_int, c_void};

/// A range of the process that was lifted. Symbols of a copy that has no file name are found by `path` and `offset`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hugelift_range {
    /// The first address.
    pub start: *const c_void,
    /// The first address behind it.
    pub end: *const c_void,
    /// One of HUGELIFT_PART_*.
    pub part: u32,
    /// One of HUGELIFT_BACKING_*.
    pub backing: u32,
    /// The object that it belongs to. The text is never freed.
    pub path: *const c_char,
    /// The offset in that file of what was mapped at `start`, for text and data.
    pub offset: u64,
}

impl From<&Lifted> for hugelift_range {
    fn from(range: &Lifted) -> hugelift_range {
        let Lifted { start, end, part, backing, path, offset } = *range;
        hugelift_range {
            start: std::ptr::without_provenance(start),
            end: std::ptr::without_provenance(end),
            part: match part {
                Part::Text => HUGELIFT_PART_TEXT,
                Part::Rodata => HUGELIFT_PART_RODATA,
                Part::Bss => HUGELIFT_PART_BSS,
                Part::Heap => HUGELIFT_PART_HEAP,
                _ => HUGELIFT_PART_DATA,
            },
            backing: match backing {
                Backing::Pagecache => HUGELIFT_BACKING_PAGECACHE,
                Backing::Shared => HUGELIFT_BACKING_SHARED,
                Backing::Thp => HUGELIFT_BACKING_THP,
                Backing::Hugetlb => HUGELIFT_BACKING_HUGETLB,
            },
            path: path.as_ptr(),
            offset,
        }
    }
}

/// Finds the lifted range that holds an address. After dlclose(3) the ranges of the object are found until the next
/// lift or restore.
///
/// Before: `range` is NULL, or points to `size` writable bytes; `size` is `sizeof *range`.
/// After: if 1 is returned, `*range` is filled in.
///
/// Thread-safe, async-signal-safe: it takes no lock, allocates nothing and makes no system call, whatever other threads
/// lift or restore meanwhile. No handler, be it of a signal or of a fault in `*range`, may leave it by longjmp(3) or
/// end its thread: a later lift or restore would wait for ever. Returns 1 if there is such a range, 0 if there is none.
/// Errors: HUGELIFT_E_BUSY if more than 64 threads and signal handlers read at this moment.
///
/// # Safety
/// The pointer is as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugelift_find(
    address: *const c_void,
    range: *mut hugelift_range,
    size: usize,
) -> c_int {
    match table::find(address.addr()) {
        Err(_) => HUGELIFT_E_BUSY,
        Ok(None) => 0,
        Ok(Some(found)) => {
            // SAFETY: the caller has `size` writable bytes there.
            unsafe { put(range, 0, size, &found) };
            1
        }
    }
}

/// Copies the lifted ranges, by address.
///
/// Before: `ranges` points to `room` structures of `size` bytes; `size` is `sizeof *ranges`. It may be NULL if `room` is 0.
/// After: as many as fit are filled in.
///
/// Thread-safe, async-signal-safe, as hugelift_find(). No handler, be it of a signal or of a fault in `ranges`,
/// may leave it by longjmp(3) or end its thread: a later lift or restore would wait for ever. Returns the number of
/// ranges that there are, which may exceed `room`. Errors: HUGELIFT_E_BUSY as for hugelift_find(), HUGELIFT_E_INVALID
/// for a null pointer.
///
/// # Safety
/// The pointer is as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugelift_ranges(ranges: *mut hugelift_range, room: usize, size: usize) -> isize {
    if ranges.is_null() && room > 0 {
        return HUGELIFT_E_INVALID as isize;
    }
    let copy = |at: usize, range: &Lifted| {
        if at < room {
            // SAFETY: the caller has `room` structures of `size` bytes there.
            unsafe { put(ranges, at, size, range) };
        }
    };
    table::each(copy).map_or(HUGELIFT_E_BUSY as isize, usize::cast_signed)
}

/// Writes an element of an array of structures that have `size` bytes each. What this version does not know is zero.
///
/// # Safety
/// `ranges` is null or points to more than `at` such structures.
unsafe fn put(ranges: *mut hugelift_range, at: usize, size: usize, range: &Lifted) {
    if ranges.is_null() {
        return;
    }
    let filled = hugelift_range::from(range);
    let known = size.min(size_of::<hugelift_range>());
    // SAFETY: the caller promises `size` bytes at this element, and `known` is no more than the structure has.
    unsafe {
        let element = ranges.cast::<u8>().add(at * size);
        element.write_bytes(0, size);
        element.copy_from_nonoverlapping((&raw const filled).cast(), known);
    }
}
