// SPDX-License-Identifier: Apache-2.0
//! Units of systemd, and the drop-in by which hugelift starts what a unit starts.
//!
//! ```text
//! unit file + drop-ins -> Unit::read() -> Unit -> wrap() -> the text of UNIT.d/60-hugelift.conf
//! ```
//!
//! The syntax is described in systemd.syntax(7), and for `ExecStart=` in systemd.service(5). Text that hugelift does not change
//! stays as it is written, with its quotes, `%` and `$`.

pub mod command;
pub mod drop_in;
pub mod name;
pub mod refusal;
pub mod syntax;
pub mod unit;
pub mod words;

pub use drop_in::wrap;
pub use refusal::Refusal;
pub use unit::Unit;

#[cfg(test)]
mod tests;
