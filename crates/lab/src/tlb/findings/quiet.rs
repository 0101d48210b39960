// SPDX-License-Identifier: Apache-2.0
//! How quiet the machine was.

/// How quiet the machine was.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Quiet {
    /// Whether other programs disturbed the experiment.
    pub disturbed: bool,
    /// The highest load average.
    pub load: f64,
}

impl Quiet {
    /// Returns why a figure is not sure, if it is not because of its own sweeps.
    pub fn reason(self) -> String {
        if self.disturbed {
            format!("the machine was busy (load {:.0})", self.load)
        } else {
            "the sweeps disagree".into()
        }
    }
}
