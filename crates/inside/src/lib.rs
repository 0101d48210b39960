// SPDX-License-Identifier: Apache-2.0
//! The fork guard: the library that a program loads (`LD_PRELOAD`) if its data is on pages of the pool
//! (`--data-backing hugetlb`).
//!
//! This crate is compiled twice: as `libhugelift_inside.so`, which is loaded into programs of any
//! C library, and as an ordinary crate that tells hugelift how to talk to it.
//!
//! Loaded, it calls Linux itself, allocates nothing, keeps no descriptor open, starts no thread,
//! and copies the writable memory that is on pages of the pool for each child of fork(2): [`mod@fork`].
//!
//! Its references to the C library (`environ`, `dl_iterate_phdr`, ...) are weak: where they are missing,
//! it does nothing.
#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(loaded), allow(dead_code, reason = "hugelift itself uses only the names"))]

mod arch;
mod environment;
pub mod fork;
mod libc;
mod lookup;
mod mappings;
pub mod names;
pub mod start;
mod sys;
pub mod table;

#[cfg(loaded)]
mod freestanding;

/// The library as a file: the bytes that are loaded into programs.
#[cfg(not(loaded))]
pub static FILE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libhugelift_inside.so"));
