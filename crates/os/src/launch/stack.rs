// SPDX-License-Identifier: Apache-2.0
//! Runs a function on a stack of known size.
//!
//! The stack that the kernel gives a process may be as small as `ulimit -s` says, and the program
//! that hugelift is to become may need only a few kilobytes of it. So hugelift's own work before
//! execve(2) does not use that stack. No limit is read or changed: to map memory is a call that the
//! loader of the C library makes as well, so a seccomp filter under which the program runs allows it.

use crate::arch::call_on_stack;
use std::ptr;

/// Sizes that are tried, in their order: a limit of the address space may leave no room for the
/// first. Each is too small for a transparent huge page, which would have to be cleared.
const SIZES: [usize; 2] = [1 << 20, 256 << 10];

/// Calls `work` on a new stack, or on the stack of now if no memory can be had.
pub fn with_room<T>(work: impl FnOnce() -> T) -> T {
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
        // `run` has not been reached: then the work is still to be done.
        (None, Some(work)) => work(),
        // `run` takes the work and leaves its result; a panic between the two ends the process, as
        // it must not leave a function of C's.
        (None, None) => std::process::abort(),
    }
}

struct Call<T, F> {
    work: Option<F>,
    result: Option<T>,
}

/// [`run`] for calls of this type.
fn runner<T, F: FnOnce() -> T>(_: &Call<T, F>) -> extern "C" fn(*mut libc::c_void) {
    run::<T, F>
}

extern "C" fn run<T, F: FnOnce() -> T>(call: *mut libc::c_void) {
    // SAFETY: `with_room` passes a live `Call` of this type, which nobody else uses meanwhile.
    let call = unsafe { &mut *call.cast::<Call<T, F>>() };
    call.result = call.work.take().map(|work| work());
}

fn map(size: usize) -> Option<(*mut libc::c_void, usize)> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    // SAFETY: mmap(2) at an address of the kernel's choice touches nothing of ours.
    let stack = unsafe { libc::mmap(ptr::null_mut(), size, prot, flags, -1, 0) };
    (stack != libc::MAP_FAILED).then_some((stack, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_runs_on_another_stack_and_its_result_comes_back() {
        let here = 0u8;
        let outer = (&raw const here) as usize;
        let (inner, text) = with_room(|| {
            let there = 0u8;
            ((&raw const there) as usize, "x".repeat(3))
        });
        assert_eq!(text, "xxx");
        assert!(inner.abs_diff(outer) > SIZES[0] / 2, "{inner:#x} is on the stack of {outer:#x}");
    }
}
