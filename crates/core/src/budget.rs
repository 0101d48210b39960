// SPDX-License-Identifier: Apache-2.0
//! How much memory a lift may take.
//!
//! ```text
//!   limit   |== used ==|----------------- left ------------------|
//!                       what the program needs | may be all of it
//!   spare                                               |== S ==|   --spare S: copies may take it
//! ```
//!
//! A program starts with pages of files, which the kernel drops when a limit is reached. A copy of
//! them is memory that the kernel cannot drop. So a copy of N bytes lowers the limit by N bytes
//! for the rest of the program's life. How much a program will allocate cannot be known at its start:
//! it may be all that the limit leaves, and then the kernel kills it because of any copy, however
//! small. So no share of the limit is safe. The rule is:
//!
//! - **Under a limit of a control group a lift takes none of the memory that the limit leaves**,
//!   unless the user says by `--spare` how much of it the program can do without. What costs
//!   nothing stays allowed: the page cache, an entry that the store has, and pages of the pool for
//!   read-only parts, because a pool's pages are not charged to a memory limit.
//! - Memory that is advised in place (bss, heap, stack) counts with all its bytes: a program that
//!   touches one byte of each huge page gets all of them.
//! - Data on pages of the pool counts too: a child of fork(2) gets a copy of it that is charged.
//! - A lift takes at most half of what is left, whatever `--spare` says.
//! - **Watched processes** (those of a run, or those that a user has chosen) count together: what their
//!   earlier copies took is added to what is left, and taken off what copies may take ([`less_copied`]). Else
//!   each of ten children would take half of what the one before has left.
//! - **The machine's own memory** is not reserved for one program. Copies may take half of what is
//!   available, so that at least as much stays for the program.

use crate::skip::Reason;
use crate::snapshot::{Machine, MemoryLimit};

/// The memory that a step of a lift takes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Cost {
    /// Bytes of the machine's memory.
    pub machine: u64,
    /// Bytes that are charged to the control group, now or when the program touches them.
    pub charged: u64,
}

impl Cost {
    /// Returns the cost of `bytes` of ordinary memory.
    pub fn copy(bytes: u64) -> Cost {
        Cost { machine: bytes, charged: bytes }
    }
}

/// The memory that a lift may still take.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Budget {
    machine: u64,
    limit: Option<MemoryLimit>,
    /// Bytes that may still be charged to the control group.
    group: u64,
}

impl Budget {
    /// Returns the budget on `machine`, where the program can do without `spare` bytes of its limit.
    pub fn new(machine: &Machine, spare: u64) -> Budget {
        let limit = machine.memory_limit.clone();
        let group = limit.as_ref().map_or(u64::MAX, |limit| spare.min(limit.left / 2));
        Budget { machine: machine.memory_left, limit, group }
    }

    /// Returns the bytes of the machine's memory that are left.
    pub fn machine(&self) -> u64 {
        self.machine
    }

    /// Returns the bytes that may still be charged to the control group; `u64::MAX` without a limit.
    pub fn group(&self) -> u64 {
        self.group
    }

    /// Returns whether pages of the pools are charged to the control group's limit.
    pub fn counts_pools(&self) -> bool {
        self.limit.as_ref().is_some_and(|limit| limit.counts_pools)
    }

    /// Returns what `cost` exceeds, if it exceeds the budget.
    pub fn lack(&self, cost: Cost) -> Option<Reason> {
        if let Some(limit) = self.limit.as_ref().filter(|_| cost.charged > self.group) {
            let (limit, spare) = (limit.clone(), self.group);
            return Some(Reason::GroupLimit { limit, spare, need: cost.charged });
        }
        let (left, need) = (self.machine, cost.machine);
        (need > left).then_some(Reason::MemoryLimit { left, need })
    }

    /// Takes `cost`.
    ///
    /// # Errors
    /// Returns what `cost` exceeds. Nothing is taken then.
    pub fn take(&mut self, cost: Cost) -> Result<(), Reason> {
        if let Some(reason) = self.lack(cost) {
            return Err(reason);
        }
        self.machine -= cost.machine;
        if self.limit.is_some() {
            self.group -= cost.charged;
        }
        Ok(())
    }
}

