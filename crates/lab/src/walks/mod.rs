// SPDX-License-Identifier: Apache-2.0
//! How many page walks a program would need on other CPUs: a trace of its memory accesses through models of their TLBs.
//!
//! | module | holds |
//! |---|---|
//! | [`cpu`] | what the model knows of a CPU: arrays of TLB entries |
//! | [`table`] | the CPUs, each number with its source |
//! | `array`, [`simulated`] | one array of entries, and the two levels of a CPU, while a trace passes |
//! | [`layout`] | which pages are huge: none, those of the code, all |
//! | [`code`] | which code can be on huge pages: by the mappings of the process, or all |
//! | [`trace`] | the reader of traces |
//! | [`count`] | the accesses of a window, on all CPUs and with all layouts |
//! | [`traced`], [`report`] | a command whose trace comes through a pipe; the result |
//!
//! An access that misses both levels is a walk. The model counts walks, not their cost: it has no page-walk caches, which make
//! walks shorter and not fewer. Replacement is LRU, where CPUs approximate it. One CPU has the accesses of all threads, and
//! nothing flushes its TLBs. The kernel's own accesses, prefetches and speculation are in no trace. Where two hardware threads
//! share a core, each has less than the table says.

mod array;
pub mod code;
pub mod count;
pub mod cpu;
pub mod layout;
pub mod report;
pub mod simulated;
pub mod table;
pub mod trace;
pub mod traced;

use serde::Serialize;

/// What an access is for. CPUs have first-level TLBs of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// An instruction is fetched.
    Code,
    /// A load or a store.
    Data,
}
