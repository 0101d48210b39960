// SPDX-License-Identifier: Apache-2.0
//! The findings of a diagnosis. Each file has one group, which depends on the facts alone and not on
//! other groups.

mod finding;
mod hugetlb;
mod limits;
pub(crate) mod memory;
pub(crate) mod offers;
mod process;
mod shared;
mod shell;
mod thp;
mod trace;

pub use finding::{Finding, Severity};
pub(crate) use shell::quoted;

use crate::facts::Facts;

/// Returns all findings, worst first.
pub fn diagnose(facts: &Facts) -> Vec<Finding> {
    let mut all = Vec::new();
    thp::findings(facts, &mut all);
    shared::findings(facts, &mut all);
    hugetlb::findings(facts, &mut all);
    memory::findings(facts, &mut all);
    limits::findings(facts, &mut all);
    trace::findings(facts, &mut all);
    if let Some(process) = &facts.process {
        process::findings(facts, process, &mut all);
        offers::findings(process, &mut all);
        // A process that has its huge pages has no problem.
        if process.is_huge() {
            let problems = all.iter_mut().filter(|f| f.severity == Severity::Problem);
            problems.for_each(|f| f.severity = Severity::Note);
        }
    }
    // A stable sort: within a severity the groups stay together.
    all.sort_by_key(|f| std::cmp::Reverse(f.severity));
    all
}

#[cfg(test)]
mod tests;
