// SPDX-License-Identifier: Apache-2.0
//! Tests of the other subcommands: what they find, measure, prepare and print.

#[path = "../common/mod.rs"]
mod common;

mod align;
mod compare;
mod compare_live;
mod doctor;
mod inspect;
mod keep;
mod lab;
mod lab_agree;
mod lab_memory;
mod lab_reclaim;
mod ministat;
mod pictures;
mod pool;
mod prime;
mod replace;
mod stat;
mod store;
mod top;
