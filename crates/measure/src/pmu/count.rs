// SPDX-License-Identifier: Apache-2.0
//! The counts of one run, group by group, as perf_event_open(2) returns them.

use super::tables::{Model, Role};
use serde::{Deserialize, Serialize};

/// The value of one counter.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Count {
    /// Events seen while on the PMU.
    pub value: u64,
    /// Nanoseconds that the event was to be counted, over all threads.
    pub enabled_ns: u64,
    /// Nanoseconds that it was on the PMU.
    pub running_ns: u64,
}

impl Count {
    /// Makes a count that was on the PMU all the time.
    pub fn whole(value: u64) -> Count {
        Count { value, enabled_ns: 1, running_ns: 1 }
    }

    /// Adds the count of other threads.
    pub fn add(&mut self, other: Count) {
        self.value = self.value.saturating_add(other.value);
        self.enabled_ns = self.enabled_ns.saturating_add(other.enabled_ns);
        self.running_ns = self.running_ns.saturating_add(other.running_ns);
    }

    /// Returns what was added since `before`.
    pub fn since(self, before: Count) -> Count {
        Count {
            value: self.value.saturating_sub(before.value),
            enabled_ns: self.enabled_ns.saturating_sub(before.enabled_ns),
            running_ns: self.running_ns.saturating_sub(before.running_ns),
        }
    }

    /// Returns the share of the time that it was on the PMU: 1 without multiplexing, 0 if it never was.
    pub fn running_share(self) -> f64 {
        if self.enabled_ns == 0 { 0.0 } else { (self.running_ns as f64 / self.enabled_ns as f64).min(1.0) }
    }

    /// Estimates the count of the whole time; `None` if it was never on the PMU.
    pub fn scaled(self) -> Option<f64> {
        let share = self.running_share();
        (share > 0.0).then(|| self.value as f64 / share)
    }
}

/// The counts of one run, in the order of the model's groups and of the events in each;
/// `None` for an event that this PMU did not take.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample<'a> {
    /// The model that has these events.
    pub model: &'a Model,
    /// A list for each group.
    pub groups: Vec<Vec<Option<Count>>>,
}

/// Returns what was added to the counts of groups since they were `before`.
pub(crate) fn since(now: &[Vec<Option<Count>>], before: &[Vec<Option<Count>>]) -> Vec<Vec<Option<Count>>> {
    let known = |group: usize, event: usize| before.get(group)?.get(event).copied().flatten();
    let of_group = |(group, counts): (usize, &Vec<Option<Count>>)| {
        let of_event = |(event, count): (usize, &Option<Count>)| {
            count.map(|count| count.since(known(group, event).unwrap_or_default()))
        };
        counts.iter().enumerate().map(of_event).collect()
    };
    now.iter().enumerate().map(of_group).collect()
}

impl Sample<'_> {
    /// Returns what was added since the counts were `before`.
    pub fn since(&self, before: &[Vec<Option<Count>>]) -> Self {
        Sample { model: self.model, groups: since(&self.groups, before) }
    }

    /// Returns the count of an event, with its group: the first group that has counted it.
    fn find(&self, role: Role) -> Option<(usize, Count)> {
        self.model.groups.iter().zip(&self.groups).enumerate().find_map(|(group, (events, counts))| {
            let at = events.iter().position(|e| e.role == role)?;
            let count = (*counts.get(at)?)?;
            (count.running_share() > 0.0).then_some((group, count))
        })
    }

    fn in_group(&self, group: usize, role: Role) -> Option<Count> {
        let at = self.model.groups.get(group)?.iter().position(|e| e.role == role)?;
        *self.groups.get(group)?.get(at)?
    }

    /// Returns the events of `role` per event of `by`, both counted by the same group.
    pub fn per(&self, role: Role, by: Role) -> Option<f64> {
        let (group, count) = self.find(role)?;
        let (count, by) = (count.scaled()?, self.in_group(group, by)?.scaled()?);
        (by > 0.0).then(|| count / by)
    }

    /// Adds up [`Sample::per`] of several events; `None` unless all of them were counted.
    pub(crate) fn sum_per(&self, roles: &[Role], by: Role) -> Option<f64> {
        roles.iter().map(|role| self.per(*role, by)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiplexing_is_scaled() {
        let quarter = Count { value: 250, enabled_ns: 4000, running_ns: 1000 };
        assert_eq!(quarter.running_share(), 0.25);
        assert_eq!(quarter.scaled(), Some(1000.0));
        assert_eq!(Count::whole(7).scaled(), Some(7.0));
    }

    #[test]
    fn never_counted_is_no_zero() {
        assert_eq!(Count { value: 0, enabled_ns: 4000, running_ns: 0 }.scaled(), None);
        assert_eq!(Count::default().scaled(), None);
        assert_eq!(Count { value: 0, enabled_ns: 4000, running_ns: 4000 }.scaled(), Some(0.0));
    }

    #[test]
    fn between_two_readings() {
        let model = super::super::tables::models().next().expect("a model");
        let count = |value, ns| Some(Count { value, enabled_ns: 2 * ns, running_ns: ns });
        let now = Sample { model, groups: vec![vec![count(70, 7), None, count(5, 5)], vec![count(9, 9)]] };
        let since = now.since(&[vec![count(30, 3), count(1, 1), count(6, 6)]]);
        assert_eq!(since.groups, [vec![count(40, 4), None, count(0, 0)], vec![count(9, 9)]]);
    }

    #[test]
    fn threads_add_up() {
        let mut sum = Count::default();
        sum.add(Count { value: 10, enabled_ns: 100, running_ns: 100 });
        sum.add(Count { value: 10, enabled_ns: 100, running_ns: 50 });
        assert_eq!(sum, Count { value: 20, enabled_ns: 200, running_ns: 150 });
        sum.add(Count { value: u64::MAX, enabled_ns: u64::MAX, running_ns: 1 });
        assert_eq!(sum.value, u64::MAX);
    }
}
