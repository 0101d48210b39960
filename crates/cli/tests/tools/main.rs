// SPDX-License-Identifier: Apache-2.0
//! Tests of the other subcommands: what they find, measure, prepare and print.

#[path = "../common/mod.rs"]
mod common;

mod align;
mod bare_root;
mod caller_signals;
mod command_line;
mod compare;
mod compare_batch;
mod compare_by_part;
mod compare_cut;
mod compare_khugepaged;
mod compare_live;
mod compare_memory;
mod compare_pictures;
mod compare_same_copy;
mod compare_work;
mod cost;
mod docs;
mod doctor;
mod heat;
mod heat_data;
mod heat_lift;
mod inspect;
mod inspect_folios;
mod install;
mod lab;
mod lab_agree;
mod lab_memory;
mod lab_reclaim;
mod lab_walks;
mod ministat;
mod not_replaced;
mod options;
mod package_checks;
mod package_contents;
mod packages;
mod pictures;
mod pool;
mod prime;
mod prime_data;
mod prime_edges;
mod replace;
mod replaced_since;
mod schemas;
mod segments;
mod service_files;
mod setup;
mod stat;
mod store;
mod top;
mod typed;
