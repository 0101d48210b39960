// SPDX-License-Identifier: Apache-2.0
//! `struct hugelift_options`.

#![allow(non_camel_case_types, reason = "the names of C")]

use super::codes::{HUGELIFT_E_INVALID, HUGELIFT_OK};
use crate::options::Options;
use hugelift_core::addr::PageSize;
use hugelift_core::policy::Backing;
use hugelift_core::snapshot::Part;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

/// Code.
pub const HUGELIFT_PART_TEXT: u32 = 1;
/// Read-only data.
pub const HUGELIFT_PART_RODATA: u32 = 2;
/// Initialised data, also what is read-only after relocation. Needs HUGELIFT_ONE_THREAD.
pub const HUGELIFT_PART_DATA: u32 = 4;
/// Data that is zero at the start. It becomes huge where it is, also while threads write to it.
pub const HUGELIFT_PART_BSS: u32 = 8;
/// What brk(2) manages. It becomes huge where it is, also while threads write to it.
pub const HUGELIFT_PART_HEAP: u32 = 16;

/// Huge pages of the page cache where there are some, else the copy that all processes share, else transparent huge
/// pages.
pub const HUGELIFT_BACKING_AUTO: u32 = 0;
/// The file's own page cache, if it is in huge pages already: nothing is copied.
pub const HUGELIFT_BACKING_PAGECACHE: u32 = 1;
/// A copy in the store, which all processes share.
pub const HUGELIFT_BACKING_SHARED: u32 = 2;
/// A copy on transparent huge pages.
pub const HUGELIFT_BACKING_THP: u32 = 3;
/// A copy on pages of the reserved pool (vm.nr_hugepages).
pub const HUGELIFT_BACKING_HUGETLB: u32 = 4;

/// Flag: the process has one thread, and nothing else writes to its data (no other process by shared memory, no
/// asynchronous I/O). The library checks the number of threads.
pub const HUGELIFT_ONE_THREAD: u32 = 1;

/// Nothing is logged.
pub const HUGELIFT_LOG_NONE: c_int = 0;
/// Why the call failed.
pub const HUGELIFT_LOG_ERROR: c_int = 1;
/// Also what was not lifted although it might have been, with what helps.
pub const HUGELIFT_LOG_WARNING: c_int = 2;
/// Also what is on huge pages now, in one line.
pub const HUGELIFT_LOG_INFO: c_int = 3;
/// Also a line for each part of each object.
pub const HUGELIFT_LOG_DEBUG: c_int = 4;

/// Receives a line, without a line break, in UTF-8. It is called in the thread that called the library, before that
/// call returns. It must not call the library, and must not leave by longjmp(3) or by an exception. The text is valid
/// until it returns.
pub type hugelift_log_function =
    Option<unsafe extern "C" fn(context: *mut c_void, level: c_int, message: *const c_char)>;

/// What to lift, and onto what. hugelift_options_init() fills it in.
#[repr(C)]
pub struct hugelift_options {
    /// Bytes of this structure, as the program was compiled with.
    pub size: usize,
    /// HUGELIFT_PART_*, added up. Text and read-only data, unless changed.
    pub parts: u32,
    /// One of HUGELIFT_BACKING_*, for text and read-only data.
    pub backing: u32,
    /// Size of the huge pages in bytes; 0 for the usual one of the backing.
    pub page_size: u64,
    /// Bytes that may go into copies where a control group limits the memory of the program. 0, unless changed: there
    /// nothing is copied.
    pub spare: u64,
    /// HUGELIFT_ONE_THREAD or 0.
    pub flags: u32,
    /// The most detailed HUGELIFT_LOG_* that is logged. HUGELIFT_LOG_INFO, unless changed.
    pub log_level: c_int,
    /// Receives what is logged; NULL for nothing.
    pub log: hugelift_log_function,
    /// The first argument of `log`.
    pub log_context: *mut c_void,
    /// Shell patterns, ended by NULL: only objects whose path or file name matches one are lifted. NULL for all.
    pub objects: *const *const c_char,
    /// Shell patterns, ended by NULL: objects whose path or file name matches one are not lifted. NULL for none.
    pub excluded: *const *const c_char,
}

impl hugelift_options {
    /// Returns the defaults.
    fn new() -> hugelift_options {
        hugelift_options {
            size: size_of::<hugelift_options>(),
            parts: HUGELIFT_PART_TEXT | HUGELIFT_PART_RODATA,
            backing: HUGELIFT_BACKING_AUTO,
            page_size: 0,
            spare: 0,
            flags: 0,
            log_level: HUGELIFT_LOG_INFO,
            log: None,
            log_context: std::ptr::null_mut(),
            objects: std::ptr::null(),
            excluded: std::ptr::null(),
        }
    }
}

