// SPDX-License-Identifier: Apache-2.0
//! The daemon that keeps files, and the programs of a machine, on huge pages.
//!
//! ```text
//!   daemon    one loop: signals, inotify, clients, timers
//!                |  task                            ^  result
//!                v                                  |
//!   worker    a thread: finds the files, primes them, locks them
//! ```
//!
//! A policy (`hugelift service`) adds the processes of the machine: see [`machine`]. What runtimes say of their containers: see
//! [`containers`].
//!
//! The loop waits neither for the thread nor for a client. The daemon holds only mappings and a
//! socket: if it is killed, only the socket's name is left, which the next daemon replaces.
//!
//! | module | holds |
//! |---|---|
//! | [`daemon`] | the loop: signals, changed files, clients, the time of the next round |
//! | `files` | the files that are kept in the page cache, and the worker thread |
//! | [`machine`] | the processes that the policy takes, and what became of them |
//! | [`containers`] | what runtimes and a file of pods say of the container of a process |
//! | `cgroups` | the machine's namespace of control groups, which the service enters |
//! | [`answers`] | the socket of `hugelift service status`, its clients, and what they are told |
//! | [`offers`] | what could be on huge pages if a person agreed |
//! | [`metrics`] | what Prometheus and node_exporter are told |
//! | `publish` | the figures, collected now and then, and given to who asks |
//! | `kernel` | what the kernel counts that is worth a metric |
//! | `pressure` | memory pressure, as the kernel reports it |
//! | `journal` | lines on stderr, with a priority for the journal |
//! | [`signals`] | signals as a descriptor, and what systemd is told |
//! | [`unix_socket`] | a listening socket in the file system: who may connect, what it may replace |

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod answers;
mod cgroups;
pub mod containers;
pub mod daemon;
mod files;
mod journal;
mod kernel;
pub mod machine;
pub mod metrics;
pub mod offers;
mod pressure;
mod publish;
pub mod signals;
pub mod unix_socket;

pub use files::settings::{Settings, Source};
