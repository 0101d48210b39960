// SPDX-License-Identifier: Apache-2.0
//! The options of `hugelift lab munmap`.

use super::output::OutputArgs;
use crate::failure::Failure;
use crate::options::{Words, one_of};
use clap::{Args, ValueEnum};
use hugelift_lab::memory::{Pages, usual_hugetlb};
use hugelift_lab::munmap::{Kind, Options, Touch};

/// Map and unmap 128 MB in a loop, in one task and in many: what a touch costs on each kind of
/// pages, how it scales, and on which locks the kernel serialises
///
/// With -t or -s only one case is measured and printed, as will-it-scale's mmap1 does.
#[derive(Args, Debug)]
pub struct MunmapArgs {
    /// Measure this number of tasks only, with will-it-scale's output
    #[arg(short = 't', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    tasks: Option<u16>,

    /// The number of samples of one second, after a warm-up of 6; with will-it-scale's output
    #[arg(short = 's', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=500))]
    samples: Option<u32>,

    /// Whether tasks are processes or threads [default: both; with -t or -s processes]
    #[arg(long, value_parser = one_of(KIND))]
    kind: Option<Kind>,

    /// The kind of pages [default: all; with -t or -s small ones]
    #[arg(long, value_enum)]
    pages: Option<PagesChoice>,

    /// What is touched of each mapping [default: all three; with -t or -s nothing]
    #[arg(long, value_parser = one_of(TOUCH))]
    touch: Option<Touch>,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// `--kind`
const KIND: &Words<Kind> = &[("processes", "", Kind::Processes), ("threads", "", Kind::Threads)];

/// `--pages`
#[derive(Clone, Copy, Debug, ValueEnum)]
enum PagesChoice {
    /// 4 kB, or whatever the base page is
    Small,
    /// Transparent huge pages
    Thp,
    /// The hugetlb pool of pages of the same size
    Hugetlb,
}

/// `--touch`
const TOUCH: &Words<Touch> =
    &[("none", "", Touch::None), ("first", "", Touch::First), ("all", "", Touch::All)];

impl MunmapArgs {
    /// Returns the options in the form of the experiment.
    ///
    /// # Errors
    /// The kernel has no hugetlb pool.
    pub fn options(&self) -> Result<Options, Failure> {
        let pages = match self.pages {
            None => None,
            Some(PagesChoice::Small) => Some(Pages::Small),
            Some(PagesChoice::Thp) => Some(Pages::Thp),
            Some(PagesChoice::Hugetlb) => Some(
                usual_hugetlb()
                    .ok_or("--pages hugetlb: this kernel has no hugetlb pools (CONFIG_HUGETLBFS)")?,
            ),
        };
        Ok(Options {
            quick: self.output.quick,
            tasks: self.tasks.map(usize::from),
            samples: self.samples,
            kind: self.kind,
            pages,
            touch: self.touch,
        })
    }
}
