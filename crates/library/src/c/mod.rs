// SPDX-License-Identifier: Apache-2.0
//! The functions of `hugelift.h`. Nothing here prints, ends the process, unwinds into the caller, or leaves errno
//! changed or a file open.

mod codes;
mod edge;
mod options;
mod ranges;
mod report;

pub use codes::*;
pub use options::*;
pub use ranges::*;
pub use report::*;

use crate::error::Error;
use crate::lift;
use crate::options::Options;
use crate::outcome::Outcome;
use codes::code;
use edge::guarded;
pub(crate) use edge::quietly;
use std::ffi::{c_char, c_int, c_void};

/// Returns the version of the library that runs, as in "0.1.0".
///
/// Thread-safe, async-signal-safe. It never fails. The text is never freed.
#[unsafe(no_mangle)]
pub extern "C" fn hugelift_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Returns the meaning of an error code in English, without a full stop; for an unknown code "unknown error".
///
/// Thread-safe, async-signal-safe. It never fails. The text is never freed.
#[unsafe(no_mangle)]
pub extern "C" fn hugelift_strerror(code: c_int) -> *const c_char {
    let text = match code {
        HUGELIFT_OK => c"success",
        HUGELIFT_E_INVALID => c"invalid argument",
        HUGELIFT_E_BUSY => c"another thread lifts, restores or reads at this moment; try again",
        HUGELIFT_E_PROC => c"/proc/self cannot be read, or shows no 64-bit ELF program",
        HUGELIFT_E_THREADS => {
            c"data can be lifted only if the program has one thread and sets HUGELIFT_ONE_THREAD"
        }
        HUGELIFT_E_LOST => c"a failed step could not be undone",
        HUGELIFT_E_INTERNAL => c"defect of the library",
        _ => c"unknown error",
    };
    text.as_ptr()
}

/// Lifts the calling process: gives its code and read-only data huge pages. All addresses, bytes and protections
/// stay. What is huge already stays as it is, so that after dlopen(3) the function lifts what is new.
///
/// Before: `options` was initialised by hugelift_options_init(), or is NULL for the defaults. `report` is NULL, or
/// points to a pointer that is overwritten.
/// After: on success `*report` is a report, to be freed by hugelift_report_free(); on failure it is NULL, and the
/// process is as before (but see HUGELIFT_E_LOST).
///
/// Thread-safe: other threads run on; one that executes code at the moment at which it is replaced waits for some
/// microseconds. Not async-signal-safe. Not allowed in a child of vfork(2), or in the log function. It works in a
/// child of fork(2). It allocates memory by malloc(3). A pthread_cancel(3) takes effect after it.
///
/// Errors: HUGELIFT_E_INVALID, HUGELIFT_E_BUSY, HUGELIFT_E_PROC, HUGELIFT_E_THREADS, HUGELIFT_E_LOST,
/// HUGELIFT_E_INTERNAL. What cannot be lifted is no error: the log and the report say why.
///
/// # Safety
/// The pointers are as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugelift_lift_self(
    options: *const hugelift_options,
    report: *mut *mut hugelift_report,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller passes pointers as described.
        let (asked, log) = unsafe { begin(options, report) }?;
        // SAFETY: as above.
        unsafe { conclude(lift::lift(&asked), &log, report) }
    })
}

/// Lifts what of the code and the read-only data lies between two addresses, in whole huge pages.
///
/// Before: `start` is not above `end`; the rest is as for hugelift_lift_self(). Memory that belongs to no ELF file is
/// not lifted.
/// After, safety and errors: as for hugelift_lift_self().
///
/// # Safety
/// The pointers are as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugelift_lift_range(
    start: *const c_void,
    end: *const c_void,
    options: *const hugelift_options,
    report: *mut *mut hugelift_report,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller passes pointers as described.
        let (asked, log) = unsafe { begin(options, report) }?;
        let asked: Options = match start <= end {
            true => asked.within(start.addr()..end.addr()),
            false => return Err(HUGELIFT_E_INVALID),
        };
        // SAFETY: as above.
        unsafe { conclude(lift::lift(&asked), &log, report) }
    })
}

/// Gives the calling process the pages of its files back where text and read-only data are copies. A copy that differs
/// from its file stays.
///
/// Before, after, safety and errors: as for hugelift_lift_self(). Of `options` only the log is used.
///
/// # Safety
/// The pointers are as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugelift_restore_self(
    options: *const hugelift_options,
    report: *mut *mut hugelift_report,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller passes pointers as described.
        let (_, log) = unsafe { begin(options, report) }?;
        // SAFETY: as above.
        unsafe { conclude(lift::restore(), &log, report) }
    })
}

/// Reads the arguments of a call, and sets the report to null.
///
/// # Safety
/// `options` is null or as [`hugelift_options_init`] has left it, changed member by member; `report` is null or valid
/// for a write.
unsafe fn begin(
    options: *const hugelift_options,
    report: *mut *mut hugelift_report,
) -> Result<(Options, options::Log), c_int> {
    if !report.is_null() {
        // SAFETY: the caller passes a valid pointer.
        unsafe { report.write(std::ptr::null_mut()) };
    }
    // SAFETY: the caller passes options as described.
    unsafe { options::read(options) }
}

/// Logs the result, and hands out the report.
///
/// # Safety
/// `report` is null or valid for a write.
unsafe fn conclude(
    done: Result<Outcome, Error>,
    log: &options::Log,
    report: *mut *mut hugelift_report,
) -> Result<(), c_int> {
    let outcome = done.map_err(|error| {
        log.say(HUGELIFT_LOG_ERROR, &error.to_string());
        code(&error)
    })?;
    for line in outcome.complaints() {
        log.say(HUGELIFT_LOG_WARNING, line);
    }
    log.say(HUGELIFT_LOG_INFO, outcome.summary());
    if log.wants(HUGELIFT_LOG_DEBUG) {
        for object in &outcome.report().objects {
            for part in &object.parts {
                log.say(HUGELIFT_LOG_DEBUG, &report::line(&object.path, part));
            }
        }
    }
    if !report.is_null() {
        // SAFETY: the caller of this function promises a valid pointer.
        unsafe { report.write(report::handed_out(outcome)) };
    }
    Ok(())
}
