// SPDX-License-Identifier: Apache-2.0
//! Tests what must hold on every machine, in one binary that runs natively (`cargo test`) and in
//! each virtual machine of ci/vm. Each suite is a module; the other modules are tools.
//!
//! No test assumes the size of a huge page: the victims are made as large as the pages of the
//! running machine require.

mod backings;
mod data;
mod dist;
mod fallbacks;
#[path = "../common/file_maps.rs"]
mod file_maps;
mod files;
mod giant;
mod grow;
mod held;
mod huge;
mod launcher;
mod limited;
mod live;
mod look;
mod mask;
mod masked;
mod moved;
mod numa;
mod parts;
mod place;
mod prime;
#[cfg(target_arch = "aarch64")]
mod protection;
mod separate;
mod shared;
#[path = "../common/shipped.rs"]
mod shipped;
mod start;
mod symbols;
