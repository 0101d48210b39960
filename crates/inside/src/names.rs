// SPDX-License-Identifier: Apache-2.0
//! Names that hugelift and the library share.

/// The library's file.
pub const LIBRARY: &str = "libhugelift_inside.so";

/// The loader's list of libraries to load first (ld.so(8)).
pub const PRELOAD: &str = "LD_PRELOAD";

/// The variable that requests a guard of fork(2). It holds the number of pages of the pool that are kept
/// for a child.
pub const GUARD: &str = "HUGELIFT_FORK_RESERVE";
