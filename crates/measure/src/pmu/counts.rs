// SPDX-License-Identifier: Apache-2.0
//! Counts that can be added up and subtracted, and what is said about them once.

use super::count::{Count, Sample, since};
use super::cpu::Cpu;
use super::report::{KernelCount, Origin, Scope, StatReport};
use super::tables::Model;

/// What is the same for all counts of a measurement.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct About {
    /// The CPU.
    pub cpu: Option<Cpu>,
    /// Its events; `None` without a PMU.
    pub model: Option<&'static Model>,
    /// The kernel's name for its PMU.
    pub pmu: Option<String>,
    /// Why there are no counts of the PMU.
    pub no_pmu: Option<String>,
    /// Only user space was counted.
    pub user_only: bool,
    /// What cannot be counted, and why.
    pub notes: Vec<String>,
}

/// Counts of one moment, or of a time.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Counts {
    /// Of the PMU, in the order of the model's groups; empty without one.
    pub groups: Vec<Vec<Option<Count>>>,
    /// Of the kernel.
    pub kernel: Vec<KernelCount>,
}

impl Counts {
    /// Returns what was added since the counts were `before`.
    pub fn since(&self, before: &Counts) -> Counts {
        let mut kernel = self.kernel.clone();
        for count in &mut kernel {
            let first = before.kernel.iter().find(|other| other.key == count.key);
            count.value = count.value.saturating_sub(first.map_or(0, |first| first.value));
        }
        Counts { groups: since(&self.groups, &before.groups), kernel }
    }

    /// Adds the counts of another process at the same time: those of the whole machine are the same.
    pub fn add_process(&mut self, other: &Counts) {
        let is_new = self.kernel.is_empty();
        let kernel = other.kernel.iter().filter(|count| is_new || count.scope == Scope::Program);
        self.add(&Counts { groups: other.groups.clone(), kernel: kernel.cloned().collect() });
    }

    /// Adds the counts of another time.
    pub fn add(&mut self, other: &Counts) {
        if self.groups.is_empty() {
            self.groups.clone_from(&other.groups);
        } else {
            let both = self.groups.iter_mut().flatten().zip(other.groups.iter().flatten());
            both.for_each(|(sum, more)| match (sum.as_mut(), more) {
                (Some(sum), Some(more)) => sum.add(*more),
                (None, _) => *sum = *more,
                (Some(_), None) => {}
            });
        }
        for more in &other.kernel {
            match self.kernel.iter_mut().find(|count| count.key == more.key) {
                Some(count) => count.value = count.value.saturating_add(more.value),
                None => self.kernel.push(more.clone()),
            }
        }
    }

    /// Returns the report of these counts.
    pub fn report(&self, about: &About, origin: Origin, subject: String) -> StatReport {
        let mut report = StatReport::new(origin, subject);
        report.cpu.clone_from(&about.cpu);
        report.kernel.clone_from(&self.kernel);
        report.notes.clone_from(&about.notes);
        report.pmu.clone_from(&about.pmu);
        report.no_pmu.clone_from(&about.no_pmu);
        report.user_only = about.user_only;
        if let Some(model) = about.model {
            report.add(&Sample { model, groups: self.groups.clone() });
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(values: &[u64], faults: u64) -> Counts {
        let one = |&value: &u64| Some(Count { value, enabled_ns: 2 * value, running_ns: value });
        let kernel =
            KernelCount { key: "minor_faults", label: "page faults", value: faults, scope: Scope::Program };
        Counts { groups: vec![values.iter().map(one).collect()], kernel: vec![kernel] }
    }

    #[test]
    fn issue_34_6_the_times_of_one_side_add_up() {
        let (first, last) = (counts(&[10, 20], 3), counts(&[15, 70], 9));
        let mut sum = last.since(&first);
        assert_eq!(sum, counts(&[5, 50], 6));
        sum.add(&counts(&[1, 2], 4));
        assert_eq!(sum, counts(&[6, 52], 10));
        // Of two processes.
        let mut both = Counts::default();
        let machine = KernelCount { key: "thp_split_page", label: "splits", value: 5, scope: Scope::Machine };
        let mut one = counts(&[1], 3);
        one.kernel.push(machine);
        (0..2).for_each(|_| both.add_process(&one));
        assert_eq!(both.kernel.iter().map(|count| count.value).collect::<Vec<_>>(), [6, 5]);
        let mut none = Counts::default();
        none.add(&sum);
        assert_eq!(none, sum);
        // A counter that was not there at first.
        let mut part = Counts { groups: vec![vec![None, Some(Count::whole(1))]], kernel: vec![] };
        part.add(&sum);
        assert_eq!(part.groups[0][0], sum.groups[0][0]);
        assert_eq!(part.kernel, sum.kernel);
    }
}
