// SPDX-License-Identifier: Apache-2.0
//! Whether a run lifts text and read-only data of the program alone.

use crate::args::{AfterForkChoice, ChildrenChoice, MallocChoice};
use crate::start::RunArgs;
use hugelift_core::policy::{PageChoice, Policy, SpanChoice};
use hugelift_core::snapshot::Part;

impl RunArgs {
    /// The policy, if nothing but whole huge pages of one size in the text and the read-only data
    /// of the program itself can be lifted with it. Then files tell beforehand whether there are
    /// any.
    pub fn lifts_files_alone(&self) -> Option<Policy> {
        let nothing_else = self.children == ChildrenChoice::Plain
            && self.malloc == MallocChoice::Auto
            && self.after_fork == AfterForkChoice::Auto;
        let policy = self.policy.policy().ok()?;
        let files = policy.parts.iter().all(|part| matches!(part, Part::Text | Part::Rodata));
        let whole = policy.span == SpanChoice::Inner && policy.page != PageChoice::Mixed;
        (nothing_else && files && whole).then_some(policy)
    }
}
