// SPDX-License-Identifier: Apache-2.0
//! One lift or restore at a time. Nobody waits.

use hugelift_inject::forks::{self, Words};
use std::sync::atomic::Ordering;

/// The right to change the process, until it is dropped. A thread of the parent that had it at fork(2) does not exist in
/// the child, where nobody has it.
pub(crate) struct Turn(&'static Words);

impl Turn {
    /// Takes the turn; `None` if another thread has it.
    pub(crate) fn take() -> Option<Turn> {
        let words = forks::prepare();
        let taken = words.turn.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then_some(Turn(words))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.turn.store(0, Ordering::Release);
    }
}
