// SPDX-License-Identifier: Apache-2.0
//! Everything of hugelift that talks to Linux.

pub mod cgroup;
pub mod machine;
pub mod procfs;
pub mod snapshot;
pub mod sysfs;
