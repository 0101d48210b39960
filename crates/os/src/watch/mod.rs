// SPDX-License-Identifier: Apache-2.0
//! What stays beside a program while it runs: one process, [`beside`], for all who look.

pub mod beside;
pub mod joiner;
pub mod observer;
pub mod perf_map;
