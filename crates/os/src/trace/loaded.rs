// SPDX-License-Identifier: Apache-2.0
//! Keeps the dynamic loader from unmapping shared objects for the time of a system call.
//!
//! glibc holds a lock while dl_iterate_phdr(3) calls its callback, and dlclose(3) unmaps nothing without that
//! lock. musl never unmaps an object. What the program unmaps without the loader is not held.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Returns how many objects have been unloaded so far.
pub(crate) fn unloads() -> u64 {
    hold(|unloads| unloads).unwrap_or(0)
}

/// Calls `work` while no object can be unloaded, with the number of objects unloaded so far. `work` must not
/// allocate: an allocator may wait for this very lock. Returns `None` if the program has no objects.
pub(crate) fn hold<R, F: FnOnce(u64) -> R>(work: F) -> Option<R> {
    let mut held = Held { work: Some(work), result: None };
    // SAFETY: dl_iterate_phdr(3) calls `first` during the call only, with a pointer to `held`, which outlives it
    // and has the type that `first` expects.
    unsafe { libc::dl_iterate_phdr(Some(first::<F, R>), (&raw mut held).cast()) };
    held.result.map(|result| result.unwrap_or_else(|panic| resume_unwind(panic)))
}

/// What a callback is to do, and what came of it.
struct Held<F, R> {
    work: Option<F>,
    result: Option<std::thread::Result<R>>,
}

/// Does the work at the first object, and ends the walk.
extern "C" fn first<F: FnOnce(u64) -> R, R>(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    data: *mut c_void,
) -> c_int {
    // SAFETY: `hold` passes a pointer to a live `Held` that nothing else uses meanwhile.
    let held = unsafe { &mut *data.cast::<Held<F, R>>() };
    // SAFETY: the loader passes a pointer to a structure of its own that is valid during the call.
    let unloads = unsafe { (*info).dlpi_subs };
    if let Some(work) = held.work.take() {
        // A panic must not unwind through the C library.
        held.result = Some(catch_unwind(AssertUnwindSafe(|| work(unloads))));
    }
    1
}
