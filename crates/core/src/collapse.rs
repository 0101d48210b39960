// SPDX-License-Identifier: Apache-2.0
//! Decides which anonymous memory of a running process is collapsed into huge pages, and in which order.
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

mod choose;
mod outcome;

pub use choose::{Area, Block, Budget, Choice, Chosen, Left, Pages, Why, choose};
pub use outcome::{Collapsed, Stopped};
