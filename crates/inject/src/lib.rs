// SPDX-License-Identifier: Apache-2.0
//! Lets another process make system calls, by ptrace(2).
//!
//! - [`ptrace`] makes the requests; [`arch`] has the machine code and the registers, and no other module depends on the
//!   architecture.
//! - A program at its start: [`remote`] makes system calls in the stopped process, [`frame`] writes the frames
//!   from which it returns to its program, [`threads`] stops its other threads.
//! - A running program: [`live`] makes system calls in one thread at a time, which [`lent`] borrows and gives
//!   back; [`caves`] has the places for their code; [`filter`] reads their seccomp filters; `watch` knows the
//!   threads that cannot be borrowed without being noticed, `waits` how system calls wait, `seen` what the others did before,
//!   `timeout` how long they still wait, `written_back` where the kernel writes that; `go_on` lets a thread go in which
//!   nothing was done; `pass` gives them files, and [`restore`] maps the files' own pages back.
//!
//! [`own`] changes the calling process, by its own system calls; [`forks`] and [`loaded`] keep fork(3) and dlclose(3) of
//! other threads away meanwhile. `planned` is what a plan expects of a process that runs on.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod arch;
pub mod at_exec;
pub mod auxv_slots;
pub mod batch;
mod calls;
pub mod caves;
pub mod deadline;
pub mod filter;
pub mod forks;
pub mod frame;
mod go_on;
mod inject;
pub mod lent;
pub mod live;
pub mod loaded;
pub mod own;
mod pass;
mod planned;
pub mod ptrace;
pub mod remote;
pub mod restore;
pub mod seen;
pub mod stored;
pub mod threads;
pub mod timeout;
pub mod waits;
mod watch;
mod written_back;
