// SPDX-License-Identifier: Apache-2.0
//! Which code a process uses, by samples of its instruction addresses: huge page by huge page, object by object. And which
//! data.
//!
//! | module | holds |
//! |---|---|
//! | `chao` | how many pages are in use, by those that were seen |
//! | [`cold`] | what copies of a process are no longer in use, so that their memory may be given back |
//! | [`data`] | which data a process uses |
//! | [`extent`] | how much data a process has, beside what the TLBs hold |
//! | [`follow`] | what is worth a copy of a process that runs on, as its samples arrive |
//! | [`hot`] | the huge pages that are worth a copy |
//! | [`places`] | which object an address belongs to |
//! | [`tally`] | samples by place and page |
//! | [`verdict`] | whether huge pages may pay |

mod chao;
pub mod cold;
pub mod data;
pub mod extent;
pub mod follow;
pub mod hot;
pub mod places;
pub mod tally;
pub mod verdict;

use crate::addr::PageSize;
use crate::printable::{Escape, Untrusted, thousands};
pub use chao::PagesInUse;
use follow::Code;
pub use hot::HOT_PERCENT;
use hot::HotCode;
use serde::Serialize;

/// The code that a process used while it was sampled.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Heat {
    /// How long it was sampled.
    pub milliseconds: u64,
    /// Whether it ended meanwhile.
    pub ended: bool,
    /// Its threads.
    pub threads: u64,
    /// The threads that were sampled. If there are very many, these are the threads that had used the most CPU time.
    pub sampled_threads: u64,
    /// The samples that the others are shares of: one for each `period_ns` of CPU time.
    pub samples: u64,
    /// Samples that the kernel dropped, as they were read too late.
    pub lost_samples: u64,
    /// CPU time of a thread between two of its samples, in nanoseconds.
    pub period_ns: u64,
    /// What a sample costs the thread that is sampled, in nanoseconds, as measured on a thread of hugelift.
    pub sample_cost_ns: u64,
    /// Samples in the kernel; `None` where only user space may be sampled.
    pub kernel_samples: Option<u64>,
    /// Samples in code that is in no file, which the process has made itself.
    pub jit_samples: u64,
    /// Samples in the kernel's own pages (`[vdso]`), in files that are no objects or that the process has mapped a second
    /// time, and in what was gone before it was looked up.
    pub other_samples: u64,
    /// Size of the pages that are counted, in bytes.
    pub page_size: u64,
    /// Size of the huge pages that are counted, in bytes.
    pub huge_page_size: u64,
    /// All pages of code in use outside of the kernel.
    pub pages: PagesInUse,
    /// The objects with samples, those with the most first.
    pub objects: Vec<ObjectHeat>,
}

/// The code in use of one object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ObjectHeat {
    /// As in `/proc/PID/maps`.
    pub path: Untrusted,
    /// Samples in its code, also in copies of it.
    pub samples: u64,
    /// Its pages of code in use.
    pub pages: PagesInUse,
    /// The huge pages that its code lies in.
    pub huge_pages: u64,
    /// The fewest of those that hold [`HOT_PERCENT`] of its samples.
    pub hot_huge_pages: u64,
    /// The huge pages with samples, by address.
    pub spans: Vec<SpanHeat>,
}

/// A huge page with samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct SpanHeat {
    /// Address of its first byte.
    pub start: u64,
    /// The samples in it.
    pub samples: u64,
}

impl ObjectHeat {
    /// Returns the name of its file for display.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or(self.path.as_os_str()).escaped().to_string()
    }

    /// Returns "99 % of the samples are in 28 huge pages of 114".
    pub fn says(&self) -> String {
        format!(
            "{HOT_PERCENT} % of the samples are in {} huge pages of {}",
            self.hot_huge_pages, self.huge_pages
        )
    }
}

impl Heat {
    /// Returns the huge pages of its objects that are worth a copy, at most `budget` bytes of them.
    pub fn hot(&self, budget: u64) -> HotCode {
        let spans = self.objects.iter().flat_map(|object| &object.spans);
        let page = PageSize::new(self.huge_page_size).unwrap_or(PageSize::MB2);
        HotCode::choose(spans.map(|span| (span.start, span.samples)), page, budget)
    }

    /// Returns the huge pages of `code` that could be copied and are worth it, as long as copies take no more than `budget`
    /// bytes of memory.
    pub fn hot_of(&self, code: &Code, budget: u64) -> HotCode {
        let spans = self.objects.iter().flat_map(|object| &object.spans);
        let page = PageSize::new(self.huge_page_size).unwrap_or(PageSize::MB2);
        let among = code.among(spans.map(|span| (span.start, span.samples)), page);
        HotCode::choose(among, page, budget.saturating_sub(code.copied))
    }

    /// Returns the samples outside of the kernel.
    pub fn user_samples(&self) -> u64 {
        self.samples - self.kernel_samples.unwrap_or(0)
    }

    /// Returns "9 412 samples of CPU time in 10.0 s", or why there are none.
    pub fn says(&self) -> String {
        let seconds = self.milliseconds as f64 / 1000.0;
        let ended = if self.ended { ", then it ended" } else { "" };
        match self.samples {
            0 if self.ended => format!("no samples: the process ended after {seconds:.1} s"),
            0 => format!("no samples in {seconds:.1} s: the process slept"),
            n => format!("{} samples of CPU time in {seconds:.1} s{ended}", thousands(n)),
        }
    }

    /// Returns "a sample takes about 55.0 us of each 5.50 ms of CPU time (1.0 %)".
    pub fn price(&self) -> String {
        let (cost, period) = (self.sample_cost_ns as f64, self.period_ns as f64);
        let percent = 100.0 * cost / period.max(1.0);
        format!(
            "a sample takes about {:.1} us of each {:.2} ms of CPU time ({percent:.1} %)",
            cost / 1e3,
            period / 1e6
        )
    }

    /// Returns a share of its samples: "12.3 %".
    pub fn share(&self, samples: u64) -> String {
        percent(samples, self.samples)
    }
}

/// Returns `part` of `all` as "12.3 %".
pub fn percent(part: u64, all: u64) -> String {
    format!("{:.1} %", 100.0 * part as f64 / all.max(1) as f64)
}
