// SPDX-License-Identifier: Apache-2.0
//! Runs a function on a stack of known size.
//!
//! The kernel's stack for a process may be as small as `ulimit -s` allows, and the program that hugelift
//! becomes may need only a few kilobytes. So hugelift's own work before execve(2) does not use that stack.
//! No limit is read or changed. The C library's loader makes mmap(2) too, so a seccomp filter under which
//! the program runs allows it.

use hugelift_inject::arch::call_on_stack;
use std::ptr;

/// Sizes that are tried in this order: a limit of the address space may not allow the first. Each is too
/// small for a transparent huge page, which would have to be cleared.
const SIZES: [usize; 2] = [1 << 20, 256 << 10];
/// So much must be left beside the stack. Without it, a limit of the address space that just allows the stack would leave no
/// memory for the smallest allocation, which ends the process.
const ROOM: usize = 512 << 10;

/// Calls `work` on a new stack, or on the current one if none can be mapped.
pub fn on_new_stack<T>(work: impl FnOnce() -> T) -> T {
    let Some((stack, size)) = SIZES.into_iter().find_map(map) else { return work() };
    let mut call = Call { work: Some(work), result: None };
    // SAFETY: the end of the mapping; page boundaries are multiples of 16.
    let top = unsafe { stack.byte_add(size) };
    // SAFETY: the mapping is new, so nothing else uses it. `run` gets the `Call` of the same type,
    // which lives until it returns.
    unsafe { call_on_stack(top, runner(&call), (&raw mut call).cast()) };
    // SAFETY: munmap(2) of the mapping, on which nothing runs any more.
    unsafe { libc::munmap(stack, size) };
    match (call.result, call.work) {
        (Some(result), _) => result,
        // `run` was not reached, so the work is still to be done.
        (None, Some(work)) => work(),
        // `run` takes the work and stores its result. A panic between the two ends the process, as it must
        // not unwind out of an `extern "C"` function.
        (None, None) => std::process::abort(),
    }
}

struct Call<T, F> {
    work: Option<F>,
    result: Option<T>,
}

/// Returns [`run`] for calls of this type.
fn runner<T, F: FnOnce() -> T>(_: &Call<T, F>) -> extern "C" fn(*mut libc::c_void) {
    run::<T, F>
}

/// Does the work of a [`Call`].
extern "C" fn run<T, F: FnOnce() -> T>(call: *mut libc::c_void) {
    // SAFETY: `on_new_stack` passes a live `Call` of this type, which nothing else uses meanwhile.
    let call = unsafe { &mut *call.cast::<Call<T, F>>() };
    call.result = call.work.take().map(|work| work());
}

/// Maps a stack of this size, if there is [`ROOM`] beside it.
fn map(size: usize) -> Option<(*mut libc::c_void, usize)> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    // SAFETY: mmap(2) at an address of the kernel's choice touches nothing of ours.
    let stack = unsafe { libc::mmap(ptr::null_mut(), size + ROOM, prot, flags, -1, 0) };
    if stack == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: munmap(2) of the end of the new mapping, which nothing uses.
    unsafe { libc::munmap(stack.byte_add(size), ROOM) };
    Some((stack, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_runs_on_another_stack_and_its_result_comes_back() {
        let here = 0u8;
        let outer = (&raw const here) as usize;
        let (inner, text) = on_new_stack(|| {
            let there = 0u8;
            ((&raw const there) as usize, "x".repeat(3))
        });
        assert_eq!(text, "xxx");
        assert!(inner.abs_diff(outer) > SIZES[0] / 2, "{inner:#x} is on the stack of {outer:#x}");
    }
}
