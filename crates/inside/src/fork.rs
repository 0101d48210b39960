// SPDX-License-Identifier: Apache-2.0
//! fork(2) with writable memory on pages of the pool.
//!
//! The kernel copies such a page when it is written, from a pool that may be empty: a child that
//! writes dies of SIGBUS; when the parent writes, the child loses the page, and dies when it reads.
//! So the child gets memory of its own before fork(2) returns in either of them:
//!
//! ```text
//!   parent   prepare: block signals --- fork ---------- wait ----------. unblock
//!                                         |                             |
//!   child                                 '-- copy (reads only), replace -- unblock
//! ```
//!
//! Nothing writes to the shared pages meanwhile: the parent has one thread. Before it gets a second
//! one, its spans leave the pool for good: another thread could write while a child copies, and the
//! kernel offers no snapshot.

use crate::mappings::{self, Mapping};
use crate::table::{Span, TABLE, state};
use crate::{libc, lookup, sys};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

const EAGAIN: c_int = 11;

/// How many pages of the pool are kept for the next child.
static RESERVE: AtomicUsize = AtomicUsize::new(0);
/// The address of the reserved pages; 0 if none are reserved.
static RESERVED_AT: AtomicUsize = AtomicUsize::new(0);

/// True between `prepare` and its counterparts.
static UNDER_WAY: AtomicBool = AtomicBool::new(false);
static MASK: AtomicU64 = AtomicU64::new(0);
/// Both ends of a pipe that ends when the child has what it needs, or is dead.
static READ_END: AtomicUsize = AtomicUsize::new(usize::MAX);
static WRITE_END: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Registers the handlers of fork(2) if `reserve` is given: the number of pages to keep for a child.
pub fn guard(reserve: Option<usize>) {
    let guarded = reserve.is_some_and(|pages| {
        RESERVE.store(pages, Relaxed);
        lookup::next(c"pthread_create") != 0 && libc::at_fork(prepare, in_parent, in_child)
    });
    if !guarded && TABLE.count() != 0 {
        leave_pool();
    }
    // A constructor of another library may have started a thread already.
    if TABLE.state() != state::THREADS {
        TABLE.set_state(if guarded { state::GUARDED } else { state::NONE });
    }
}

/// Returns the size of the pool's pages, which is the same for all spans.
fn page() -> usize {
    TABLE.spans().next().map_or(0, |span| span.page as usize)
}

/// Reserves the next child's pages.
fn reserve() {
    let bytes = RESERVE.load(Relaxed).saturating_mul(page());
    if bytes != 0
        && RESERVED_AT.load(Relaxed) == 0
        && let Ok(at) = sys::map(0, bytes, sys::hugetlb(page()))
    {
        RESERVED_AT.store(at, Relaxed);
    }
}

fn release() {
    let at = RESERVED_AT.swap(0, Relaxed);
    if at != 0 {
        // SAFETY: mapped by `reserve`, and never used.
        unsafe { sys::unmap(at, RESERVE.load(Relaxed) * page()) };
    }
}

/// The handler before fork(2). The first fork(2) is the first moment after hugelift has filled the table,
/// so pages are reserved from the second fork(2) on. (The pool is as full then as it is now.)
extern "C" fn prepare() {
    if TABLE.count() == 0 {
        return;
    }
    MASK.store(sys::set_mask(sys::SIG_BLOCK_ALL), Relaxed);
    UNDER_WAY.store(true, Relaxed);
    release();
    match sys::pipe() {
        Some((read, write)) => {
            READ_END.store(read, Relaxed);
            WRITE_END.store(write, Relaxed);
        }
        // Without a pipe the parent cannot wait for the child, so the child must not need a copy.
        None => leave_pool(),
    }
}

extern "C" fn in_parent() {
    if !UNDER_WAY.swap(false, Relaxed) {
        return;
    }
    let (read, write) = (READ_END.swap(usize::MAX, Relaxed), WRITE_END.swap(usize::MAX, Relaxed));
    if read != usize::MAX {
        sys::close(write);
        // The child writes nothing. The read ends when the child closes the pipe.
        sys::read_all(read, &mut [0]);
        sys::close(read);
        reserve();
    }
    sys::set_mask(MASK.load(Relaxed));
}