/// Fills in the defaults.
///
/// Before: `options` points to `size` writable bytes; `size` is `sizeof *options`. A program that was compiled with an
/// older header works: what it does not know has its default. So does one that was compiled with a newer header, as
/// long as what this version does not know stays as this function leaves it.
/// After: `options` may be changed member by member and passed to the other functions.
///
/// Thread-safe, async-signal-safe. Errors: HUGELIFT_E_INVALID for a null pointer, or a size that no version had
/// or will have.
///
/// # Safety
/// The pointer is as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugelift_options_init(options: *mut hugelift_options, size: usize) -> c_int {
    if options.is_null() || !may_be_size(size) {
        return HUGELIFT_E_INVALID;
    }
    let defaults = hugelift_options { size, ..hugelift_options::new() };
    let known = size.min(size_of::<hugelift_options>());
    // SAFETY: the caller has `size` writable bytes there, and `known` is no more than the structure has.
    unsafe {
        options.cast::<u8>().write_bytes(0, size);
        options.cast::<u8>().copy_from_nonoverlapping((&raw const defaults).cast(), known);
    }
    HUGELIFT_OK
}

/// The sizes that the structure has had, in the order of the versions.
const SIZES: [usize; 1] = [size_of::<hugelift_options>()];
/// No version will have more bytes: a larger size is a number that was never initialised.
const MOST: usize = 4096;

/// Returns whether the structure has this size in a version up to this one, or may have it in a later one.
fn may_be_size(size: usize) -> bool {
    let later = size_of::<hugelift_options>()..=MOST;
    SIZES.contains(&size) || later.contains(&size) && size.is_multiple_of(align_of::<hugelift_options>())
}

/// Returns whether members that this version does not know are all zero: they ask for nothing.
///
/// # Safety
/// `options` points to `size` readable bytes.
unsafe fn asks_for_nothing_new(options: *const hugelift_options, size: usize) -> bool {
    let known = size_of::<hugelift_options>();
    // SAFETY: the bytes from `known` to `size` lie behind the members that this version has.
    (known..size).all(|at| unsafe { options.cast::<u8>().add(at).read() } == 0)
}

/// Where lines of a call go.
pub(super) struct Log {
    function: hugelift_log_function,
    context: *mut c_void,
    level: c_int,
}

impl Log {
    pub(super) fn wants(&self, level: c_int) -> bool {
        self.function.is_some() && level <= self.level
    }

    pub(super) fn say(&self, level: c_int, line: &str) {
        let Some(function) = self.function.filter(|_| self.wants(level)) else { return };
        let Ok(line) = CString::new(line) else { return };
        // SAFETY: the caller of the library has passed a function of this type, and its context.
        unsafe { function(self.context, level, line.as_ptr()) };
    }
}

/// Reads the options of a call.
///
/// # Safety
/// `options` is null or as [`hugelift_options_init`] has left it, changed member by member.
pub(super) unsafe fn read(options: *const hugelift_options) -> Result<(Options, Log), c_int> {
    let mut given = hugelift_options::new();
    if !options.is_null() {
        // SAFETY: each version of the structure begins with its size.
        let size = unsafe { (&raw const (*options).size).read() };
        // SAFETY: the structure has `size` bytes.
        if !may_be_size(size) || !unsafe { asks_for_nothing_new(options, size) } {
            return Err(HUGELIFT_E_INVALID);
        }
        let known = size.min(size_of::<hugelift_options>());
        // SAFETY: the structure has `size` bytes, and its members are numbers and pointers.
        unsafe { (&raw mut given).cast::<u8>().copy_from_nonoverlapping(options.cast(), known) };
    }
    let log = Log { function: given.log, context: given.log_context, level: given.log_level };
    // SAFETY: the lists are null or ended by null, as the structure describes.
    let asked = unsafe { asked(&given) };
    if asked.is_none() {
        log.say(HUGELIFT_LOG_ERROR, "unknown part, backing, flag or page size in the options");
    }
    Ok((asked.ok_or(HUGELIFT_E_INVALID)?, log))
}

