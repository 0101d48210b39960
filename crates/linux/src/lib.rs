// SPDX-License-Identifier: Apache-2.0
//! Reads Linux. Nothing here changes another process, but for the child that [`command::wait_for`] ends.
//!
//! | module | holds |
//! |---|---|
//! | [`proc`] | processes as /proc shows them, and their memory |
//! | [`machine`] | what the machine offers: memory, control groups, NUMA nodes, pools, users |
//! | [`elf`] | programs that do not run yet: their ELF files and what those need |
//! | [`lookup`], [`program`], [`script`], [`command`] | finding a program as execvp(3) does, and becoming it; the interpreter of a script; the command of a process, and waiting for one |
//! | [`held_signals`], [`inherited_signals`] | what must not be left half done when a signal ends this process; the signals that its children find |
//! | [`io`] | files and streams: opened safely, written whole or not at all |
//! | [`service_policy`] | the configuration files of `hugelift service` |
//! | [`faultpoint`] | where tests let a step fail |
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod command;
pub mod elf;
pub mod faultpoint;
pub mod held_signals;
pub mod inherited_signals;
pub mod io;
pub mod lookup;
pub mod machine;
pub mod proc;
pub mod program;
pub mod script;
pub mod service_policy;
