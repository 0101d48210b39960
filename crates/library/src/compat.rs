// SPDX-License-Identifier: Apache-2.0
//! The functions of two other libraries, written anew from their public documentation, so that their users
//! change one line of a build file: `remap_text_and_data_to_huge_pages` of elfremapper, and those of iodlr's
//! `large_page.h`. The headers are in `include/hugelift/compat`.

#![allow(non_snake_case, reason = "the names of that library")]

use crate::c::quietly;
use crate::error::Error;
use crate::lift::lift;
use crate::options::Options;
use crate::outcome::Outcome;
use hugelift_core::policy::Backing;
use hugelift_core::snapshot::Part;
use hugelift_linux::machine;
use hugelift_linux::proc::procfs::Process;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// What `large_page.h` calls `map_status`, as far as it is returned here.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapStatus {
    /// `map_ok`
    Ok = 0,
    /// `map_failed_to_open_thp_file`
    NoThp = 1,
    /// `map_invalid_regex`
    InvalidRegex = 2,
    /// `map_invalid_region_address`
    InvalidRegion = 3,
    /// `map_null_regex`
    NullRegex = 5,
    /// `map_region_not_found`
    NotFound = 6,
    /// `map_region_too_small`
    TooSmall = 7,
    /// `map_see_errno`: no huge pages could be had
    Failed = 8,
}

/// Statuses with a short and a long text.
const TEXTS: [(MapStatus, &CStr, &CStr); 8] = [
    (MapStatus::Ok, c"map_ok", c"success"),
    (MapStatus::NoThp, c"map_failed_to_open_thp_file", c"the kernel has no transparent huge pages"),
    (MapStatus::InvalidRegex, c"map_invalid_regex", c"the regular expression is malformed"),
    (MapStatus::InvalidRegion, c"map_invalid_region_address", c"the range ends before it begins, or is null"),
    (MapStatus::NullRegex, c"map_null_regex", c"the regular expression is a null pointer"),
    (MapStatus::NotFound, c"map_region_not_found", c"no object of the process matches"),
    (MapStatus::TooSmall, c"map_region_too_small", c"the code holds no whole huge page"),
    (MapStatus::Failed, c"map_see_errno", c"no huge pages could be had; hugelift_lift_self logs why"),
];

/// Lifts the text of the executable.
#[unsafe(no_mangle)]
pub extern "C" fn MapStaticCodeToLargePages() -> c_int {
    map(|| Ok(text_of(&[&executable()])))
}

/// Lifts the text of the objects whose path matches an extended regular expression (regex(7)).
///
/// # Safety
/// `pattern` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MapDSOToLargePages(pattern: *const c_char) -> c_int {
    map(|| {
        if pattern.is_null() {
            return Err(MapStatus::NullRegex);
        }
        // SAFETY: the caller passes a C string.
        let pattern = unsafe { CStr::from_ptr(pattern) };
        let paths = matching(pattern).ok_or(MapStatus::InvalidRegex)?;
        let paths: Vec<&Path> = paths.iter().map(AsRef::as_ref).collect();
        match paths.is_empty() {
            true => Err(MapStatus::NotFound),
            false => Ok(text_of(&paths)),
        }
    })
}

/// Lifts the code between two addresses.
#[unsafe(no_mangle)]
pub extern "C" fn MapStaticCodeRangeToLargePages(from: *mut c_void, to: *mut c_void) -> c_int {
    map(|| match !from.is_null() && from < to {
        true => Ok(Options::new().parts(&[Part::Text]).within(from.addr()..to.addr())),
        false => Err(MapStatus::InvalidRegion),
    })
}

/// Says whether the process may have transparent huge pages.
///
/// # Safety
/// `result` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn IsLargePagesEnabled(result: *mut bool) -> c_int {
    let machine = quietly(|| machine::probe(None));
    let enabled = machine.as_ref().is_some_and(|m| m.thp_page.is_some() && m.thp_off.is_none());
    if !result.is_null() {
        // SAFETY: the caller passes a valid pointer.
        unsafe { result.write(enabled) };
    }
    match machine.is_some_and(|m| m.thp_page.is_some()) {
        true => MapStatus::Ok as c_int,
        false => MapStatus::NoThp as c_int,
    }
}

/// Returns the text of a status.
#[unsafe(no_mangle)]
pub extern "C" fn MapStatusStr(status: c_int, fulltext: bool) -> *const c_char {
    let found = TEXTS.iter().find(|(known, ..)| *known as c_int == status);
    let text = found.map(|(_, short, long)| if fulltext { long } else { short });
    text.map_or(c"unknown status".as_ptr(), |text| text.as_ptr())
}

