// SPDX-License-Identifier: Apache-2.0
//! What each step costs on a machine.

/// The time of the transfer of a cache line, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Transfer {
    /// Between cores of one socket.
    pub within: f64,
    /// Between cores of two sockets.
    pub between: f64,
    /// CPUs of a socket.
    pub socket: usize,
}

impl Transfer {
    /// Returns a machine on which all transfers take the same time.
    pub const fn flat(nanoseconds: f64) -> Transfer {
        Transfer { within: nanoseconds, between: nanoseconds, socket: usize::MAX }
    }

    /// Returns the nanoseconds of a transfer between two cores.
    pub fn nanoseconds(&self, from: usize, to: usize) -> f64 {
        if from / self.socket == to / self.socket { self.within } else { self.between }
    }
}

/// The costs of the machine, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Costs {
    /// Transfer of a cache line from the cache of another core.
    pub transfer: Transfer,
    /// An atomic operation on a line in the core's own cache.
    pub atomic: f64,
    /// Taking the lock, holding it and releasing it once, uncontended.
    pub held: f64,
    /// The same for the lock whose waiters spin.
    pub held_spinning: f64,
    /// One round of spinning.
    pub pause: f64,
    /// Waking a sleeper, on the side of the waker.
    pub wake: f64,
    /// The time from the wake-up until the sleeper runs.
    pub awake: f64,
    /// The system call that wakes a sleeper, if there is none.
    pub wake_nobody: f64,
    /// The system call by which a waiter sleeps, if the lock has changed and it does not sleep.
    pub refused: f64,
    /// Entering and exiting with epochs, uncontended.
    pub epochs: f64,
    /// Work of a task outside of entering and exiting, per operation.
    pub work: f64,
    /// The time between two waits of any task.
    pub between_waits: f64,
}
