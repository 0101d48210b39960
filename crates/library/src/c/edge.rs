// SPDX-License-Identifier: Apache-2.0
//! What each C function has around it.

use super::{HUGELIFT_E_INTERNAL, HUGELIFT_OK};
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does the work of a C function, and returns its code. A panic ends here. errno is as before.
pub(super) fn guarded(work: impl FnOnce() -> Result<(), c_int>) -> c_int {
    let result = quietly(work).unwrap_or(Err(HUGELIFT_E_INTERNAL));
    result.map_or_else(|code| code, |()| HUGELIFT_OK)
}

/// Does the work of a C function that returns a value; `None` after a panic. errno is as before.
pub(crate) fn quietly<R>(work: impl FnOnce() -> R) -> Option<R> {
    let _errno = Errno::keep();
    silence_panics();
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => Some(result),
        Err(panic) => {
            // What a panic carries might panic again when it is dropped.
            std::mem::forget(panic);
            None
        }
    }
}

/// Keeps the standard library from printing the message of a panic.
fn silence_panics() {
    #[cfg(not(test))]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| std::panic::set_hook(Box::new(|_| {})));
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

#[cfg(test)]
mod tests {
    use super::*;

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
