// SPDX-License-Identifier: Apache-2.0
//! Decides which anonymous and shared memory of a running process is collapsed into huge pages, and in which order.
//!
//! ```text
//!   mapping   |...|=====block=====|=====block=====|=====block=====|...|
//!   pages         [████████████████][███·██··███████][·█··············]
//!   adds            0               5 pages         too sparse: left
//! ```
//!
//! A collapse allocates a huge page and moves the base pages of a block into it. A page that was absent
//! becomes zeros that take memory. A page that another process maps too (after fork(2)) is copied. So a
//! block is chosen only if at least half of it is present: its memory never more than doubles. The sum of
//! what all blocks add stays within a budget.
//!
//! The hottest blocks are first. Where the heat is not known, the densest are first: they add the least
//! memory.
//!
//! Shared memory becomes huge for all processes that map it: its pages are those of its file, and the collapse of one
//! process's block moves them.

mod area;
mod choose;
mod outcome;
mod pages;
mod why;

pub use area::{Area, Sharing};
pub use choose::{Budget, Choice, Chosen, Left, choose};
pub use outcome::{Collapsed, PageTables, Stopped};
pub use pages::{Block, Pages};
pub use why::Why;
