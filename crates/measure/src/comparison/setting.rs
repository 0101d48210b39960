// SPDX-License-Identifier: Apache-2.0
//! What is compared, and where.

use crate::live::Live;
use crate::run::Figure;
use serde::Serialize;

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
    /// Whether a second number of the load's output is compared, as a latency.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_latency: bool,
    /// How a running process was lifted and restored; none for programs that are started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<Live>,
}

/// Returns the figures that the runs have.
pub fn figures(setting: &Setting) -> &'static [Figure] {
    match (&setting.live, &setting.load) {
        (Some(live), _) => live.metric.figures(),
        (None, Some(_)) if setting.has_latency => &[Figure::Metric, Figure::ServerCpu, Figure::Latency],
        (None, Some(_)) => &[Figure::Metric, Figure::ServerCpu],
        (None, None) => &[Figure::Wall, Figure::Cpu],
    }
}
