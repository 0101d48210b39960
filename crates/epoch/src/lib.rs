// SPDX-License-Identifier: Apache-2.0
//! Three implementations of one contract: tasks *enter*, *exit*, and whoever *waits* goes on when
//! nobody who had entered before is still inside.
//!
//! A kernel that unmaps a page has this problem. A task clears page table entries and only later, for
//! many of them at once, flushes the TLBs of all CPUs; until it has, the page must not be given to
//! anybody else. FreeBSD calls it delayed invalidation: the task *enters*, drops references, flushes,
//! *exits*; whoever takes the page *waits*. Memory reclamation in lock-free data structures is the same
//! problem: readers enter and exit, and who has unlinked a node waits before freeing it.
//!
//! | | enter and exit | wait | stops scaling because |
//! |---|---|---|---|
//! | [`Locked`] | a mutex, twice | sleeps, is woken | every task takes the one lock |
//! | [`Epochs`] | one exchange and one store in the task's own cache line | polls all tasks | waiters read a line of each task |
//! | [`Donated`] | three atomic operations on two neighbours of a list | sleeps, is woken | tasks that come and go meet at the list's ends |
//!
//! [`Domain`] is how to use any of them:
//!
//! ```
//! use hugelift_epoch::{Domain, Epochs};
//!
//! let domain = Domain::<Epochs>::new(8);
//! let mut task = domain.join().expect("one of eight");
//! let inside = task.enter();
//! // ... drop references to a page, and mark the page with:
//! let stamp = inside.stamp();
//! drop(inside);
//! domain.wait_for(stamp); // returns: the task has left
//! domain.wait(); // whoever is inside now
//! ```
//!
//! Nothing here allocates after `new`, and nothing is unsafe: what is freed after a wait is the
//! caller's business.
#![forbid(unsafe_code)]

mod contract;
mod donated;
mod epochs;
mod locked;
mod sync;
#[cfg(test)]
mod tests;

pub use contract::{Contract, Domain, Inside, MOST_TASKS, Stamp, Task};
pub use donated::Donated;
pub use epochs::Epochs;
pub use locked::Locked;
