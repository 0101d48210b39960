// SPDX-License-Identifier: Apache-2.0
//! `LD_PRELOAD=libhugelift.so HUGELIFT="--parts text" prog`: lifts a program whose command line cannot be changed, before
//! its `main`.
//!
//! The shared library alone has this as its initial function (DT_INIT); programs that are linked with it statically do
//! not. It does nothing unless `HUGELIFT` is set, in programs that run with more rights than their caller, and in those
//! with AddressSanitizer, which knows the mappings of the program.

use crate::lift::lift;
use crate::options::Options;
use crate::words::{Verbosity, parse};
use std::ffi::{c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;

const VARIABLE: &str = "HUGELIFT";

/// Lifts the process if it was asked for by `HUGELIFT`. The loader calls it once.
#[unsafe(no_mangle)]
pub extern "C" fn hugelift_preload() {
    crate::c::quietly(|| {
        let Some(words) = std::env::var_os(VARIABLE) else { return };
        if is_privileged() || has_sanitizer() {
            return;
        }
        match std::str::from_utf8(words.as_bytes()).map_err(|e| e.to_string()).and_then(parse) {
            Ok((options, verbosity)) => start(&options, verbosity),
            Err(why) => say(&format!("{VARIABLE}: {why}; the program starts as it is")),
        }
    });
}

fn start(options: &Options, verbosity: Verbosity) {
    // Most programs are small. It costs them a few microseconds to find that out.
    if !may_be_lifted(options) {
        if verbosity >= Verbosity::Summary {
            say("nothing on huge pages: no part of it is as large as a page of 2.0 MB");
        }
        return;
    }
    match lift(options) {
        Ok(outcome) => {
            if verbosity >= Verbosity::Problems {
                outcome.complaints().iter().for_each(|line| say(line));
            }
            if verbosity >= Verbosity::Summary {
                say(outcome.summary());
            }
        }
        Err(error) if verbosity >= Verbosity::Problems => say(&error.to_string()),
        Err(_) => {}
    }
}

/// Returns whether the program runs with more rights than its caller (set-uid, file capabilities).
pub(crate) fn is_privileged() -> bool {
    // SAFETY: getauxval(3) only returns a number.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns whether the program has AddressSanitizer.
fn has_sanitizer() -> bool {
    // SAFETY: dlsym(3) looks a name up; the address is not used.
    !unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__asan_init".as_ptr()) }.is_null()
}

/// Returns whether a loaded object has a segment that holds a whole huge page, or anything but text and rodata is
/// wanted.
fn may_be_lifted(options: &Options) -> bool {
    if !options.lifts_files_alone() {
        return true;
    }
    let mut found = false;
    // SAFETY: dl_iterate_phdr(3) calls `look` during the call only, with a pointer to `found`.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found
}

extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
    const HUGE: u64 = 2 << 20;
    // SAFETY: the loader passes a structure of its own with `dlpi_phnum` headers, valid during the call.
    let (info, headers) = unsafe {
        let info = &*info;
        (info, std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)))
    };
    let holds = |header: &libc::Elf64_Phdr| {
        let start = info.dlpi_addr.wrapping_add(header.p_vaddr);
        let first = start.next_multiple_of(HUGE);
        header.p_type == libc::PT_LOAD
            && header.p_flags & libc::PF_W == 0
            && first + HUGE <= start.saturating_add(header.p_memsz)
    };
    if headers.iter().any(holds) {
        // SAFETY: `may_be_lifted` passes a pointer to a live bool.
        unsafe { *found.cast::<bool>() = true };
        return 1;
    }
    0
}

/// Writes a line to stderr, as `hugelift run` does.
fn say(line: &str) {
    let line = format!("hugelift: {line}\n");
    // SAFETY: write(2) reads the bytes of a live string. Where stderr is closed nothing is written.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}
