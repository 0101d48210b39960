// SPDX-License-Identifier: Apache-2.0
//! Counts that somebody gives instead of a machine: published ones, or ones written to try
//! the formulas.

use super::count::{Count, Sample};
use super::cpu::Cpu;
use super::tables::{Event, Model, model_of};
use serde::Deserialize;
use std::collections::BTreeMap;

/// A file of counts.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Given {
    /// Where they are from; shown with every result.
    pub note: String,
    /// Which CPU counted, or is supposed to have.
    pub cpu: Cpu,
    /// By the maker's event name: a number, or a number with the times of multiplexing. One
    /// for each group that has the event, or one for all.
    pub counters: BTreeMap<String, Value>,
}

/// The count of one event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// Counted all the time.
    Whole(u64),
    /// Counted some of the time.
    Part(Count),
}

/// Why given counts have no result.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GivenError {
    /// No event table.
    #[error("there is no event table for {0}")]
    UnknownCpu(Cpu),
    /// A name that the CPU's table does not have.
    #[error("{model} has no event '{name}'; it has {known}")]
    UnknownEvent {
        /// The CPU.
        model: &'static str,
        /// As given.
        name: String,
        /// What there is.
        known: String,
    },
}

impl Given {
    /// The counts in the order of the CPU's table.
    ///
    /// # Errors
    /// A CPU without a table, an event that its table does not have.
    pub fn sample(&self) -> Result<Sample<'static>, GivenError> {
        let model = model_of(&self.cpu).ok_or_else(|| GivenError::UnknownCpu(self.cpu.clone()))?;
        for name in self.counters.keys() {
            if !events(model).any(|e| e.name == name) {
                let mut known: Vec<&str> = events(model).map(|e| e.name).collect();
                known.sort_unstable();
                known.dedup();
                let name = name.chars().filter(|c| !c.is_control()).take(60).collect();
                return Err(GivenError::UnknownEvent { model: model.name, name, known: known.join(", ") });
            }
        }
        let count = |event: &Event| {
            self.counters.get(event.name).map(|value| match value {
                Value::Whole(value) => Count::whole(*value),
                Value::Part(count) => *count,
            })
        };
        let groups = model.groups.iter().map(|group| group.iter().map(count).collect()).collect();
        Ok(Sample { model, groups })
    }
}

fn events(model: &'static Model) -> impl Iterator<Item = &'static Event> {
    model.groups.iter().copied().flatten()
}
