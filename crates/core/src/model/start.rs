// SPDX-License-Identifier: Apache-2.0
//! What the model of a process at its exec stop knows.

use crate::addr::Range;
use crate::maps::Mapping;
use crate::relocate::{EntryPointers, Layout};

/// The state at the exec stop: how the executable is found, and what its file holds.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Start {
    /// The entry pointers on the program's stack.
    pub entry_pointers: EntryPointers,
    /// The layout in the kernel.
    pub layout: Layout,
    /// The executable's mappings as execve(2) made them. They show the bytes of its file.
    pub image: Vec<Mapping>,
    /// The pages of the mappings in which the kernel has changed bytes of the file.
    pub cleared: Vec<Range>,
}
