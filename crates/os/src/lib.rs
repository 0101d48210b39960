// SPDX-License-Identifier: Apache-2.0
//! Everything of hugelift that talks to Linux.
//!
//! Reading: [`procfs`], [`machine`] (over `sysfs` and `cgroup`), [`snapshot`] of a process,
//! [`file_snapshot`] of a program that does not run (over [`needed`] and [`elf_file`]).
//! Counting: [`perf`] and [`kernel_counts`], of a [`workload`] or another process.
//! Changing the page cache: [`mod@prime`].
//! Sharing code among processes: [`store`]. What past runs did: [`store::Notes`], which an
//! [`observer`] writes; it and the [`joiner`] look at a running program from [`beside`].
//! Changing a process: [`launch`] puts a [`helper`] beside the process that becomes the program
//! ([`mod@program`]); it traces it ([`ptrace`]), prepares its way [`home`], stops its
//! [`threads`] and changes it as a [`remote`] target; so does the helper that the library
//! [`inside`] a program has asked for. [`arch`] knows the machine code.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod arch;
pub mod base;
mod batch;
pub mod beside;
mod cgroup;
pub mod console;
mod deadline;
pub mod elf_file;
pub mod entry;
pub mod facts;
mod faultpoint;
pub mod file_snapshot;
pub mod guard;
pub mod hardware;
pub mod helper;
pub mod home;
pub mod inside;
pub mod joiner;
pub mod kernel_counts;
pub mod launch;
pub mod lookup;
pub mod machine;
pub mod malloc;
pub mod memory;
pub mod needed;
pub mod nodes;
pub mod observer;
pub mod open;
pub mod opened;
pub mod output;
pub mod pagecache;
pub mod pagemap;
pub mod perf;
pub mod perf_map;
pub mod plain;
pub mod pools;
pub mod preload;
pub mod prime;
mod probes;
mod process_facts;
pub mod processes;
pub mod procfs;
pub mod program;
pub mod ptrace;
pub mod relay;
pub mod remote;
pub mod replace;
pub mod seccomp;
pub mod snapshot;
pub mod stack;
pub mod store;
mod stored;
mod sysfs;
pub mod terminal;
pub mod threads;
pub mod tree;
pub mod unstarted;
pub mod users;
pub mod vector;
pub mod walks;
pub mod workload;
pub mod worth;
mod write_back;
pub mod yama;
