// SPDX-License-Identifier: Apache-2.0
//! Programs that get a CPU whatever else runs on the machine. On a busy one they would get no CPU time in some of the short
//! periods of an experiment.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

static TURN: Mutex<()> = Mutex::new(());

thread_local! {
    /// How many this thread has.
    static OWN: Cell<u32> = const { Cell::new(0) };
}

/// The right to favour a program. Only one test has it at a time: favoured programs on all CPUs would leave nothing to hugelift
/// and to the programs of the other tests. A test may have several.
pub struct Favoured {
    _turn: Option<MutexGuard<'static, ()>>,
}

impl Favoured {
    /// Waits for the right.
    pub fn take() -> Favoured {
        let is_first = OWN.replace(OWN.get() + 1) == 0;
        // A test that fails with it leaves nothing behind.
        Favoured { _turn: is_first.then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner)) }
    }

    /// Favours a program. Only root may.
    pub fn favour(&self, pid: u32) {
        // SAFETY: setpriority(2) takes numbers only.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, pid, -15) };
    }
}

impl Drop for Favoured {
    fn drop(&mut self) {
        OWN.set(OWN.get() - 1);
    }
}
