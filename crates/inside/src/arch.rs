// SPDX-License-Identifier: Apache-2.0
//! The instructions and the numbers of system calls.

#[cfg(target_arch = "aarch64")]
#[path = "arch/aarch64.rs"]
mod machine;
#[cfg(target_arch = "x86_64")]
#[path = "arch/x86_64.rs"]
mod machine;

pub use machine::*;
