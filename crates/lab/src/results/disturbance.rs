// SPDX-License-Identifier: Apache-2.0
//! What other programs and the hypervisor took from an experiment.

use serde::{Deserialize, Serialize};

/// What was taken from the steps of an experiment, as far as their figures were kept.
#[derive(Clone, Copy, Default, PartialEq, Debug, Serialize, Deserialize)]
pub struct Disturbance {
    /// The highest load average of a minute that was seen.
    pub load: f64,
    /// Share of the CPUs' time that other programs used.
    pub others_percent: f64,
    /// Share of the CPUs' time that the hypervisor took.
    pub stolen_percent: f64,
    /// Share of its runnable time in which the measuring thread waited for a CPU.
    pub waited_percent: f64,
    /// Share of the time in which any task of the machine waited for a CPU; `None` without PSI. Tasks of
    /// the experiment itself count too.
    pub pressure_percent: Option<f64>,
    /// The number of steps.
    pub steps: u64,
    /// How often a step was run again because it was disturbed.
    pub repeated: u64,
    /// The number of steps that were still disturbed after that.
    pub disturbed: u64,
}

/// The share of steps that may be disturbed before the experiment is.
const FEW: f64 = 0.1;

impl Disturbance {
    /// Returns whether the figures are those of a machine that did other work as well.
    pub fn is_disturbed(&self) -> bool {
        Disturbance::are_many(self.disturbed, self.steps)
    }

    /// Returns whether an experiment is disturbed if this number of its steps is.
    pub(crate) fn are_many(disturbed: u64, steps: u64) -> bool {
        disturbed as f64 > FEW * steps as f64
    }

    /// Describes it in one line.
    pub fn line(&self) -> String {
        let verdict = if self.is_disturbed() {
            format!("disturbed ({} of {} steps; run again on an idle machine)", self.disturbed, self.steps)
        } else {
            "undisturbed".into()
        };
        let stolen = match self.stolen_percent {
            stolen if stolen >= 0.05 => format!(", the hypervisor {stolen:.1} %"),
            _ => String::new(),
        };
        let waited = match self.waited_percent {
            waited if waited >= 0.5 => format!(", waited for a CPU in {waited:.0} % of its time"),
            _ => String::new(),
        };
        let repeated = match self.repeated {
            0 => String::new(),
            1 => ", repeated 1 step".into(),
            n => format!(", repeated {n} steps"),
        };
        format!(
            "{verdict}: other programs used {:.1} % of the CPUs{stolen}{waited}{repeated}, load {:.1}",
            self.others_percent, self.load
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_disturbed_it_was() {
        let calm = Disturbance { load: 0.42, others_percent: 0.31, steps: 20, ..Disturbance::default() };
        assert_eq!(calm.line(), "undisturbed: other programs used 0.3 % of the CPUs, load 0.4");
        let busy = Disturbance {
            load: 9.1,
            others_percent: 81.0,
            stolen_percent: 2.0,
            waited_percent: 40.0,
            repeated: 9,
            disturbed: 3,
            ..calm
        };
        assert_eq!(
            busy.line(),
            "disturbed (3 of 20 steps; run again on an idle machine): other programs used 81.0 % of the CPUs, the \
             hypervisor 2.0 %, waited for a CPU in 40 % of its time, repeated 9 steps, load 9.1"
        );
        assert!(!Disturbance { disturbed: 2, ..busy }.is_disturbed());
    }
}