/// Lifts text and data of the executable, and returns the number of huge pages that they have then; 0 on failure,
/// which `logger` is told about.
///
/// # Safety
/// `logger` is null or such a function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn remap_text_and_data_to_huge_pages(
    logger: Option<unsafe extern "C" fn(message: *const c_char)>,
) -> usize {
    let say = |line: &str| {
        if let (Some(logger), Ok(line)) = (logger, CString::new(line)) {
            // SAFETY: the caller passes such a function.
            unsafe { logger(line.as_ptr()) };
        }
    };
    let lifted = quietly(|| {
        let all = [Part::Text, Part::Rodata, Part::Relro, Part::Data, Part::Bss];
        let mut options = text_of(&[&executable()]).one_thread();
        // That library takes its pages from the reserved pool. Where it is empty, transparent ones do as well.
        options.backings = vec![Backing::Hugetlb, Backing::Thp];
        let done = match lift(&options.clone().parts(&all)) {
            Err(error @ Error::Threads(_)) => {
                say(&error.to_string());
                lift(&options.parts(&[Part::Text, Part::Rodata, Part::Bss]))
            }
            done => done,
        };
        match done {
            Ok(outcome) => {
                outcome.complaints().iter().for_each(|line| say(line));
                let bytes = all.iter().map(|part| outcome.total(*part).huge_bytes).sum::<u64>();
                if bytes == 0 {
                    say(outcome.summary());
                }
                usize::try_from(bytes / outcome.report().page_size.max(1)).unwrap_or(usize::MAX)
            }
            Err(error) => {
                say(&error.to_string());
                0
            }
        }
    });
    lifted.unwrap_or(0)
}

/// Lifts what `choose` returns, and returns the status.
fn map(choose: impl FnOnce() -> Result<Options, MapStatus>) -> c_int {
    let done = quietly(|| match choose().map(|options| lift(&options)) {
        Err(status) => status,
        Ok(Ok(outcome)) => status_of(&outcome),
        Ok(Err(_)) => MapStatus::Failed,
    });
    done.unwrap_or(MapStatus::Failed) as c_int
}

/// Returns the status of a lift of text.
fn status_of(outcome: &Outcome) -> MapStatus {
    match outcome.total(Part::Text) {
        text if text.huge_bytes > 0 => MapStatus::Ok,
        text if text.liftable_bytes == 0 => MapStatus::TooSmall,
        _ => MapStatus::Failed,
    }
}

/// Returns the options that lift the text of the objects at these paths.
fn text_of(paths: &[&Path]) -> Options {
    let pattern = |path: &&Path| {
        let special = |c: char| if "*?[]{}\\".contains(c) { format!("[{c}]") } else { c.to_string() };
        // The empty pattern matches nothing, where none at all would match everything.
        path.to_str().unwrap_or_default().chars().map(special).collect::<String>()
    };
    let options = Options::new().parts(&[Part::Text]);
    paths.iter().map(pattern).fold(options, |options, pattern| options.object(&pattern))
}

fn executable() -> std::path::PathBuf {
    std::env::current_exe().unwrap_or_default()
}

/// Returns the paths of mapped files that match an extended regular expression; `None` if it is malformed.
fn matching(pattern: &CStr) -> Option<Vec<std::path::PathBuf>> {
    let mut compiled = std::mem::MaybeUninit::<libc::regex_t>::uninit();
    let flags = libc::REG_EXTENDED | libc::REG_NOSUB;
    // SAFETY: regcomp(3) fills in the structure, which lives on, if it returns 0.
    if unsafe { libc::regcomp(compiled.as_mut_ptr(), pattern.as_ptr(), flags) } != 0 {
        return None;
    }
    let is_match = |path: &Path| {
        let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
        // SAFETY: the expression was compiled above; nothing is written.
        unsafe { libc::regexec(compiled.as_ptr(), path.as_ptr(), 0, std::ptr::null_mut(), 0) == 0 }
    };
    let mut paths: Vec<_> = Process::OWN.maps().unwrap_or_default().into_iter().map(|m| m.path).collect();
    paths.sort();
    paths.dedup();
    paths.retain(|path| path.is_absolute() && is_match(path));
    // SAFETY: the expression was compiled above and is used no more.
    unsafe { libc::regfree(compiled.as_mut_ptr()) };
    Some(paths)
}
