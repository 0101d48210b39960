// SPDX-License-Identifier: Apache-2.0
//! Planning, lifting and parsing: properties of generated cases, recorded programs, and a fault at
//! every step.

#[path = "../common/mod.rs"]
mod common;

mod every_step_fails;
mod parsers_props;
mod plan_props;
mod reasons;
mod relocate;
mod report;
mod seccomp_props;