extern "C" fn in_child() {
    if !UNDER_WAY.swap(false, Relaxed) {
        return;
    }
    let (read, write) = (READ_END.swap(usize::MAX, Relaxed), WRITE_END.swap(usize::MAX, Relaxed));
    if read != usize::MAX {
        let all = renew(RESERVE.load(Relaxed));
        // Spans that are left on the pool stay in the table for the children of this process.
        if all && RESERVE.load(Relaxed) == 0 {
            TABLE.clear();
        }
        sys::close(read);
        sys::close(write);
    }
    sys::set_mask(MASK.load(Relaxed));
}

/// Replaces all spans by memory that is not from the pool.
fn leave_pool() {
    if renew(0) {
        TABLE.clear();
    }
}

/// Gives each span memory of this process's own: `pages` of it from the pool, as far as there are
/// any. Returns whether all that was on the pool has been replaced.
fn renew(mut pages: usize) -> bool {
    let mut all = true;
    let is_known = mappings::each_on_pool(|mapping| {
        // The program may have changed what it allows there, or have given it back.
        for span in TABLE.spans() {
            let start = mapping.start.max(span.start as usize);
            let end = mapping.end.min(span.end as usize);
            if start < end {
                let range = Mapping { start, end, prot: mapping.prot };
                all &= replace(range, span, &mut pages, Content::Readable);
            }
        }
    });
    match is_known {
        Some(is_complete) => all && is_complete,
        // Without /proc the spans are taken to be as hugelift has left them.
        None => TABLE.spans().fold(true, |all, span| {
            let (start, end) = (span.start as usize, span.end as usize);
            let range = Mapping { start, end, prot: sys::PROT_READ_WRITE };
            replace(range, span, &mut pages, Content::Unknown) && all
        }),
    }
}

/// What is known about a range to be copied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    /// All of it is mapped, with the protection that is given.
    Readable,
    /// The program may have unmapped some of it, or made it inaccessible: reading it could end the process.
    Unknown,
}

fn replace(range: Mapping, span: Span, pages: &mut usize, content: Content) -> bool {
    let page = (span.page as usize).max(1);
    let from_pool = (*pages).min((range.end - range.start) / page);
    let middle = range.start + from_pool * page;
    let mut rest = range;
    if from_pool > 0 && copy(Mapping { end: middle, ..range }, page, true, content) {
        *pages -= from_pool;
        rest.start = middle;
    }
    rest.start == rest.end || copy(rest, page, false, content)
}

/// Copies a range to fresh memory and puts that in its place.
fn copy(range: Mapping, page: usize, pool: bool, content: Content) -> bool {
    let bytes = range.end - range.start;
    let (flags, spare) = if pool { (sys::hugetlb(page), 0) } else { (sys::MAP_NORESERVE, page) };
    let Ok(mapped) = sys::map(0, bytes + spare, flags) else { return false };
    let at = mapped.next_multiple_of(page);
    // SAFETY: what has been mapped around it, for its alignment.
    unsafe {
        sys::unmap(mapped, at - mapped);
        sys::unmap(at + bytes, mapped + spare - at);
    }
    let ready = if pool {
        // A limit shows here as an error, and would be SIGBUS at the first touch.
        sys::advise(at, bytes, sys::MADV_POPULATE_WRITE)
    } else {
        sys::advise(at, bytes, sys::MADV_HUGEPAGE);
        true
    };
    let done = ready && copy_over(range, page, at, content);
    if !done {
        // SAFETY: mapped above, and not moved.
        unsafe { sys::unmap(at, bytes) };
    }
    done
}

