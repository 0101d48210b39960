// SPDX-License-Identifier: Apache-2.0
//! What is written into the ledger, as plain data.

pub use hugelift_core::service::verify::{Program, Verdict};
use std::path::PathBuf;

/// A row of one of the tables.
#[derive(Clone, PartialEq, Debug)]
pub enum Entry {
    /// A program may be lifted. Its executable has this path.
    Seen(Program, PathBuf),
    /// A process of a program was lifted.
    Lift(Program, Lift),
    /// A process of a program could not be lifted, for this reason.
    Refusal(Program, String),
    /// What a program has used.
    Use(Program, Use),
    /// What the service has cost.
    Cost(Cost),
    /// What was measured.
    Experiment(Program, Experiment),
}

/// Bytes on huge pages after a lift.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lift {
    /// The path of the executable.
    pub path: PathBuf,
    /// The part, as in the report: `text`, `rodata`, `anon`.
    pub part: String,
    /// Where the pages come from, as in the report: `shared`, `thp`.
    pub backing: String,
    /// How many bytes.
    pub bytes: u64,
}

/// CPU time that the processes of a program have used in a span of time.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Use {
    /// All of it, in microseconds.
    pub cpu_us: u64,
    /// The part of it that lifted processes have used.
    pub lifted_us: u64,
    /// Bytes of copies at the end of the span.
    pub copies: u64,
}

/// What the service and its helpers have cost in a span of time.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Cost {
    /// The length of the span in seconds.
    pub span: u64,
    /// CPU time in microseconds.
    pub cpu_us: u64,
    /// Bytes of copies at the end of the span.
    pub copies: u64,
}

/// The result of an experiment.
#[derive(Clone, PartialEq, Debug)]
pub struct Experiment {
    /// The path of the executable.
    pub path: PathBuf,
    /// What was compared, as `CPU time per system call`.
    pub measure: String,
    /// The ratio lifted / bare, if there is one.
    pub ratio: Option<Ratio>,
    /// How many pairs of periods it rests on.
    pub pairs: u64,
    /// What follows.
    pub verdict: Verdict,
    /// When it is tried again at the earliest.
    pub until: u64,
}

/// A ratio lifted / bare with its interval of 95 %.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ratio {
    /// The estimate.
    pub point: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}
