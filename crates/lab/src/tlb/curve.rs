// SPDX-License-Identifier: Apache-2.0
//! What was measured on one kind of pages.

use super::access::Access;
use super::summary::{self, Points};
use crate::memory::Pages;

/// Nanoseconds per access, by working set, of each sweep.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Curve {
    pub access: Access,
    /// `None` for the caches alone.
    pub pages: Option<Pages>,
    /// Whether the memory is on the pages that it was mapped for.
    pub as_asked: bool,
    pub sweeps: Vec<Points>,
}

impl Curve {
    /// Returns the medians of the sweeps.
    pub fn medians(&self) -> Points {
        summary::medians(&self.sweeps)
    }

    /// Returns the largest working set; 0 if there is none.
    pub fn last(&self) -> f64 {
        self.sweeps.iter().flatten().map(|p| p.0).fold(0.0, f64::max)
    }
}
