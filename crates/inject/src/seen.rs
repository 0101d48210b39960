// SPDX-License-Identifier: Apache-2.0
//! What is seen of a thread that is traced and runs, just before it is stopped. At the stop some
//! architectures do not show the call that it has interrupted ([`arch::SHOWS_CALLS`]).

use crate::arch::{self, Call, Surroundings};
use crate::ptrace::{Stopped, Tid};
use crate::waits;
use hugelift_core::addr::Addr;
use hugelift_linux::proc::memory;
use hugelift_linux::proc::procfs::Process;
use std::time::Instant;

/// What was seen of a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pid: i32,
    at: Instant,
    /// The call in which it slept; `None` if it ran.
    call: Option<Call>,
    /// The signals that it blocked.
    blocked: Option<u64>,
}

impl Seen {
    /// Reads the state of a thread that is traced already: from now on no signal handler begins without a stop.
    pub(crate) fn of(pid: i32, tid: Tid) -> Seen {
        let at = Instant::now();
        if arch::SHOWS_CALLS {
            return Seen { pid, at, call: None, blocked: None };
        }
        let call = waits::call_of(pid, tid);
        let status = || Process::new(pid.cast_unsigned()).status_of_thread(tid).ok();
        let blocked = if call.is_none() { status().map(|status| status.blocked) } else { None };
        Seen { pid, at, call, blocked }
    }

    /// Returns when it was read.
    pub(crate) fn at(&self) -> Instant {
        self.at
    }

    /// Returns the same with what the stopped thread shows.
    pub(crate) fn and_stopped(self, stopped: &Stopped) -> SeenStopped<'_> {
        SeenStopped { before: self, stopped }
    }
}

/// What was seen of a thread before its stop, and the stopped thread.
pub(crate) struct SeenStopped<'a> {
    before: Seen,
    stopped: &'a Stopped,
}

impl Surroundings for SeenStopped<'_> {
    fn instruction(&self, at: Addr) -> Option<[u8; arch::SYSCALL_BYTES as usize]> {
        memory::read_array(self.before.pid, at).ok()
    }

    /// A thread that slept in the same call was not in a handler: a handler has another stack pointer. A thread that ran was
    /// not in a handler if it blocked the same signals as now: a handler blocks its own signal (unless it has SA_NODEFER).
    fn first_argument(&self, call: &Call) -> Option<u64> {
        if let Some(seen) = self.before.call {
            let mut expected = seen;
            expected.args[0] = call.args[0];
            return (expected == *call).then_some(seen.args[0]);
        }
        let mask = self.stopped.signal_mask().ok()?;
        let is_outside = waits::can_be_made_again(call.number) && self.before.blocked == Some(mask);
        if is_outside { waits::last_argument(self.before.pid, self.stopped) } else { None }
    }
}
