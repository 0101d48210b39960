// SPDX-License-Identifier: Apache-2.0
//! Processes as /proc shows them, and their memory.

mod bti;
pub mod census;
pub mod clock;
pub mod connector;
pub mod folios;
pub mod loadavg;
pub mod mapped;
pub mod mapping;
pub mod memory;
pub mod pagemap;
pub mod pidfd;
pub mod procfs;
pub mod reservation;
pub mod shared_memory;
pub mod sharers;
pub mod snapshot;
pub mod status;
pub mod turn;
mod unchanged;
