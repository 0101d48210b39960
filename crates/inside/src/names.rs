// SPDX-License-Identifier: Apache-2.0
//! Names that hugelift and the library share.

/// The library's file.
pub const LIBRARY: &str = "libhugelift_inside.so";

/// The path that /proc/PID/maps shows where the library is a file in memory (memfd_create(2)) of the name
/// [`LIBRARY`].
pub const IN_MEMORY: &str = "/memfd:libhugelift_inside.so";

/// The folder in which a file in memory has a path, by the number of its descriptor.
pub const DESCRIPTORS: &str = "/proc/self/fd/";

/// The loader's list of libraries to load first (ld.so(8)).
pub const PRELOAD: &str = "LD_PRELOAD";

/// The variable that requests the fork guard. It holds the number of pages of the pool that are kept
/// for a child.
pub const GUARD: &str = "HUGELIFT_FORK_RESERVE";
