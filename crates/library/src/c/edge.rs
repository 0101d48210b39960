// SPDX-License-Identifier: Apache-2.0
//! What each C function has around it.

use super::codes::{HUGELIFT_E_INTERNAL, HUGELIFT_OK};
use std::cell::Cell;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

/// Does the work of a C function, and returns its code. A panic ends here. errno is as before.
pub(super) fn guarded(work: impl FnOnce() -> Result<(), c_int>) -> c_int {
    let result = quietly(work).unwrap_or(Err(HUGELIFT_E_INTERNAL));
    result.map_or_else(|code| code, |()| HUGELIFT_OK)
}

/// Does the work of a C function that returns a value; `None` after a panic. errno is as before.
pub(crate) fn quietly<R>(work: impl FnOnce() -> R) -> Option<R> {
    let _cancel = Uncancelled::begin();
    let _errno = Errno::keep();
    let _silent = Silent::begin();
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => Some(result),
        Err(panic) => {
            // What a panic carries might panic again when it is dropped.
            std::mem::forget(panic);
            None
        }
    }
}

thread_local! {
    /// How many functions of the library this thread is in: a panic there prints nothing.
    static INSIDE: Cell<u32> = const { Cell::new(0) };
}

/// Whether the hook below was set. No `Once`: in a child of fork(2) it might wait for a thread of the parent. A thread
/// that comes while another sets the hook does not wait, and a panic of its own would be printed.
static CHAINED: AtomicBool = AtomicBool::new(false);

/// Keeps panics of this thread from being printed, until it is dropped. All others are reported as before, as a program
/// that is written in Rust itself may have a hook of its own.
struct Silent(());

impl Silent {
    fn begin() -> Silent {
        if !std::thread::panicking() && !CHAINED.swap(true, Ordering::Relaxed) {
            let others = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                if INSIDE.try_with(Cell::get).unwrap_or(0) == 0 {
                    others(info);
                }
            }));
        }
        let _ = INSIDE.try_with(|inside| inside.set(inside.get() + 1));
        Silent(())
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|inside| inside.set(inside.get().saturating_sub(1)));
    }
}

/// errno(3) of this thread, which is put back at the end.
pub(super) struct Errno(c_int);

impl Errno {
    pub(super) fn keep() -> Errno {
        // SAFETY: errno of this thread is always there.
        Errno(unsafe { *libc::__errno_location() })
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        // SAFETY: as in `keep`.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

/// cbindgen:ignore
#[expect(
    unused_doc_comments,
    reason = "it tells cbindgen that the public header declares none of these functions"
)]
unsafe extern "C" {
    /// The libc crate does not declare it for Linux.
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// glibc and musl have the same number.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// Keeps pthread_cancel(3) from ending this thread, until it is dropped: the C library would unwind the stack, which
/// ends the process at the first function of Rust, and nobody would undo what is half done.
struct Uncancelled(Option<c_int>);

impl Uncancelled {
    fn begin() -> Uncancelled {
        let mut old = 0;
        // SAFETY: the function sets a mark of this thread, and writes to a live number.
        let failed = unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut old) };
        Uncancelled((failed == 0).then_some(old))
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        if let Some(old) = self.0 {
            let mut disabled = 0;
            // SAFETY: as in `begin`. `old` is what the C library has returned there.
            unsafe { pthread_setcancelstate(old, &raw mut disabled) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn the_hook_of_the_program_is_told_of_its_own_panics_alone() {
        static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            SEEN.lock().unwrap().push(info.payload_as_str().unwrap_or_default().into());
            others(info);
        }));
        // The other test of this file may have set the library's hook before: here it comes after the program's.
        CHAINED.store(false, Ordering::Relaxed);
        assert_eq!(guarded(|| panic!("inside")), HUGELIFT_E_INTERNAL);
        assert!(catch_unwind(|| panic!("outside")).is_err());
        // A destructor that runs during a panic may call the library.
        struct Calls;
        impl Drop for Calls {
            fn drop(&mut self) {
                assert_eq!(guarded(|| Ok(())), HUGELIFT_OK);
            }
        }
        let unwound = catch_unwind(|| {
            let _calls = Calls;
            panic!("unwinding")
        });
        assert!(unwound.is_err());
        let seen = SEEN.lock().unwrap();
        assert!(seen.iter().any(|text| text == "outside") && seen.iter().any(|text| text == "unwinding"));
        assert!(seen.iter().all(|text| text != "inside"), "{seen:?}");
    }

    #[test]
    fn a_thread_is_not_cancelled_inside() {
        let state = || {
            let mut state = -1;
            // SAFETY: as in `Uncancelled::begin`. No test cancels a thread.
            unsafe {
                assert_eq!(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut state), 0);
                assert_eq!(pthread_setcancelstate(state, std::ptr::null_mut()), 0);
            }
            state
        };
        let outside = state();
        assert_ne!(outside, PTHREAD_CANCEL_DISABLE);
        // A function may call another one, as the log function of a caller might.
        let inside = quietly(|| (quietly(state), state()));
        assert_eq!(inside, Some((Some(PTHREAD_CANCEL_DISABLE), PTHREAD_CANCEL_DISABLE)));
        assert!(quietly::<()>(|| panic!("on purpose")).is_none());
        assert_eq!(state(), outside);
    }

    #[test]
    fn a_panic_becomes_a_code_and_errno_stays() {
        let set = |value| {
            // SAFETY: errno of this thread is always there.
            unsafe { *libc::__errno_location() = value }
        };
        set(33);
        let code = guarded(|| {
            set(44);
            panic!("on purpose")
        });
        assert_eq!(code, HUGELIFT_E_INTERNAL);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(33));
        assert_eq!(guarded(|| Err(-3)), -3);
        assert_eq!(guarded(|| Ok(())), HUGELIFT_OK);
    }
}
