// SPDX-License-Identifier: Apache-2.0
//! Programs that do not run yet: their ELF files, and the shared objects that those need.

pub mod elf_file;
pub mod file_snapshot;
pub mod malloc;
pub mod needed;
pub mod opened;
