// SPDX-License-Identifier: Apache-2.0
//! The result of a comparison of a bare program with lifted ones: every run, what was huge, and
//! what may be claimed. This is the JSON of `hugelift compare`, version [`VERSION`].
//! `hugelift_report::comparison` shows it as text.

mod finding;

pub use finding::{Finding, VariantResult};

use crate::live::Live;
use crate::stats::{self, Estimate};
use crate::stopping::Reached;
use hugelift_core::smaps::Usage;
use serde::Serialize;
use std::fmt;
use std::ops::Add;

/// Version of the JSON schema.
pub const VERSION: u32 = 1;

/// The value of [`Comparison::method`].
const METHOD: &str = "Hodges-Lehmann estimate of the ratio of each pair, \
     95 % interval by inverting Wilcoxon's signed-rank test";

/// A figure of two runs that can be compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// From the start to the end of the program, seconds.
    #[default]
    Wall,
    /// User and system time of the program, and of hugelift's helper, seconds.
    Cpu,
    /// The number in the load's output.
    Metric,
    /// CPU time of the server for one transaction, or for the whole load where transactions are not
    /// counted, seconds.
    ServerCpu,
    /// By how much the counter of a running process grows in a second.
    Rate,
    /// CPU time of a running process for one unit of its counter, seconds.
    CpuPerUnit,
    /// CPU time of a running process in a second, seconds.
    CpuPerSecond,
}

impl Figure {
    /// Returns its name as in "less wall time".
    pub fn words(self) -> &'static str {
        match self {
            Figure::Wall => "wall time",
            Figure::Cpu => "CPU time",
            Figure::Metric => "metric",
            Figure::ServerCpu => "server CPU per transaction",
            Figure::Rate => "work per second",
            Figure::CpuPerUnit => "CPU time per unit of work",
            Figure::CpuPerSecond => "CPU time per second",
        }
    }

    /// Returns its value in a run, where the run has it.
    pub fn of(self, run: &Run) -> Option<f64> {
        match self {
            Figure::Wall => Some(run.wall),
            Figure::Cpu => Some(run.user + run.system + run.helper),
            Figure::Metric | Figure::Rate => run.metric,
            Figure::ServerCpu | Figure::CpuPerUnit => run.server_cpu,
            Figure::CpuPerSecond => run.cpu_per_second,
        }
    }
}

/// Bytes of one part, in all objects.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Coverage {
    /// In whole huge pages: what could be huge.
    pub whole: u64,
    /// Mapped by huge entries.
    pub huge: u64,
}

impl Coverage {
    /// Whether all that could be huge is.
    pub fn is_full(self) -> bool {
        self.huge >= self.whole
    }
}

impl Add for Coverage {
    type Output = Coverage;
    fn add(self, other: Coverage) -> Coverage {
        Coverage { whole: self.whole + other.whole, huge: self.huge + other.huge }
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        f.pad(&format!("{:.0} of {:.0} MB", mb(self.huge), mb(self.whole)))
    }
}

/// The huge bytes of a process, by smaps.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Memory {
    /// Executable mappings.
    pub text: Coverage,
    /// Mappings that can only be read.
    pub rodata: Coverage,
    /// Huge bytes of everything that can be written (heap, data).
    pub writable_huge: u64,
    /// Huge bytes in the page cache.
    pub pagecache: u64,
    /// Huge bytes in anonymous transparent huge pages.
    pub thp: u64,
    /// Huge bytes in hugetlb pages.
    pub hugetlb: u64,
    /// Huge bytes in tmpfs and memfd pages.
    pub shared: u64,
}

impl Memory {
    /// Returns the huge bytes of text and read-only data, which are what a lift changes.
    pub fn lifted(&self) -> u64 {
        self.text.huge + self.rodata.huge
    }

    /// Returns all huge bytes.
    pub fn huge(&self) -> u64 {
        self.lifted() + self.writable_huge
    }

    /// Adds the huge bytes of one mapping to the sums by backing.
    pub(crate) fn add_backings(&mut self, usage: &Usage) {
        self.pagecache += usage.file_huge;
        self.thp += usage.anon_huge;
        self.hugetlb += usage.hugetlb();
        self.shared += usage.shmem_huge;
    }

    /// Returns the larger of each counter: what was huge at one time or another.
    pub fn max(self, other: Memory) -> Memory {
        let most =
            |a: Coverage, b: Coverage| Coverage { whole: a.whole.max(b.whole), huge: a.huge.max(b.huge) };
        Memory {
            text: most(self.text, other.text),
            rodata: most(self.rodata, other.rodata),
            writable_huge: self.writable_huge.max(other.writable_huge),
            pagecache: self.pagecache.max(other.pagecache),
            thp: self.thp.max(other.thp),
            hugetlb: self.hugetlb.max(other.hugetlb),
            shared: self.shared.max(other.shared),
        }
    }
}

