// SPDX-License-Identifier: Apache-2.0
//! Priming: which pages of an ELF file or of a data file can be huge in the page cache, which are, and what prevents the
//! others.
//!
//! The kernel maps a huge page of the page cache by one page table entry where address and file offset
//! agree modulo its size. The segment's headers decide that:
//!
//! ```text
//!   file      |······|========|========|========|··|
//!   offset           2M       4M       6M       8M        a huge page of the page cache
//!   memory  ·········|========|========|========|··       starts at multiples of its size
//!                    ^ stated address ≡ offset (mod 2M)
//! ```

mod candidate;
mod edges;
mod obstacle;
mod report;

pub use candidate::{Candidate, candidates, stretches};
pub use edges::{Edge, Edges, LARGE, edges};
pub use obstacle::{Holder, Keeps, Obstacle};
pub use report::{Blocked, FileReport, PrimeReport, Replaced, SegmentReport, VERSION, text};
