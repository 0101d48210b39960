// SPDX-License-Identifier: Apache-2.0
//! The rights of the program.

/// Returns whether the program runs with more rights than its caller (set-uid, file capabilities).
pub(crate) fn is_privileged() -> bool {
    // SAFETY: getauxval(3) only returns a number.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
