// SPDX-License-Identifier: Apache-2.0
//! Names of the operations in a report, and which are shown together.

use super::kind::{Kind, Source};
use crate::memory::Pages;

/// Returns the title for columns and legends, and the key for the names of columns and samples.
pub(super) fn name(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Copy(Source::Never(Pages::Small), Pages::Small) => ("empty, off", "empty_off"),
        Kind::Copy(Source::Never(Pages::Small), _) => ("empty, mixed", "empty_mixed"),
        Kind::Copy(Source::Never(_), _) => ("empty, on", "empty_on"),
        Kind::Copy(Source::Written(_), Pages::Small) => ("written, off", "written_off"),
        Kind::Copy(Source::Written(_), _) => ("written, on", "written_on"),
        Kind::Copy(Source::Unshared, _) => ("unshared, on", "unshared_on"),
        Kind::Set(Pages::Small) => ("off", "set_off"),
        Kind::Set(_) => ("on", "set_on"),
        Kind::Read(Source::Never(Pages::Small)) => ("small zero page", "read_small_zero"),
        Kind::Read(Source::Never(_)) => ("huge zero page", "read_huge_zero"),
        Kind::Read(_) => ("written, huge pages", "read_written"),
    }
}

/// Operations that are shown together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    Copies,
    Sets,
    Reads,
}

impl Group {
    /// Returns the group of an operation.
    pub fn of(kind: Kind) -> Group {
        match kind {
            Kind::Copy(..) => Group::Copies,
            Kind::Set(_) => Group::Sets,
            Kind::Read(_) => Group::Reads,
        }
    }

    /// Returns its title.
    pub fn title(self) -> &'static str {
        match self {
            Group::Copies => "memcpy by its source",
            Group::Sets => "memset",
            Group::Reads => "reading alone",
        }
    }

    /// Says what a table of them shows.
    pub fn caption(self) -> &'static str {
        match self {
            Group::Copies => {
                "memcpy in GB/s of CPU time; empty: the source was never written; off, on: transparent huge pages \
                 for both blocks; mixed: for the destination only; unshared: the source was read while \
                 use_zero_page was 0"
            }
            Group::Sets => "memset in GB/s of CPU time; off, on: transparent huge pages",
            Group::Reads => "reading alone in GB/s of CPU time, which shows from which cache the bytes come",
        }
    }
}