/// Copies a range to `at`, where as many fresh bytes are mapped, and moves the copy over it.
fn copy_over(range: Mapping, page: usize, at: usize, content: Content) -> bool {
    let bytes = range.end - range.start;
    let is_closed = range.prot & sys::PROT_READ == 0;
    // SAFETY: the program forbids access to the range; only this function runs while it is allowed.
    if is_closed && !unsafe { sys::protect(range.start, bytes, sys::PROT_READ) } {
        return false;
    }
    let is_copied = match content {
        // SAFETY: both are mapped, of this length and apart from each other; nothing writes to
        // the first, as the module says.
        Content::Readable => unsafe {
            copy_pages(range.start, at, bytes, page);
            true
        },
        // SAFETY: the second is mapped, of this length, and this function's alone.
        Content::Unknown => unsafe { sys::copy_own(range.start, at, bytes) },
    };
    // SAFETY: the copy is this function's alone.
    let is_protected = range.prot == sys::PROT_READ_WRITE || unsafe { sys::protect(at, bytes, range.prot) };
    let done = is_copied && is_protected && sys::move_over(at, bytes, range.start);
    if !done && is_closed {
        // SAFETY: restores the protection that the range had; its content is as it was.
        unsafe { sys::protect(range.start, bytes, range.prot) };
    }
    done
}

/// Copies memory to fresh memory, except pages of zeros: so bss that was never written takes no memory,
/// and is missing again for a userfaultfd.
///
/// # Safety
/// Both are `bytes` long, aligned to `page`, mapped, and apart from each other. Nothing else writes to them.
unsafe fn copy_pages(from: usize, to: usize, bytes: usize, page: usize) {
    for offset in (0..bytes).step_by(page) {
        let length = page.min(bytes - offset);
        // SAFETY: the caller's promise; within both.
        unsafe {
            let (source, copy) = ((from + offset) as *const u8, (to + offset) as *mut u8);
            let words = core::slice::from_raw_parts(source.cast::<u64>(), length / size_of::<u64>());
            if words.iter().any(|word| *word != 0) {
                core::ptr::copy_nonoverlapping(source, copy, length);
            }
        }
    }
}

type Work = extern "C" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(*mut c_void, *const c_void, Work, *mut c_void) -> c_int;

/// Takes everything writable off the pool before a second thread exists.
fn before_a_thread() -> bool {
    if TABLE.state() == state::THREADS {
        return true;
    }
    if TABLE.count() != 0 {
        let mask = sys::set_mask(sys::SIG_BLOCK_ALL);
        release();
        leave_pool();
        sys::set_mask(mask);
    }
    let left = TABLE.count() == 0;
    if left {
        TABLE.set_state(state::THREADS);
    }
    left
}

/// # Safety
/// pthread_create(3)
#[cfg_attr(loaded, unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_create(
    thread: *mut c_void,
    attributes: *const c_void,
    work: Work,
    argument: *mut c_void,
) -> c_int {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    match (found(&NEXT, c"pthread_create"), before_a_thread()) {
        (0, _) | (_, false) => EAGAIN,
        // SAFETY: the C library's own function, and our caller's arguments.
        (next, true) => unsafe {
            core::mem::transmute::<usize, Create>(next)(thread, attributes, work, argument)
        },
    }
}

type WorkC11 = extern "C" fn(*mut c_void) -> c_int;
type CreateC11 = unsafe extern "C" fn(*mut c_void, WorkC11, *mut c_void) -> c_int;

/// # Safety
/// thrd_create(3)
#[cfg_attr(loaded, unsafe(no_mangle))]
pub unsafe extern "C" fn thrd_create(thread: *mut c_void, work: WorkC11, argument: *mut c_void) -> c_int {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    match (found(&NEXT, c"thrd_create"), before_a_thread()) {
        (0, _) | (_, false) => libc::thrd_nomem(),
        // SAFETY: as in `pthread_create`.
        (next, true) => unsafe { core::mem::transmute::<usize, CreateC11>(next)(thread, work, argument) },
    }
}

fn found(cache: &AtomicUsize, name: &core::ffi::CStr) -> usize {
    match cache.load(Relaxed) {
        0 => {
            let next = lookup::next(name);
            cache.store(next, Relaxed);
            next
        }
        next => next,
    }
}
