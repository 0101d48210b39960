// SPDX-License-Identifier: Apache-2.0
//! Writing a re-laid copy of an ELF file beside another file, to be renamed into place.
//!
//! The copy is complete, on disk and compared with the original before it gets its name.
//! A process that has the old file open or mapped keeps it.

mod copy;
mod error;
mod original;
mod separated;

pub use copy::{publish, set_mode};
pub use error::RelayError;
pub(crate) use original::CAPABILITIES;
pub use original::Original;
pub use separated::SeparatedDebug;
