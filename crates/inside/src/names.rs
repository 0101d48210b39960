// SPDX-License-Identifier: Apache-2.0
//! Names and messages that hugelift and the library share.

/// The library's file.
pub const LIBRARY: &str = "libhugelift_inside.so";

/// The loader's list of libraries to load first (ld.so(8)).
pub const PRELOAD: &str = "LD_PRELOAD";

/// The options of AddressSanitizer's runtime.
pub const ASAN_OPTIONS: &str = "ASAN_OPTIONS";

/// The variable with the path of the hugelift that lifts children.
pub const EXE: &str = "HUGELIFT_EXE";

/// The variable that says that children are lifted, which are worth it, and how: `BYTES`, `r` or `rw`, and
/// after a space the options of the lift as JSON. A program is worth it if a segment of it (`r`: one that
/// is not written) holds an aligned huge page of BYTES; with 0, every program is.
pub const CHILDREN: &str = "HUGELIFT_CHILDREN";

/// The variable that names a program which its own hugelift lifts at the entry point: pid, space, path of
/// the program. (The path is needed, as the process may become another program later.)
pub const STARTED: &str = "HUGELIFT_STARTED";

/// The variable that requests a guard of fork(2). It holds the number of pages of the pool that are kept
/// for a child.
pub const GUARD: &str = "HUGELIFT_FORK_RESERVE";

/// hugelift's subcommand that lifts a process which waits for it: `inside PID FD`.
pub const INSIDE: &str = "inside";

/// The library's first message to its helper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ready {
    /// Where the program will stop itself by SIGCONT: the address after that call.
    pub stop: u64,
}

/// Bytes of a [`Ready`].
pub const READY_BYTES: usize = 8;

impl Ready {
    /// Returns the bytes that are sent.
    pub fn to_bytes(self) -> [u8; READY_BYTES] {
        self.stop.to_ne_bytes()
    }

    /// Reads the bytes that were sent.
    pub fn from_bytes(bytes: [u8; READY_BYTES]) -> Ready {
        Ready { stop: u64::from_ne_bytes(bytes) }
    }
}
