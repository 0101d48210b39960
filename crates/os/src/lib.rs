// SPDX-License-Identifier: Apache-2.0
//! Everything of hugelift that talks to Linux. Each subject has a folder:
//!
//! | folder | holds |
//! |---|---|
//! | [`proc`] | processes as /proc shows them, and their memory |
//! | [`elf`] | programs that do not run yet: their ELF files and what those need |
//! | [`machine`] | what the machine offers: memory, control groups, NUMA nodes, pools, users |
//! | [`launch`] | becoming the program, with a helper beside it |
//! | [`trace`] | changing a process by ptrace(2) |
//! | [`watch`] | what stays beside a program while it runs |
//! | [`pagecache`] | huge folios in the page cache |
//! | [`separate`] | a separated file and its original, as the loader loads them |
//! | [`store`] | one copy of code for all processes |
//! | [`io`] | files and streams: opened safely, written whole or not at all |
//! | [`arch`] | machine code and registers; no other folder depends on the architecture |
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod arch;
pub mod elf;
pub mod io;
pub mod launch;
pub mod machine;
pub mod pagecache;
pub mod proc;
pub mod separate;
pub mod store;
pub mod trace;
pub mod watch;