/// Counts `copied` bytes of anonymous copies that other watched processes have already: changes what `machine`
/// has left, and returns what is left of `spare`. Half of what was left before the first copy is then the limit of
/// all copies together:
///
/// ```text
///   before   |---------------- left ----------------|     all copies: at most left / 2
///   now      |== copied ==|-------- left' ----------|     this one: (left' + copied) / 2 - copied
/// ```
pub fn less_copied(machine: &mut Machine, spare: u64, copied: u64) -> u64 {
    // This is half of what is available already.
    machine.memory_left = machine.memory_left.saturating_sub(copied.div_ceil(2));
    if let Some(limit) = &mut machine.memory_limit {
        limit.left = limit.left.saturating_sub(copied);
    }
    spare.saturating_sub(copied)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Addr, Range};
    use crate::plan::tests::program;

    const MB: u64 = 1 << 20;

    fn machine(limit: Option<u64>) -> Machine {
        let range = Range { start: Addr(4 * MB), end: Addr(8 * MB) };
        let limit = limit.map(|left| MemoryLimit {
            source: "/sys/fs/cgroup/u/memory.max".into(),
            bytes: 64 * MB,
            left,
            counts_pools: false,
        });
        Machine { memory_left: 32 * MB, memory_limit: limit, ..program(range).machine }
    }

    #[test]
    fn without_a_limit_only_the_machines_memory_counts() {
        let mut budget = Budget::new(&machine(None), 0);
        assert_eq!(budget.take(Cost::copy(30 * MB)), Ok(()));
        let lack = Reason::MemoryLimit { left: 2 * MB, need: 3 * MB };
        assert_eq!(budget.take(Cost::copy(3 * MB)), Err(lack));
        assert_eq!(budget.take(Cost { machine: 0, charged: u64::MAX }), Ok(()));
    }

    /// However many processes copy one after the other, they take what one alone may take, and no more.
    #[test]
    fn watched_processes_take_together_what_one_process_may_take() {
        const AVAILABLE: u64 = 640 * MB;
        for (limit, spare) in [(None, 0), (Some(400 * MB), u64::MAX), (Some(400 * MB), 96 * MB)] {
            let at = |copied: u64| Machine {
                memory_left: (AVAILABLE - copied) / 2,
                ..machine(limit.map(|left| left - copied))
            };
            let alone = Budget::new(&at(0), spare);
            let alone = alone.machine().min(alone.group());
            let (mut copied, mut copies) = (0, 0);
            loop {
                let mut machine = at(copied);
                let spare = less_copied(&mut machine, spare, copied);
                if Budget::new(&machine, spare).take(Cost::copy(8 * MB)).is_err() {
                    break;
                }
                (copied, copies) = (copied + 8 * MB, copies + 1);
                assert!(copied <= alone, "{copies} copies: {copied} of {alone}");
            }
            assert!(copied + 8 * MB > alone, "{copies} copies: {copied} of {alone}");
        }
    }

    #[test]
    fn under_a_limit_only_spare_memory_is_taken() {
        for left in [0, 1, 6 * MB, 60 * MB, u64::MAX / 2] {
            let mut budget = Budget::new(&machine(Some(left)), 0);
            assert!(matches!(budget.take(Cost::copy(1)), Err(Reason::GroupLimit { spare: 0, need: 1, .. })));
            assert_eq!(budget.take(Cost { machine: MB, charged: 0 }), Ok(()), "{left}");
        }
        let mut budget = Budget::new(&machine(Some(20 * MB)), 8 * MB);
        assert_eq!(budget.take(Cost::copy(6 * MB)), Ok(()));
        assert!(budget.take(Cost::copy(3 * MB)).is_err());
        assert_eq!((budget.group(), budget.machine()), (2 * MB, 26 * MB));
        // Half of what is left stays, whatever the user says.
        assert_eq!(Budget::new(&machine(Some(20 * MB)), u64::MAX).group(), 10 * MB);
    }
}
