// SPDX-License-Identifier: Apache-2.0
//! The open files of a process that stays beside a program.

use std::os::fd::RawFd;

/// Closes all files but `keep`: a reader of the program's pipe must not wait for the helper's end.
pub(crate) fn close_all_but(keep: &[RawFd]) {
    let mut keep: Vec<u32> = keep.iter().map(|fd| fd.cast_unsigned()).collect();
    keep.sort_unstable();
    let mut from = 0;
    for fd in keep.into_iter().chain([u32::MAX]) {
        if from < fd {
            // SAFETY: close_range(2) closes descriptors that nothing in this process uses: those in use are
            // in `keep`. Kernels before 5.9 refuse; the files then stay open until this process ends.
            unsafe { libc::syscall(libc::SYS_close_range, from, fd - 1, 0) };
        }
        from = fd.saturating_add(1);
    }
}
