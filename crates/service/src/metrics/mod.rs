// SPDX-License-Identifier: Apache-2.0
//! What the daemon tells Prometheus and node_exporter.
//!
//! ```text
//! Figures -> series::open_metrics() -> Server      a scraper asks by HTTP
//!         -> series::classic()      -> TextFile    node_exporter reads a file
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`figures`] | the numbers, as plain data |
//! | [`series`] | their names and help texts, and the text for scrapers |
//! | [`serve`] | the server: a Unix socket and a port of 127.0.0.1 |
//! | [`textfile`] | the file for the textfile collector of node_exporter |
//! | `labels` | untrusted names as values of labels |
//! | `programs` | the figures of programs, limited in number |
//! | `rows` | samples with labels, in the order in which they were given |

pub mod figures;
mod labels;
mod programs;
mod rows;
pub mod series;
pub mod serve;
pub mod textfile;

pub use figures::{Figures, Kernel, Pool, Pressure, ProgramFigures};
pub use serve::Server;
pub use textfile::{TextFile, TextFileError};
