// SPDX-License-Identifier: Apache-2.0
//! Compares a separated file with its original, as the program's own loader loads and relocates both.
//!
//! [`sandbox`] lets the loader do so in a process of its own, and stops that process before any code of the
//! file runs. [`loaded`] compares the memory.

pub mod loaded;
pub mod sandbox;