/// One run of one side.
#[derive(Clone, Default, PartialEq, Debug, Serialize)]
pub struct Run {
    /// The pair (round), from 1.
    pub pair: usize,
    /// Its place in the order of its round, from 1.
    pub position: usize,
    /// Seconds from start to end.
    pub wall: f64,
    /// User CPU seconds of the program and the children it waited for.
    pub user: f64,
    /// System CPU seconds of the program and the children it waited for.
    pub system: f64,
    /// CPU seconds of its orphans that have ended: for a lifted program, of hugelift's helper.
    pub helper: f64,
    /// Page faults that read nothing from a disk.
    pub minor_faults: u64,
    /// Page faults that read from a disk.
    pub major_faults: u64,
    /// Exit status, or 128 plus the number of the signal that ended it.
    pub status: i32,
    /// Peak resident memory of the process alone in bytes, where it was read.
    pub peak_bytes: Option<u64>,
    /// The most that was huge, where it was read.
    pub memory: Option<Memory>,
    /// The number in the load's output; of a running process [`Figure::Metric`] or [`Figure::Rate`].
    pub metric: Option<f64>,
    /// See [`Figure::ServerCpu`] and [`Figure::CpuPerUnit`].
    pub server_cpu: Option<f64>,
    /// See [`Figure::CpuPerSecond`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_per_second: Option<f64>,
}

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

/// The ratio of one figure, variant / bare.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Ratio {
    /// The figure.
    pub figure: Figure,
    /// Median ratio.
    pub point: f64,
    /// Lower end of the interval.
    pub low: Option<f64>,
    /// Its upper end.
    pub high: Option<f64>,
    /// How many pairs it rests on.
    pub pairs: usize,
}

/// The settings of the comparison and the machine.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Setting {
    /// CPU, guest or not, kernel, THP mode, date.
    pub host: String,
    /// The command line of the program or of the server.
    pub command: Vec<String>,
    /// The load on the server; none for a command.
    pub load: Option<String>,
    /// The figure that the verdict is on.
    pub figure: Figure,
    /// Whether more of the figure is better.
    pub higher_is_better: bool,
    /// Whether transparent huge pages were switched off for the bare side.
    pub bare_4k: bool,
    /// Whether transactions were counted, so that [`Figure::ServerCpu`] is per transaction.
    pub counts_transactions: bool,
    /// How a running process was lifted and restored; none for programs that are started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<Live>,
}

/// The whole comparison.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Comparison {
    /// [`VERSION`].
    pub version: u32,
    /// How the ratios are computed.
    pub method: &'static str,
    /// The settings and the machine.
    #[serde(flatten)]
    pub setting: Setting,
    /// The condition that ended it.
    pub reached: Reached,
    /// The bare side first.
    pub sides: Vec<Side>,
    /// Every other side compared with it.
    pub variants: Vec<VariantResult>,
}

impl Comparison {
    /// Draws the conclusions from `sides`, of which the first is the bare one.
    pub fn new(setting: Setting, reached: Reached, sides: Vec<Side>) -> Comparison {
        let variants = match sides.split_first() {
            Some((bare, rest)) => rest.iter().map(|side| finding::compare(&setting, bare, side)).collect(),
            None => Vec::new(),
        };
        Comparison { version: VERSION, method: METHOD, setting, reached, sides, variants }
    }

    /// Returns the bare side.
    pub fn bare(&self) -> Option<&Side> {
        self.sides.first()
    }

    /// Whether anything was measured.
    pub fn has_runs(&self) -> bool {
        self.sides.iter().any(|side| !side.runs.is_empty())
    }

    /// Returns a side by its name.
    pub fn side(&self, name: &str) -> Option<&Side> {
        self.sides.iter().find(|side| side.name == name)
    }
}

/// Returns the figures that the runs have.
pub fn figures(setting: &Setting) -> &'static [Figure] {
    match (&setting.live, &setting.load) {
        (Some(live), _) => live.metric.figures(),
        (None, Some(_)) => &[Figure::Metric, Figure::ServerCpu],
        (None, None) => &[Figure::Wall, Figure::Cpu],
    }
}

/// Estimates the ratio variant / bare of `figure`, from the rounds in which both have it.
pub fn ratio(figure: Figure, bare: &[Run], variant: &[Run]) -> Option<Estimate> {
    let pairs: Vec<(f64, f64)> =
        bare.iter().zip(variant).filter_map(|(a, b)| Some((figure.of(a)?, figure.of(b)?))).collect();
    stats::ratio(&pairs).ok()
}