/// Returns the meaning of options; `None` if a number in them has none.
///
/// # Safety
/// The lists in `given` are null or ended by null.
unsafe fn asked(given: &hugelift_options) -> Option<Options> {
    const ALL: [(u32, &[Part]); 5] = [
        (HUGELIFT_PART_TEXT, &[Part::Text]),
        (HUGELIFT_PART_RODATA, &[Part::Rodata]),
        (HUGELIFT_PART_DATA, &[Part::Relro, Part::Data]),
        (HUGELIFT_PART_BSS, &[Part::Bss]),
        (HUGELIFT_PART_HEAP, &[Part::Heap]),
    ];
    let known: u32 = ALL.iter().map(|(bit, _)| bit).sum();
    if given.parts & !known != 0 || given.flags & !HUGELIFT_ONE_THREAD != 0 {
        return None;
    }
    let wanted = ALL.iter().filter(|(bit, _)| given.parts & bit != 0);
    let parts: Vec<Part> = wanted.flat_map(|(_, parts)| parts.iter().copied()).collect();
    let mut options = Options::new().parts(&parts).spare(given.spare);
    options = match given.backing {
        HUGELIFT_BACKING_AUTO => options,
        HUGELIFT_BACKING_PAGECACHE => options.backing(Backing::Pagecache),
        HUGELIFT_BACKING_SHARED => options.backing(Backing::Shared),
        HUGELIFT_BACKING_THP => options.backing(Backing::Thp),
        HUGELIFT_BACKING_HUGETLB => options.backing(Backing::Hugetlb),
        _ => return None,
    };
    if given.page_size != 0 {
        options = options.page_size(PageSize::new(given.page_size)?);
    }
    if given.flags & HUGELIFT_ONE_THREAD != 0 {
        options = options.one_thread();
    }
    // SAFETY: the caller passes such lists.
    let (objects, excluded) = unsafe { (words(given.objects), words(given.excluded)) };
    options = objects.iter().fold(options, |options, pattern| options.object(pattern));
    Some(excluded.iter().fold(options, |options, pattern| options.exclude(pattern)))
}

/// Returns the words of a list.
///
/// # Safety
/// `list` is null or ended by null.
unsafe fn words(list: *const *const c_char) -> Vec<String> {
    let mut words = Vec::new();
    if list.is_null() {
        return words;
    }
    let mut at = list;
    // SAFETY: the list ends with null, and each entry before that is a C string.
    unsafe {
        while !(*at).is_null() {
            words.push(CStr::from_ptr(*at).to_string_lossy().into_owned());
            at = at.add(1);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads options as a function of the library does.
    fn asked_for(options: *const hugelift_options) -> Result<Options, c_int> {
        // SAFETY: the tests pass what `hugelift_options_init` has left, changed member by member, or null.
        unsafe { read(options) }.map(|(options, _)| options)
    }

    /// A structure of `N` words, as a program has it that was compiled with another header.
    fn of_words<const N: usize>() -> ([u64; N], c_int) {
        let mut words = [u64::MAX; N];
        // SAFETY: there are as many bytes.
        let code = unsafe { hugelift_options_init(words.as_mut_ptr().cast(), size_of_val(&words)) };
        (words, code)
    }

    #[test]
    fn a_later_structure_asks_for_nothing_that_is_not_known() {
        assert_eq!(asked_for(std::ptr::null()).map(|o| o.parts), Ok(vec![Part::Text, Part::Rodata]));
        let (mut later, code) = of_words::<{ size_of::<hugelift_options>() / 8 + 2 }>();
        assert_eq!(code, HUGELIFT_OK);
        assert!(asked_for(later.as_ptr().cast()).is_ok());
        later[size_of::<hugelift_options>() / 8 + 1] = 1 << 60;
        assert_eq!(asked_for(later.as_ptr().cast()).err(), Some(HUGELIFT_E_INVALID));
        assert_eq!(of_words::<2>().1, HUGELIFT_E_INVALID);
        assert_eq!(of_words::<1>().1, HUGELIFT_E_INVALID);
    }

    #[test]
    fn patterns_are_read_to_the_end_of_their_list() {
        let list = [c"a*".as_ptr(), c"b".as_ptr(), std::ptr::null()];
        let mut options = hugelift_options::new();
        (options.objects, options.excluded) = (list.as_ptr(), list[1..].as_ptr());
        let asked = asked_for(&options).unwrap();
        assert_eq!((asked.objects, asked.excluded), (vec!["a*".into(), "b".into()], vec!["b".into()]));
        options.flags = 2;
        assert_eq!(asked_for(&options).err(), Some(HUGELIFT_E_INVALID));
    }
}
