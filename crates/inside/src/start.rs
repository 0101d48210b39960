// SPDX-License-Identifier: Apache-2.0
//! Prepares the fork guard before `main`, and removes from the environment what was set for this
//! program alone, so that no program which it starts loads the library.

use crate::environment::Environment;
use crate::names::{DESCRIPTORS, GUARD, LIBRARY, PRELOAD};
use crate::{fork, libc, sys};
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
    let guards = pages.is_some();
    environment.remove(GUARD);
    let preload = environment.get(PRELOAD).map_or(&[][..], CStr::to_bytes);
    let Some(own) = own_entry(preload, guards) else { return };
    // hugelift leaves it open for the loader.
    descriptor(own).into_iter().for_each(sys::close);
    let length = (own.len() + 1).min(preload.len());
    environment.shorten(PRELOAD, length);
}

/// Returns this library's path, if a value of `LD_PRELOAD` begins with it. `guards`: hugelift has set the value.
fn own_entry(preload: &[u8], guards: bool) -> Option<&[u8]> {
    let end = preload.iter().position(|b| *b == b':').unwrap_or(preload.len());
    let first = &preload[..end];
    (first.ends_with(LIBRARY.as_bytes()) || guards && descriptor(first).is_some()).then_some(first)
}

/// Returns the number of the descriptor that a path names.
fn descriptor(path: &[u8]) -> Option<usize> {
    core::str::from_utf8(path.strip_prefix(DESCRIPTORS.as_bytes())?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_of_ld_preload_is_ours() {
        let own = "/a/libhugelift_inside.so".as_bytes();
        for guards in [true, false] {
            assert_eq!(own_entry(b"/a/libhugelift_inside.so", guards), Some(own));
            assert_eq!(own_entry(b"/a/libhugelift_inside.so:/b.so", guards), Some(own));
            assert_eq!(own_entry(b"/b.so:/a/libhugelift_inside.so", guards), None);
            assert_eq!(own_entry(b"", guards), None);
        }
        assert_eq!(own_entry(b"/proc/self/fd/7:/b.so", true), Some("/proc/self/fd/7".as_bytes()));
        assert_eq!(own_entry(b"/proc/self/fd/7:/b.so", false), None);
    }

    #[test]
    fn descriptors_in_paths() {
        assert_eq!(descriptor(b"/proc/self/fd/12"), Some(12));
        for path in [
            &b"/proc/self/fd/"[..],
            b"/proc/self/fd/x",
            b"/proc/self/fd/1/2",
            b"12",
            b"/a/libhugelift_inside.so",
        ] {
            assert_eq!(descriptor(path), None, "{}", path.escape_ascii());
        }
    }
}
