// SPDX-License-Identifier: Apache-2.0
//! The scheduling class of the tracer.

/// The scheduling class of this thread while it holds a thread of the program: on a machine whose CPUs are all
/// busy, the program's thread would else wait for this one.
pub(super) struct Urgent {
    /// It has been changed.
    is_set: bool,
}

impl Urgent {
    /// Asks for it. Without the right (`CAP_SYS_NICE`), or in a class that the user chose, nothing changes.
    pub(super) fn new() -> Urgent {
        // SAFETY: sched_getscheduler(2) takes a number; 0 is the calling thread.
        let class = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
        Urgent { is_set: class == libc::c_long::from(libc::SCHED_OTHER) && set_scheduler(libc::SCHED_RR, 1) }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if self.is_set {
            set_scheduler(libc::SCHED_OTHER, 0);
        }
    }
}

/// Sets the scheduling class of the calling thread; returns whether that was permitted.
fn set_scheduler(class: i32, priority: i32) -> bool {
    // musl's sched_setscheduler(3) does nothing, so this is the system call.
    // SAFETY: sched_setscheduler(2) reads a struct sched_param, one int, that lives through the call.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, class, &raw const priority) == 0 }
}
