// SPDX-License-Identifier: Apache-2.0
//! Before `main`: prepares the guard of fork(2), and removes from the environment what was set for this
//! program alone, so that no program which it starts loads the library.

use crate::environment::Environment;
use crate::names::{GUARD, LIBRARY, PRELOAD};
use crate::{fork, libc};
use core::ffi::{CStr, c_ulong};

const AT_SECURE: c_ulong = 23;

#[cfg_attr(loaded, unsafe(link_section = ".init_array"))]
#[used]
static START: extern "C" fn() = start;

extern "C" fn start() {
    let Some(environ) = libc::environ() else { return };
    // SAFETY: the C library has set it, or it is null. There is one thread, so nothing changes it.
    let array = unsafe { *environ };
    if array.is_null() || libc::auxiliary(AT_SECURE) != 0 {
        return;
    }
    // SAFETY: environ(7): an array of strings that a null pointer ends.
    let environment = unsafe { Environment::new(array) };
    let pages = environment.get(GUARD);
    fork::guard(pages.and_then(|p| core::str::from_utf8(p.to_bytes()).ok()?.parse().ok()));
    environment.remove(GUARD);
    let preload = environment.get(PRELOAD).map_or(&[][..], CStr::to_bytes);
    if let Some(own) = own_length(preload) {
        environment.shorten(PRELOAD, own);
    }
}

/// Returns the length of this library's path and its separator, if a value of `LD_PRELOAD` begins with
/// them.
fn own_length(preload: &[u8]) -> Option<usize> {
    let end = preload.iter().position(|b| *b == b':').unwrap_or(preload.len());
    preload[..end].ends_with(LIBRARY.as_bytes()).then_some((end + 1).min(preload.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_of_ld_preload_is_ours() {
        assert_eq!(own_length(b"/a/libhugelift_inside.so"), Some(24));
        assert_eq!(own_length(b"/a/libhugelift_inside.so:/b.so"), Some(25));
        assert_eq!(own_length(b"/b.so:/a/libhugelift_inside.so"), None);
        assert_eq!(own_length(b""), None);
    }
}
