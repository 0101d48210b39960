// SPDX-License-Identifier: Apache-2.0
//! Nothing that hugelift does may harm, and nothing that it says may be wrong: one file for each
//! boundary of SECURITY.md, and one for its words.

#[path = "../common/mod.rs"]
mod common;

mod advice;
mod base;
mod children;
mod escapes;
mod files;
mod launcher;
mod limits;
mod memory;
mod store;
mod watchers;
