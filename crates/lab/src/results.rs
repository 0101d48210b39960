// SPDX-License-Identifier: Apache-2.0
//! What experiments find out: plain data, the same for all, and what is made of it.
//!
//! An experiment gives an [`Outcome`]; with the machine, the time and how it ended it is a
//! [`Report`], which is shown as text, CSV, JSON or a page (`hugelift_report::html::lab`).

pub mod machine;
pub mod unit;

use machine::Machine;
use serde::{Deserialize, Serialize};
use unit::Unit;

/// Version of the JSON.
pub const VERSION: u32 = 1;

/// One experiment on one machine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Of the schema.
    pub version: u32,
    /// The word after `hugelift lab`.
    pub experiment: String,
    /// What it is about, in one line.
    pub title: String,
    /// `--quick` was given.
    pub quick: bool,
    /// How it ended.
    pub ended: Ended,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// When it began: UTC, as in 2026-01-31T12:00:00Z.
    pub date: String,
    /// Where.
    pub machine: Machine,
    /// What was found.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// How an experiment ended.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// All was measured.
    #[default]
    Complete,
    /// The time was over: what is there is right, and not all.
    TimeOver,
    /// By ctrl-C: what is there is right, and not all.
    Interrupted,
}

/// What an experiment found.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// What it means on this machine: two sentences.
    pub advice: Vec<String>,
    /// What was left out and why, what root would add, what was seen on the way.
    pub notes: Vec<String>,
    /// The figures.
    pub tables: Vec<Table>,
    /// The pictures.
    pub plots: Vec<Plot>,
    /// Single measurements, for statistics.
    pub samples: Vec<Sample>,
    /// Lines in the form of another tool, printed as they are, to be put side by side.
    #[serde(default)]
    pub listing: Vec<String>,
}

/// Figures in rows.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub struct Table {
    /// What they are.
    pub caption: String,
    /// One for each cell of a row.
    pub columns: Vec<Column>,
    /// The rows.
    pub rows: Vec<Vec<Cell>>,
    /// Single measurements: not for a terminal, and folded on a page.
    #[serde(default)]
    pub detail: bool,
}

impl Table {
    /// An empty one.
    pub fn new(caption: impl Into<String>, columns: Vec<Column>) -> Table {
        Table { caption: caption.into(), columns, rows: Vec::new(), detail: false }
    }

    /// An empty one for single measurements.
    pub fn detail(caption: impl Into<String>, columns: Vec<Column>) -> Table {
        Table { detail: true, ..Table::new(caption, columns) }
    }
}

/// What the cells below each other are.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Column {
    /// For programs: the name of the CSV column, such as `size_bytes`.
    pub key: String,
    /// For people.
    pub title: String,
    /// Of the numbers.
    pub unit: Unit,
}

impl Column {
    /// A column of numbers in `unit`, or of words in [`Unit::Text`].
    pub fn new(key: &str, title: &str, unit: Unit) -> Column {
        Column { key: key.into(), title: title.into(), unit }
    }
}

/// One figure or word.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Cell {
    /// In the unit of its column.
    Number(f64),
    /// A word.
    Text(String),
    /// Not measured.
    Nothing,
}

impl From<f64> for Cell {
    /// What is no number was not measured.
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

/// Curves over one pair of axes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plot {
    /// What is to be seen.
    pub title: String,
    /// To the right.
    pub x: Scale,
    /// Upwards.
    pub y: Scale,
    /// The curves.
    pub series: Vec<Series>,
    /// Places on the x axis that have a name: caches, knees.
    pub marks: Vec<Mark>,
}

/// What an axis shows.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Scale {
    /// Without the unit: "working set".
    pub name: String,
    /// Of the values.
    pub unit: Unit,
    /// Equal ratios are equally far apart.
    pub logarithmic: bool,
    /// Begins at 0 (a logarithmic one never does).
    pub from_zero: bool,
}

impl Scale {
    /// Equal differences are equally far apart; begins at 0.
    pub fn linear(name: &str, unit: Unit) -> Scale {
        Scale { name: name.into(), unit, logarithmic: false, from_zero: true }
    }

    /// Equal ratios are equally far apart.
    pub fn logarithmic(name: &str, unit: Unit) -> Scale {
        Scale { name: name.into(), unit, logarithmic: true, from_zero: false }
    }
}

/// One curve.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Series {
    /// As in the legend.
    pub name: String,
    /// Its colour.
    pub hue: Hue,
    /// How it is drawn.
    pub shape: Shape,
    /// In the order of x.
    pub points: Vec<Point>,
}

/// The colour of a curve. The first four are those of the page kinds everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hue {
    /// 4 kB pages, or whatever the base page is.
    Small,
    /// Transparent huge pages.
    Thp,
    /// hugetlb pages of the usual size.
    Hugetlb,
    /// Larger hugetlb pages.
    Giant,
    /// Something without pages: a model, a bound, the caches.
    Ideal,
    /// Free for any use, in this order.
    First,
    /// As [`Hue::First`].
    Second,
    /// As [`Hue::First`].
    Third,
}

/// How a curve is drawn.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// Points joined by lines.
    #[default]
    Line,
    /// The same, broken: threads beside processes, a model beside a measurement.
    Dashed,
    /// A histogram: each value holds up to the next x.
    Steps,
    /// Points only.
    Points,
}

/// One point of a curve.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Point {
    /// Where.
    pub x: f64,
    /// How much.
    pub y: f64,
    /// Ends of the range in which the measurements lay, if there is one.
    pub range: Option<(f64, f64)>,
}

/// A named place on the x axis.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Mark {
    /// Where.
    pub x: f64,
    /// A few words.
    pub name: String,
}

/// Measurements of one thing.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// What was measured, unique in its outcome.
    pub name: String,
    /// Of the values.
    pub unit: Unit,
    /// In the order in which they were measured.
    pub values: Vec<f64>,
}
