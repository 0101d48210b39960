// SPDX-License-Identifier: Apache-2.0
//! Watches a program while it runs, from one process ([`process`]) for all tasks.

pub mod apart;
pub mod collapse;
pub mod joiner;
pub mod perf_map;
pub mod process;
