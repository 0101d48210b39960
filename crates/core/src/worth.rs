// SPDX-License-Identifier: Apache-2.0
//! When a copy of a running program's text and rodata is worth its cost.
//!
//! ```text
//!   CPU time used   0 ---------------------------|------------------------->
//!                       runs on its own pages    | runs on the copy
//!                                                RATIO x cost of the copy
//! ```
//!
//! Nobody knows how long a program will run, or what it gains. So this is the ski-rental problem (Karlin et
//! al., "Competitive snoopy caching", 1988), and its rule is: wait until the program has used [`RATIO`] times
//! the CPU time that the copy costs. Whatever the program does then, two bounds hold:
//!
//! - A program that ends right after the copy has lost 1/[`RATIO`] of its CPU time: 2 %, or up to 6 % where a
//!   host has to find the memory first, which costs more than is assumed.
//! - A program that gains a share `g` of its CPU time has repaid the copy after `cost / g`. Because `RATIO`
//!   is 50, a program with `g` of at least 2 % loses at most as much by waiting as it would have lost by an
//!   early copy that did not pay. 2 % is the least gain that this rule is made for; published gains are 1
//!   to 11 %.

use std::time::Duration;

/// A copy is made when the program has used this many times its cost.
pub const RATIO: u32 = 50;

/// CPU time for 1 MB of a copy: new memory is zeroed, filled, compared with the file and mapped. Of 20 lifts
/// of node (76 MB) in a guest the middle half took between 0.5 and 0.8 ms a MB; a first use of the host's
/// memory takes up to 2.5.
pub const COPY_NS_PER_MB: u64 = 800_000;

/// CPU time for 1 MB that is huge already, in the store or in the page cache: it is compared and mapped.
pub const MAP_NS_PER_MB: u64 = 200_000;

/// CPU time to check a process: to read its mappings and files, and to plan.
pub const CHECK: Duration = Duration::from_millis(3);

/// Returns the CPU time that a lift takes which copies `copied` bytes and maps `mapped` others.
pub fn cost(copied: u64, mapped: u64) -> Duration {
    let nanos = |bytes: u64, each: u64| (u128::from(bytes) * u128::from(each)) >> 20;
    let sum = nanos(copied, COPY_NS_PER_MB) + nanos(mapped, MAP_NS_PER_MB);
    CHECK.saturating_add(Duration::from_nanos(u64::try_from(sum).unwrap_or(u64::MAX)))
}

/// The CPU time of a program and of its lifts.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Account {
    /// What the program has used: all processes that run the same file.
    pub used: Duration,
    /// What its lifts took.
    pub spent: Duration,
}

impl Account {
    /// Returns whether a lift that takes `cost` is worth it now.
    pub fn affords(self, cost: Duration) -> bool {
        self.lacks(cost).is_zero()
    }

    /// Returns the CPU time that the program must still use before a lift that takes `cost` is worth it.
    pub fn lacks(self, cost: Duration) -> Duration {
        self.spent.saturating_add(cost).saturating_mul(RATIO).saturating_sub(self.used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_these_programs_wait_for() {
        const MB: u64 = 1 << 20;
        let lacks = |copied, mapped| Account::default().lacks(cost(copied * MB, mapped * MB));
        // node and clang, copied; node from the store; a program without a huge page.
        assert_eq!(lacks(76, 0), Duration::from_millis(3190));
        assert_eq!(lacks(224, 0), Duration::from_millis(9110));
        assert_eq!(lacks(0, 76), Duration::from_millis(910));
        assert_eq!(lacks(0, 0), Duration::from_millis(150));
    }

    fn time() -> impl Strategy<Value = Duration> {
        prop_oneof![0..10_000_000_u64, any::<u64>()].prop_map(Duration::from_micros)
    }

    proptest! {
        /// Whatever the program uses and whatever lifts it is offered, they take at most their share.
        #[test]
        fn lifts_take_at_most_their_share(offers in prop::collection::vec((time(), time()), 0..50)) {
            let mut account = Account::default();
            for (used, cost) in offers {
                account.used = account.used.saturating_add(used);
                if account.affords(cost) {
                    account.spent = account.spent.saturating_add(cost);
                }
                prop_assert!(account.spent.saturating_mul(RATIO) <= account.used || account.spent.is_zero()
                    || account.used == Duration::MAX);
            }
        }

        /// A lift is worth it once the program has used what it lacked, and not before.
        #[test]
        fn what_it_lacks_is_exact(used in 0..1_u64 << 40, spent in 0..1_u64 << 30, cost in 0..1_u64 << 30) {
            let [used, spent, cost] = [used, spent, cost].map(Duration::from_nanos);
            let account = Account { used, spent };
            let lacks = account.lacks(cost);
            let later = Account { used: used + lacks, ..account };
            prop_assert!(later.affords(cost));
            if let Some(less) = (used + lacks).checked_sub(Duration::from_nanos(1)).filter(|_| !lacks.is_zero()) {
                let before = Account { used: less, ..account };
                prop_assert!(!before.affords(cost));
            }
        }
    }
}
