// SPDX-License-Identifier: Apache-2.0
//! Three implementations of one contract: tasks *enter* and *exit*, and a thread that *waits* goes on when
//! all tasks that had entered before have exited.
//!
//! A kernel that unmaps a page has this problem. A task clears page table entries, and only later flushes the
//! TLBs of all CPUs, for many entries at once. Until then the page must not be reused. FreeBSD calls this
//! delayed invalidation: the task *enters*, drops references, flushes and *exits*; a thread that reuses the
//! page *waits*. Memory reclamation in lock-free data structures is the same problem: readers enter and
//! exit, and a thread that has unlinked a node waits before it frees the node.
//!
//! | | enter and exit | wait | stops scaling because |
//! |---|---|---|---|
//! | [`Locked`] | a mutex, twice | sleeps, is woken | all tasks take one lock |
//! | [`Epochs`] | one exchange and one store in the task's own cache line | polls all tasks | a waiter reads a line of each task |
//! | [`Donated`] | three atomic operations on two neighbours of a list | sleeps, is woken | tasks that enter and exit meet at the ends of the list |
//!
//! All of them are used through [`Domain`]:
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
//! domain.wait_for(stamp); // returns, since the task has exited
//! domain.wait(); // waits for all tasks that are inside now
//! ```
//!
//! Nothing here allocates after `new`, and nothing is unsafe: freeing memory after a wait is up to the
//! caller.
#![forbid(unsafe_code)]

mod contract;
mod donated;
mod epochs;
mod locked;
mod sync;
#[cfg(test)]
mod tests;

pub use contract::{Contract, Domain, Inside, MAX_TASKS, Stamp, Task};
pub use donated::Donated;
pub use epochs::Epochs;
pub use locked::Locked;
