// SPDX-License-Identifier: Apache-2.0
//! The `hugelift` command.
fn main() {}
