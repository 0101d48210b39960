// SPDX-License-Identifier: Apache-2.0
//! The `hugelift` program. What it does is in the library of this crate.
//!
//! The C runtime calls `main` here directly. Before Rust's own `main` the standard library would ignore
//! SIGPIPE and open closed standard files, and the program that hugelift becomes would inherit that.
#![no_main]

/// Replaces musl's allocator, which returns freed memory to the kernel at once and requests it again:
/// that causes a third of the page faults of a start.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// Entry point from the C runtime. In a debug build nothing catches a panic, so it aborts before it unwinds. With
/// `extern "C"` it would reach an edge that panics again, which hides the message of the first panic.
///
/// # Safety
/// `argv` holds `argc` strings that end in NUL, as the C runtime passes them.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn main(argc: libc::c_int, argv: *const *const libc::c_char) -> libc::c_int {
    // SAFETY: these are the arguments of the C runtime, as the caller promises.
    unsafe { hugelift_cli::enter(argc, argv) }
}
