// SPDX-License-Identifier: Apache-2.0
//! What came of an attempt to replace memory.

use crate::lent::NotLent;
use hugelift_core::addr::Range;
use hugelift_core::target::Fault;

/// What became of an attempt.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Came {
    Replaced,
    /// The kernel refused a call: its name and errno.
    Refused(&'static str, i32),
    /// Nothing was done. A later attempt may succeed.
    NotNow(String),
    /// Nothing was done, and no later attempt helps.
    Never(String),
}

impl Came {
    /// Returns whether the piece whose copy was at `from` was replaced.
    ///
    /// # Errors
    /// It was not. [`Fault::Call`] if the kernel refused the call, which then may have unmapped the piece.
    pub(super) fn done(self, from: Range) -> Result<(), Fault> {
        match self {
            Came::Replaced => Ok(()),
            Came::Refused(call, errno) => Err(Fault::Call { call, range: from, errno }),
            Came::NotNow(why) | Came::Never(why) => Err(Fault::Kept(why)),
        }
    }
}

/// Says why nobody was stopped.
pub(super) fn not_now(why: NotLent) -> Came {
    let words = format!("its threads could not all be stopped for a moment: {why}");
    match why {
        // A filter does not change, dispatch seldom does, and a thread of the kernel or of another tracer stays one.
        NotLent::Filtered(..) | NotLent::Dispatches(_) => Came::Never(words),
        why if why.is_final() => Came::Never(words),
        _ => Came::NotNow(words),
    }
}

/// Returns what an attempt came to for which no thread could be borrowed.
///
/// # Errors
/// The process is gone, or no longer under control.
pub(super) fn came_of(why: NotLent) -> Result<Came, Fault> {
    if why.is_final() { Err(Fault::Lost(why.to_string())) } else { Ok(not_now(why)) }
}

/// Says of a step before the call that replaces memory that nothing was replaced: nobody need check whether it is still
/// mapped.
pub(super) fn kept(fault: Fault) -> Fault {
    match fault {
        Fault::Call { .. } => Fault::Kept(fault.to_string()),
        other => other,
    }
}
