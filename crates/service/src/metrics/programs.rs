// SPDX-License-Identifier: Apache-2.0
//! The figures of programs, limited in number.
//!
//! A machine may run thousands of programs, and whoever starts one chooses its name. So those with the most bytes on huge
//! pages have samples of their own, and the others are one sum.

use super::figures::ProgramFigures;
use super::labels::{self, Labels, OTHER};
use hugelift_core::policy::Backing;
use hugelift_core::snapshot::Part;
use std::collections::BTreeMap;

/// How many programs have samples of their own.
pub const MAX_PROGRAMS: usize = 64;

/// The values of the labels of a program. No two entries have the same.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Name {
    program: String,
    unit: Option<String>,
}

impl Name {
    fn of(figures: &ProgramFigures) -> Name {
        // For Prometheus an empty label is the same as none.
        let unit = figures.unit.as_ref().map(|unit| labels::value(unit.as_os_str()));
        Name {
            program: labels::value(figures.program.as_os_str()),
            unit: unit.filter(|unit| !unit.is_empty()),
        }
    }

    fn other() -> Name {
        Name { program: OTHER.into(), unit: None }
    }

    /// Returns the labels.
    pub fn labels(&self) -> Labels {
        let unit = self.unit.iter().map(|unit| ("unit", unit.clone()));
        [("program", self.program.clone())].into_iter().chain(unit).collect()
    }
}

/// The sums of all entries of one name.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Sum {
    /// Processes.
    pub processes: u64,
    /// Bytes on huge pages.
    pub huge_bytes: BTreeMap<(Part, Backing), u64>,
}

impl Sum {
    fn add(&mut self, more: Sum) {
        self.processes = self.processes.saturating_add(more.processes);
        for (at, bytes) in more.huge_bytes {
            let sum = self.huge_bytes.entry(at).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }

    fn all_huge_bytes(&self) -> u64 {
        self.huge_bytes.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}

impl From<&ProgramFigures> for Sum {
    fn from(figures: &ProgramFigures) -> Sum {
        Sum { processes: figures.processes, huge_bytes: figures.huge_bytes.clone() }
    }
}

/// Returns the sums by name: of [`MAX_PROGRAMS`] programs, and of all others together.
pub fn limited(programs: &[ProgramFigures]) -> BTreeMap<Name, Sum> {
    let mut sums: BTreeMap<Name, Sum> = BTreeMap::new();
    for figures in programs {
        sums.entry(Name::of(figures)).or_default().add(figures.into());
    }
    let mut largest: Vec<(Name, Sum)> = sums.into_iter().collect();
    largest.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.all_huge_bytes()));
    let rest = largest.split_off(MAX_PROGRAMS.min(largest.len()));
    let mut kept: BTreeMap<Name, Sum> = largest.into_iter().collect();
    for (_, sum) in rest {
        kept.entry(Name::other()).or_default().add(sum);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(name: &str, unit: Option<&str>, bytes: u64) -> ProgramFigures {
        ProgramFigures {
            program: name.into(),
            unit: unit.map(Into::into),
            processes: 1,
            huge_bytes: [((Part::Text, Backing::Thp), bytes)].into(),
        }
    }

    #[test]
    fn issue_33_programs_of_one_name_are_summed() {
        let sums =
            limited(&[program("/a", None, 2), program("/a", Some(""), 5), program("/a", Some("u"), 1)]);
        let sums: Vec<(Name, Sum)> = sums.into_iter().collect();
        assert_eq!(sums.len(), 2);
        assert_eq!((sums[0].1.processes, sums[0].1.all_huge_bytes()), (2, 7));
        assert_eq!(sums[1].0.labels(), [("program", "/a".into()), ("unit", "u".into())]);
    }

    #[test]
    fn issue_33_the_programs_with_most_huge_bytes_are_kept() {
        let programs: Vec<_> = (0..100).map(|i| program(&format!("/{i}"), None, i)).collect();
        let sums = limited(&programs);
        assert_eq!(sums.len(), MAX_PROGRAMS + 1);
        assert_eq!(sums[&Name::other()].all_huge_bytes(), (0..36).sum::<u64>());
        assert!(sums.contains_key(&Name::of(&programs[36])) && !sums.contains_key(&Name::of(&programs[35])));
    }

    #[test]
    fn issue_33_a_program_named_other_is_in_the_sum() {
        let mut programs: Vec<_> = (0..70).map(|i| program(&format!("/{i}"), None, 1)).collect();
        programs.push(program(OTHER, None, 1000));
        let sums = limited(&programs);
        assert_eq!(sums[&Name::other()].all_huge_bytes(), 1007);
    }
}
