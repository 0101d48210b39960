// SPDX-License-Identifier: Apache-2.0
//! Whether a control group's memory limit forbids hugelift to take memory beside the program.

use hugelift_core::policy::Policy;
use hugelift_linux::machine::memory_limit_here;

/// Returns why memory that hugelift takes beside the program could end the program: a control group
/// limits its memory, and the user has not said (`--spare`) that it can do without some.
pub(crate) fn reserved(policy: &Policy) -> Option<String> {
    let limit = if policy.spare > 0 { None } else { memory_limit_here() }?;
    Some(format!("memory limit: {limit}, all of which the program may need; see --spare"))
}
