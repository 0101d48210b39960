// SPDX-License-Identifier: Apache-2.0
//! Threads that did not stop in time, and may stop at any moment since.

use crate::go_on::let_go;
use crate::ptrace::{self, Tid};
use crate::timeout::TimedWait;

/// Lets a thread go on that has not stopped in time, if it has stopped since. `wait` is the last wait with a timeout in
/// which it was seen. Returns whether it is still traced.
pub(super) fn release(pid: i32, tid: Tid, wait: Option<TimedWait>) -> bool {
    match ptrace::poll(tid) {
        None => true,
        Some(came) => {
            // A thread that has ended needs nothing.
            let _ = came.and_then(|(stopped, stop)| let_go(pid, (stopped, stop), wait));
            false
        }
    }
}
