// SPDX-License-Identifier: Apache-2.0
//! What stays beside a program while it runs: one process, [`watcher`], for all who look.

pub mod joiner;
pub mod observer;
pub mod perf_map;
pub mod watcher;
