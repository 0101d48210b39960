// SPDX-License-Identifier: Apache-2.0
//! The pure half of hugelift. Nothing in here talks to the kernel:
//!
//! ```text
//! Snapshot + Policy -> plan() -> Plan -> apply(Target) -> Outcome -> Report
//! ```
//!
//! [`plan::plan`] is a pure function; [`apply::apply`] is generic over [`target::Target`],
//! of which [`model::Model`] is the implementation that the tests put a fault into at
//! every step.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
#![forbid(unsafe_code)]

pub mod addr;
pub mod advice;
pub mod align;
pub mod apply;
pub mod attribute;
pub mod budget;
pub mod comparison;
pub mod comparison_text;
pub mod demangle;
pub mod doctor;
pub mod elf;
pub mod entry_elf;
pub mod heap;
pub mod html;
pub mod join;
pub mod keep;
pub mod lab;
pub mod ldcache;
pub mod loading;
pub mod malloc;
pub mod maps;
pub mod ministat;
pub mod model;
pub mod moving;
pub mod note;
pub mod nothing;
pub mod path_json;
pub mod placement;
pub mod plan;
pub mod pmu;
pub mod policy;
pub mod pool;
pub mod prime;
pub mod printable;
pub mod quantity;
pub mod record;
pub mod report;
pub mod report_text;
pub mod skip;
pub mod smaps;
pub mod snapshot;
pub mod stats;
pub mod stopping;
pub mod symbols;
pub mod target;
pub mod top;
pub mod weigh;
