// SPDX-License-Identifier: Apache-2.0
//! The codes that the functions return.

use crate::error::Error;
use std::ffi::c_int;

/// Done. What could not be lifted is in the report.
pub const HUGELIFT_OK: c_int = 0;
/// An argument is not allowed: a null pointer, an unknown number, a malformed pattern, a member of the options that is
/// set and that this version of the library does not have.
pub const HUGELIFT_E_INVALID: c_int = -1;
/// Another thread lifts or restores at this moment. Try again.
pub const HUGELIFT_E_BUSY: c_int = -2;
/// /proc/self cannot be read, or shows no 64-bit ELF program.
pub const HUGELIFT_E_PROC: c_int = -3;
/// Data was asked for, and the program has several threads or did not set HUGELIFT_ONE_THREAD.
pub const HUGELIFT_E_THREADS: c_int = -4;
/// A failed step could not be undone. Memory that nothing uses may have stayed mapped.
pub const HUGELIFT_E_LOST: c_int = -5;
/// A defect of the library. It did nothing further.
pub const HUGELIFT_E_INTERNAL: c_int = -6;

/// Returns the code of an error.
pub(super) fn code(error: &Error) -> c_int {
    match error {
        Error::Busy | Error::Crowded => HUGELIFT_E_BUSY,
        Error::Threads(_) | Error::ThreadsUnknown => HUGELIFT_E_THREADS,
        Error::Pattern(_) => HUGELIFT_E_INVALID,
        Error::Proc(_) => HUGELIFT_E_PROC,
        Error::Lost(_) => HUGELIFT_E_LOST,
    }
}
