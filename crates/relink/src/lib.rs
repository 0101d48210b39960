// SPDX-License-Identifier: Apache-2.0
//! ELF files whose code has huge pages.
//!
//! | module | does |
//! |---|---|
//! | [`align`] | moves segments in the file, so that they are congruent to their addresses |
//! | [`separate`] | gives the code a segment of its own, and proves that the copy does the same |
//! | [`loaded`], [`sandbox`] | compare a copy with its original as the program's own loader loads both |
//! | `loader` | finds that loader, and decides whether it may be run |
//! | [`relay`] | writes a copy beside the file |
//! | [`replace`] | puts a copy in the place of its file, and back |
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod align;
pub mod loaded;
mod loader;
pub mod relay;
pub mod replace;
pub mod sandbox;
pub mod separate;
