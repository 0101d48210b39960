// SPDX-License-Identifier: Apache-2.0
//! `hugelift run`: programs of every kind are lifted, behave as before, and start whatever fails.

#[path = "../common/mod.rs"]
mod common;

mod attach_stdin;
mod attach_watch;
mod begins_otherwise;
mod by_itself;
mod children;
mod cold;
mod coverage;
mod debug;
mod fallback;
mod fidelity;
mod files;
mod filesystems;
mod forks;
mod heap;
mod hot;
mod jit;
mod join;
mod kill;
mod late;
mod libhugetlbfs_cases;
mod live;
mod loads;
mod moved;
mod page_sizes;
mod pages;
mod parts;
mod protections;
mod running;
mod service;
mod shm;
mod spans;
mod state;
mod stress;
mod swapped;
mod symbols;
mod thp_off;
mod untouched;
mod unused;
mod watch;
