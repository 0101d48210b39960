// SPDX-License-Identifier: Apache-2.0
//! What is known of memory that the program has written to, or writes to.

use super::region::Region;
use super::samples::Samples;
use hugelift_core::addr::Range;
use std::time::Duration;

/// What is known of memory that the program has written to.
#[derive(Default)]
pub(super) struct Written {
    /// The ranges that may be replaced although they are no longer their files'.
    pub(super) ranges: Vec<Range>,
    /// When the threads were seen where a stop is not noticed.
    pub(super) samples: Samples,
    /// How long was waited so far for a moment in which all threads can be stopped.
    pub(super) waited: Duration,
    /// How often all were stopped for nothing.
    pub(super) in_vain: u32,
    /// After the last stop of all: when all were stopped, when the piece was replaced, and when all had been let go.
    pub(super) times: (Duration, Duration, Duration),
    /// Where their code is while they are stopped, if it is mapped.
    pub(super) region: Option<Region>,
}
