// SPDX-License-Identifier: Apache-2.0
//! `LD_PRELOAD=libhugelift.so HUGELIFT="--parts text" prog`: lifts a program whose command line cannot be changed, before
//! its `main`.
//!
//! The shared library alone has this as its initial function (DT_INIT); programs that are linked with it statically do
//! not. It does nothing unless `HUGELIFT` is set, in programs that run with more rights than their caller, and in those
//! with AddressSanitizer, which knows the mappings of the program.

use crate::lift::lift;
use crate::options::Options;
use crate::privilege::is_privileged;
use crate::words::{Verbosity, parse};
use hugelift_core::snapshot::Part;
use hugelift_inject::loaded;
use std::os::unix::ffi::OsStrExt as _;

const VARIABLE: &str = "HUGELIFT";

/// Lifts the process if it was asked for by `HUGELIFT`. The loader calls it once: at the program's start, or when the
/// program opens the library itself.
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
    let mut options = options.clone();
    if options.takes_data() && !is_start() {
        // Nobody can say here what else writes to the data of a program that runs.
        options.parts.retain(|part| !matches!(part, Part::Data | Part::Relro));
        options.one_thread = false;
        if verbosity >= Verbosity::Problems {
            say("data is not lifted: it is not known that the program has just started");
        }
    }
    match lift(&options) {
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

/// Returns whether the program has AddressSanitizer.
fn has_sanitizer() -> bool {
    // SAFETY: dlsym(3) looks a name up; the address is not used.
    let found = !unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__asan_init".as_ptr()) }.is_null();
    if !found {
        // SAFETY: dlerror(3) forgets the error of this thread, which the program would take for one of its own.
        unsafe { libc::dlerror() };
    }
    found
}

/// Returns whether a loaded object has a segment that holds a whole huge page, or anything but text and rodata is
/// wanted.
fn may_be_lifted(options: &Options) -> bool {
    const HUGE: u64 = 2 << 20;
    let holds = |base: u64, header: &libc::Elf64_Phdr| {
        let start = base.wrapping_add(header.p_vaddr);
        header.p_type == libc::PT_LOAD
            && header.p_flags & libc::PF_W == 0
            && start
                .checked_next_multiple_of(HUGE)
                .and_then(|first| first.checked_add(HUGE))
                .is_some_and(|end| end <= start.saturating_add(header.p_memsz))
    };
    !options.lifts_files_alone()
        || loaded::any(|base, headers| headers.iter().any(|header| holds(base, header)))
}

/// Returns whether the loader calls the library before the program's own code, and not for a dlopen(3).
///
/// What the program needs or preloads comes before the loader in the loader's list, as it is the C library that needs
/// the loader. What is opened later comes at the end. Where the loader is not in the list, the answer is no.
fn is_start() -> bool {
    // SAFETY: getauxval(3) only returns a number.
    let loader = unsafe { libc::getauxval(libc::AT_BASE) };
    let own = hugelift_preload as *const () as u64;
    let holds = |base: u64, header: &libc::Elf64_Phdr| {
        let start = base.wrapping_add(header.p_vaddr);
        header.p_type == libc::PT_LOAD && own.checked_sub(start).is_some_and(|ahead| ahead < header.p_memsz)
    };
    let mut found = None;
    loaded::any(|base, headers| {
        if headers.iter().any(|header| holds(base, header)) {
            found.get_or_insert(false);
        } else if base == loader && loader != 0 {
            // The loader: the library came before, or it comes later.
            found = Some(found.is_some());
            return true;
        }
        false
    });
    found == Some(true)
}

/// Writes a line to stderr, as `hugelift run` does.
fn say(line: &str) {
    let line = format!("hugelift: {line}\n");
    // SAFETY: write(2) reads the bytes of a live string. Where stderr is closed nothing is written.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}
