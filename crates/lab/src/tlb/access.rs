// SPDX-License-Identifier: Apache-2.0
//! The two ways to access a place.

use super::chain::{self, Layout};
use super::code;
use crate::memory::Mapping;
use anyhow::{Context as _, Result};

/// How each place is accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    Load,
    Jump,
}

impl Access {
    pub fn name(self) -> &'static str {
        match self {
            Access::Load => "load",
            Access::Jump => "jump",
        }
    }

    pub fn link(self, memory: &Mapping, layout: Layout, next: &[u32]) -> Result<()> {
        match self {
            Access::Load => chain::link(memory, layout, next),
            Access::Jump => code::link(memory, layout, next).context(
                "generated code cannot be made executable (mprotect): a security policy may forbid it, as \
                 SELinux does without execmem",
            )?,
        }
        Ok(())
    }

    /// # Safety
    /// The conditions of [`chain::walk`] and [`code::run`] hold.
    pub unsafe fn follow(self, from: *mut u8, count: u64) -> *mut u8 {
        match self {
            // SAFETY: the caller's promise.
            Access::Load => unsafe { chain::walk(from, count) },
            // SAFETY: the caller's promise.
            Access::Jump => unsafe { code::run(from, count) },
        }
    }
}
