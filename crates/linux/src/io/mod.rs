// SPDX-License-Identifier: Apache-2.0
//! Files and streams: opened where other users can change names, written whole or not at all.

pub mod console;
pub mod entry;
pub mod file_limit;
pub mod holes;
pub mod lock;
pub mod open;
pub mod output;
pub mod read;
pub mod temporary;
pub mod terminal;
pub mod write_back;
