// SPDX-License-Identifier: Apache-2.0
//! Where huge pages for code come from, if not from the kernel's free memory: huge folios of the [`pagecache`], and the
//! [`store`] with one copy of code for all processes. [`base`] chooses the address at which a program can use them.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod base;
pub mod pagecache;
pub mod store;
