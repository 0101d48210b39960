// SPDX-License-Identifier: Apache-2.0
//! Keeps the dynamic loader from unmapping shared objects for the time of a system call.
//!
//! glibc holds a lock while dl_iterate_phdr(3) calls its callback, and dlclose(3) unmaps nothing without that
//! lock. musl never unmaps an object. What the program unmaps without the loader is not held.
//!
//! glibc does not release that lock in a child of fork(2), where the thread that held it does not exist. So fork(3)
//! waits for as long as the lock is held ([`forks`]).

use super::forks;

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Returns how many objects have been unloaded so far. `None` as for [`hold`].
pub(crate) fn unloads() -> Option<u64> {
    hold(|unloads| unloads)
}

/// Calls `work` while no object can be unloaded, with the number of objects unloaded so far. `work` must not
/// allocate: an allocator may wait for this very lock. Returns `None` if the program has no objects, if its loader does
/// not say how many were unloaded, or if another thread forks for too long.
pub(crate) fn hold<R, F: FnOnce(u64) -> R>(work: F) -> Option<R> {
    let _no_fork = forks::Held::take()?;
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
    size: usize,
    data: *mut c_void,
) -> c_int {
    // A program may replace dl_iterate_phdr(3) by its own, whose structure is shorter.
    if size < offset_of!(libc::dl_phdr_info, dlpi_subs) + size_of::<libc::c_ulonglong>() {
        return 1;
    }
    // SAFETY: `hold` passes a pointer to a live `Held` that nothing else uses meanwhile.
    let held = unsafe { &mut *data.cast::<Held<F, R>>() };
    // SAFETY: the loader passes a pointer to a structure of its own that is valid during the call, and that has this
    // member.
    let unloads = unsafe { (*info).dlpi_subs };
    if let Some(work) = held.work.take() {
        // A panic must not unwind through the C library.
        held.result = Some(catch_unwind(AssertUnwindSafe(|| work(unloads))));
    }
    1
}

/// Calls `check` with where each object is mapped and its program headers, in the order in which they were loaded, until
/// it returns true, and returns whether it did. No object can be unloaded meanwhile. `check` must not allocate.
pub fn any(check: impl FnMut(u64, &[libc::Elf64_Phdr]) -> bool) -> bool {
    let Some(_no_fork) = forks::Held::take() else { return false };
    let mut asked = Asked { check, found: Ok(false) };
    // SAFETY: as in `hold`.
    unsafe { libc::dl_iterate_phdr(Some(each_object(&asked)), (&raw mut asked).cast()) };
    asked.found.unwrap_or_else(|panic| resume_unwind(panic))
}

/// What is searched for among the objects, and whether it was found.
struct Asked<F> {
    check: F,
    found: std::thread::Result<bool>,
}

type Callback = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;

/// Returns the callback for this question.
fn each_object<F: FnMut(u64, &[libc::Elf64_Phdr]) -> bool>(_: &Asked<F>) -> Callback {
    unsafe extern "C" fn visit<F: FnMut(u64, &[libc::Elf64_Phdr]) -> bool>(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: `any` passes a pointer to a live `Asked` of this type that nothing else uses meanwhile, and the
        // loader a structure of its own that is valid during the call.
        let (asked, info) = unsafe { (&mut *data.cast::<Asked<F>>(), &*info) };
        let headers = match info.dlpi_phdr.is_null() {
            true => &[],
            // SAFETY: there are `dlpi_phnum` headers, which stay mapped during the call.
            false => unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) },
        };
        let check = AssertUnwindSafe(|| (asked.check)(info.dlpi_addr, headers));
        asked.found = catch_unwind(check);
        c_int::from(!matches!(asked.found, Ok(false)))
    }
    visit::<F>
}
