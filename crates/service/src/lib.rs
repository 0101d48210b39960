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
