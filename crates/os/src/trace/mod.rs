// SPDX-License-Identifier: Apache-2.0
//! Changing a process by ptrace(2): [`ptrace`] stops it, [`frame`] prepares the way back to what it
//! did, [`threads`] stops the others, and [`remote`] makes system calls in it.

pub mod at_exec;
pub mod auxv_slots;
pub mod batch;
pub mod deadline;
pub mod faultpoint;
pub mod frame;
pub mod ptrace;
pub mod remote;
pub mod stored;
pub mod threads;
