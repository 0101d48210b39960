// SPDX-License-Identifier: Apache-2.0
//! Two or more samples, compared as ministat(1) of FreeBSD does: the figures of each, how much the
//! others differ from the first by Student's t, and a plot in text.
//!
//! Student's t assumes samples of independent values from normal distributions of equal variance.
//! Times of programs are usually neither: for pairs of runs [`crate::stats`] is the better choice.
//!
//! The output equals that of FreeBSD's ministat of today, whose error of the difference in percent has that of the reference's mean in
//! it. The ministat of 2015, which Debian ships, leaves that out. Two of its peculiarities are kept: the median of an even number of values
//! is the *upper* middle one, and the plot is only as tall as the last sample needs. One is not kept:
//! it computes the variance as the difference of two large sums, which loses all digits where values
//! differ little for their size. Here the squared differences from the mean are summed up.

mod difference;
mod number;
mod plot;
mod sample;
mod student;
mod text;

pub use difference::Difference;
pub use plot::{MOST_SAMPLES, PLOT_WIDTH};
pub use sample::{FEWEST_VALUES, Layout, Sample, SampleError};
pub use student::Confidence;
pub use text::{Show, text};
