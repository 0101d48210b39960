// SPDX-License-Identifier: Apache-2.0
//! Changes a process by ptrace(2): [`ptrace`] stops it, [`frame`] writes the frames from which it returns
//! to its program, [`threads`] stops its other threads, and [`remote`] makes system calls in it.

pub mod at_exec;
pub mod auxv_slots;
pub(crate) mod batch;
pub(crate) mod deadline;
pub(crate) mod faultpoint;
pub mod frame;
mod inject;
pub mod ptrace;
pub mod remote;
pub(crate) mod stored;
pub mod threads;
