// SPDX-License-Identifier: Apache-2.0
//! One lift or restore at a time. Nobody waits.

use std::sync::atomic::{AtomicU32, Ordering};

/// The process in which a thread changes it; 0 for none.
static HOLDER: AtomicU32 = AtomicU32::new(0);

/// The right to change the process, until it is dropped.
pub(crate) struct Turn(());

impl Turn {
    /// Takes the turn; `None` if another thread has it. A thread of the parent that had it at fork(2) does not
    /// exist in the child.
    pub(crate) fn take() -> Option<Turn> {
        let own = std::process::id();
        let holder = HOLDER.load(Ordering::Relaxed);
        let is_free = holder != own;
        let taken =
            is_free && HOLDER.compare_exchange(holder, own, Ordering::Acquire, Ordering::Relaxed).is_ok();
        taken.then_some(Turn(()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        HOLDER.store(0, Ordering::Release);
    }
}
