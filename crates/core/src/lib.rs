// SPDX-License-Identifier: Apache-2.0
//! The pure half of hugelift. Nothing in this crate talks to the kernel:
//!
//! ```text
//! Snapshot + Policy -> plan() -> Plan -> apply(Target) -> Outcome -> Report
//! ```
//!
//! [`plan::plan`] is a pure function. [`apply::apply`] is generic over [`target::Target`]; the tests
//! use its implementation [`model::Model`] and make every step fail.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
#![forbid(unsafe_code)]

pub mod addr;
pub mod advice;
pub mod apply;
pub mod attribute;
pub mod budget;
pub mod by_address;
pub mod census;
pub mod collapse;
pub mod complaints;
pub mod cost;
pub mod demangle;
pub mod elf;
pub mod entry_elf;
pub mod fields;
pub mod folios;
pub mod heap;
pub mod heat;
pub mod join;
pub mod keep;
pub mod ldcache;
pub mod ledger;
pub mod loading;
pub mod malloc;
pub mod maps;
pub mod model;
pub mod mounts;
pub mod nearest;
pub mod nothing;
pub mod overlay;
pub mod path_json;
pub mod placement;
pub mod plan;
pub mod policy;
pub mod pool;
pub mod pressure;
pub mod prime;
pub mod printable;
pub mod proc_events;
pub mod proc_stat;
pub mod quantity;
pub mod record;
pub mod relocate;
pub mod report;
pub mod restore;
pub mod scratch;
pub mod seccomp;
pub mod service;
pub mod shared_memory;
pub mod skip;
pub mod smaps;
pub mod snapshot;
pub mod symbols;
pub mod table;
pub mod target;
pub mod toml_text;
pub mod units;
pub mod unused;
pub mod worth;
