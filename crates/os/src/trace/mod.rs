// SPDX-License-Identifier: Apache-2.0
//! Changing a process by ptrace(2): [`ptrace`] stops it, [`home`] prepares the way back to what it
//! did, [`threads`] stops the others, and [`remote`] makes system calls in it.

pub mod batch;
pub mod deadline;
pub mod faultpoint;
pub mod home;
pub mod ptrace;
pub mod remote;
pub mod stored;
pub mod threads;
pub mod unstarted;
pub mod vector;
