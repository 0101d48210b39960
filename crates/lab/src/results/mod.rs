// SPDX-License-Identifier: Apache-2.0
//! What experiments return: plain data, the same for all.
//!
//! An experiment returns an [`Outcome`]. Together with the machine, the time and how it ended this is a
//! [`Report`], which crate `hugelift-report` shows as text, CSV, JSON or a page.

pub mod claim;
pub mod disturbance;
pub mod machine;
pub mod unit;

use claim::Claim;
use disturbance::Disturbance;
use machine::Machine;
use serde::{Deserialize, Serialize};
use unit::Unit;

/// Version of the JSON.
pub const VERSION: u32 = 1;

/// The result of one experiment on one machine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Version of the JSON schema.
    pub version: u32,
    /// The word after `hugelift lab`.
    pub experiment: String,
    /// What it is about, in one line.
    pub title: String,
    /// Whether `--quick` was given.
    pub quick: bool,
    /// How it ended.
    pub ended: Ended,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// When it began, in UTC, as in 2026-01-31T12:00:00Z.
    pub date: String,
    /// The machine that it ran on.
    pub machine: Machine,
    /// What other programs took from it; `None` if that could not be read.
    #[serde(default)]
    pub disturbance: Option<Disturbance>,
    /// The results.
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl Report {
    /// Returns whether it states something that `hugelift doctor` may rely on: no other program disturbed
    /// it, and at least one of its claims is sure.
    pub fn is_sure(&self) -> bool {
        self.disturbance.is_some_and(|disturbance| !disturbance.is_disturbed())
            && self.outcome.claims.iter().any(|claim| claim.sure)
    }
}

/// How an experiment ended.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// Everything was measured.
    #[default]
    Complete,
    /// The time was over. The results are valid, but not complete.
    TimeOver,
    /// Ctrl-C was pressed. The results are valid, but not complete.
    Interrupted,
}

/// What an experiment measured, and what it means.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// What the results mean on this machine, in two sentences.
    pub advice: Vec<String>,
    /// What the experiment states, for comparison with other reports.
    #[serde(default)]
    pub claims: Vec<Claim>,
    /// What was left out and why, what root would add, what was observed along the way.
    pub notes: Vec<String>,
    /// Tables of figures.
    pub tables: Vec<Table>,
    /// Plots.
    pub plots: Vec<Plot>,
    /// The single measurements, for statistics.
    pub samples: Vec<Sample>,
    /// Lines in the format of another tool. They are printed unchanged, for comparison with that tool.
    #[serde(default)]
    pub listing: Vec<String>,
}

/// A table of figures.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub struct Table {
    /// What the figures are.
    pub caption: String,
    /// The columns; each row has one cell for each.
    pub columns: Vec<Column>,
    /// The rows.
    pub rows: Vec<Vec<Cell>>,
    /// Whether these are single measurements, which a terminal does not show and a page folds.
    #[serde(default)]
    pub detail: bool,
}

impl Table {
    /// Returns an empty table.
    pub fn new(caption: impl Into<String>, columns: Vec<Column>) -> Table {
        Table { caption: caption.into(), columns, rows: Vec::new(), detail: false }
    }

    /// Returns an empty table for single measurements.
    pub fn detail(caption: impl Into<String>, columns: Vec<Column>) -> Table {
        Table { detail: true, ..Table::new(caption, columns) }
    }
}

/// A column of a table.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Column {
    /// Name of the CSV column, such as `size_bytes`.
    pub key: String,
    /// Title for people.
    pub title: String,
    /// Unit of the numbers.
    pub unit: Unit,
}

impl Column {
    /// Returns a column of numbers in `unit`, or of words if `unit` is [`Unit::Text`].
    pub fn new(key: &str, title: &str, unit: Unit) -> Column {
        Column { key: key.into(), title: title.into(), unit }
    }
}

/// A cell of a table.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Cell {
    /// A number in the unit of the column.
    Number(f64),
    /// Words.
    Text(String),
    /// Not measured.
    Nothing,
}

impl From<f64> for Cell {
    /// Makes a number a cell; one that is not finite counts as not measured.
    fn from(value: f64) -> Cell {
        if value.is_finite() { Cell::Number(value) } else { Cell::Nothing }
    }
}

impl From<u64> for Cell {
    fn from(value: u64) -> Cell {
        Cell::Number(value as f64)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.into())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::Text(text)
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Cell {
        value.map_or(Cell::Nothing, Into::into)
    }
}

/// A plot: curves over one pair of axes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plot {
    /// What the plot shows.
    pub title: String,
    /// The horizontal axis.
    pub x: Scale,
    /// The vertical axis.
    pub y: Scale,
    /// The curves.
    pub series: Vec<Series>,
    /// Named places on the x axis, such as caches and knees.
    pub marks: Vec<Mark>,
}

/// An axis.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Scale {
    /// Name without the unit, as in "working set".
    pub name: String,
    /// Unit of the values.
    pub unit: Unit,
    /// Whether the scale is logarithmic.
    pub logarithmic: bool,
    /// Whether it begins at 0; a logarithmic one never does.
    pub from_zero: bool,
}

impl Scale {
    /// Returns a linear axis that begins at 0.
    pub fn linear(name: &str, unit: Unit) -> Scale {
        Scale { name: name.into(), unit, logarithmic: false, from_zero: true }
    }

    /// Returns a logarithmic axis.
    pub fn logarithmic(name: &str, unit: Unit) -> Scale {
        Scale { name: name.into(), unit, logarithmic: true, from_zero: false }
    }
}

/// A curve.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Colour.
    pub hue: Hue,
    /// How the curve is drawn.
    pub shape: Shape,
    /// Points in the order of x.
    pub points: Vec<Point>,
}

/// The colour of a curve. The first four stand for the kinds of pages everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hue {
    /// Base pages, on most machines 4 kB.
    Small,
    /// Transparent huge pages.
    Thp,
    /// hugetlb pages of the usual size.
    Hugetlb,
    /// Larger hugetlb pages.
    Giant,
    /// Something that has no page size: a model, a bound, the caches.
    Ideal,
    /// For other curves: the first one.
    First,
    /// For other curves: the second one.
    Second,
    /// For other curves: the third one.
    Third,
}

/// How a curve is drawn.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// Points joined by lines.
    #[default]
    Line,
    /// A dashed line: threads beside processes, a model beside a measurement.
    Dashed,
    /// Steps, for a histogram: each value holds up to the next x.
    Steps,
    /// Points without a line.
    Points,
}

/// A point of a curve.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Point {
    /// Position on the x axis.
    pub x: f64,
    /// Value.
    pub y: f64,
    /// Lower and upper end of the range of the measurements, if there is one.
    pub range: Option<(f64, f64)>,
}

/// A named place on the x axis.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Mark {
    /// Position on the x axis.
    pub x: f64,
    /// A few words.
    pub name: String,
}

/// The single measurements of one quantity.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// What was measured; unique in its outcome.
    pub name: String,
    /// Unit of the values.
    pub unit: Unit,
    /// The values in the order in which they were measured.
    pub values: Vec<f64>,
}
