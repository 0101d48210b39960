// SPDX-License-Identifier: Apache-2.0
//! The parts of the memory of a process.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What a stretch of an object holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Executable code.
    Text,
    /// Read-only from the start.
    Rodata,
    /// Read-only after relocation.
    Relro,
    /// Writable, from the file.
    Data,
    /// Writable, zero at the start.
    Bss,
    /// What `brk(2)` manages, counted as a part of the executable.
    Heap,
    /// The first thread's stack, counted as a part of the executable.
    Stack,
    /// Anonymous memory that the program has mapped itself and that is no code: any allocator's, and the stacks of its
    /// other threads. Counted as a part of the executable.
    Anon,
    /// Code that the program makes while it runs, in private anonymous memory, as a JIT compiler does. Counted as a part of
    /// the executable.
    Jit,
    /// Shared memory, which lies in tmpfs: anonymous `MAP_SHARED`, shmget(2), memfd_create(2), files in /dev/shm. It is in
    /// no object.
    Shm,
}

impl Part {
    /// All of them but [`Part::Jit`]: its program may change the protection of its pages at any moment, which splits huge
    /// pages again.
    pub const ALL: [Part; 9] = [
        Part::Text,
        Part::Rodata,
        Part::Relro,
        Part::Data,
        Part::Bss,
        Part::Heap,
        Part::Stack,
        Part::Anon,
        Part::Shm,
    ];

    /// Returns whether the program or its loader writes to it.
    pub fn is_writable(self) -> bool {
        !matches!(self, Part::Text | Part::Rodata)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Part::Text => "text",
            Part::Rodata => "rodata",
            Part::Relro => "relro",
            Part::Data => "data",
            Part::Bss => "bss",
            Part::Heap => "heap",
            Part::Stack => "stack",
            Part::Anon => "anon",
            Part::Jit => "jit",
            Part::Shm => "shm",
        })
    }
}
