// SPDX-License-Identifier: Apache-2.0
//! Machine code: system calls, a child on a stack of its own, the place where the program stops.

#[cfg(target_arch = "aarch64")]
#[path = "arch/aarch64.rs"]
mod machine;
#[cfg(target_arch = "x86_64")]
#[path = "arch/x86_64.rs"]
mod machine;

pub use machine::*;
