// SPDX-License-Identifier: Apache-2.0
//! The terminal on standard output, if it is one.

/// Returns the columns of the terminal on standard output; `None` if it is none, or its size is not known.
pub fn width() -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: ioctl_tty(2): TIOCGWINSZ writes one winsize, which lives through the call.
    let got = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    (got == 0 && size.ws_col > 0).then_some(usize::from(size.ws_col))
}
