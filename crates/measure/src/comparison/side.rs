// SPDX-License-Identifier: Apache-2.0
//! One side of a comparison.

use crate::memory::Memory;
use crate::run::Run;
use serde::Serialize;

/// One side: the bare program, or one variant.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Side {
    /// Its name.
    pub name: String,
    /// Options of `hugelift run`; none for the bare side.
    pub options: Option<Vec<String>>,
    /// The most that was huge in all runs.
    pub memory: Option<Memory>,
    /// Peak resident memory of the process alone, in bytes: the largest seen.
    pub peak_bytes: Option<u64>,
    /// Bytes that a lift could make huge; none where hugelift gave no report.
    pub liftable: Option<u64>,
    /// Why hugelift lifted less than it could, as its report says.
    pub why_not: Option<String>,
    /// Its timed runs, in their order.
    pub runs: Vec<Run>,
}

impl Side {
    /// Returns by how many bytes more of its writable memory was huge than of the bare side's; 0 where one is not
    /// known.
    pub fn writable_gain(&self, bare: &Side) -> u64 {
        let both = self.memory.zip(bare.memory);
        both.map_or(0, |(own, bare)| own.writable_huge.saturating_sub(bare.writable_huge))
    }
}
