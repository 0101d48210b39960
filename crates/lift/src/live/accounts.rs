// SPDX-License-Identifier: Apache-2.0
//! The CPU time of all processes that have run a file, and of the lifts of these.
//!
//! An account outlives its processes: many short ones that run the same file are worth a lift together. A watcher
//! may run for months, so of the accounts without a process only those
//! that were used last are kept.

use super::process::Image;
use hugelift_core::worth::Account;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// How many accounts without a process are kept.
pub(super) const KEPT: usize = 64;

/// The accounts by the file that the processes run.
#[derive(Default, Debug)]
pub(super) struct Accounts {
    all: HashMap<Image, Entry>,
    /// Counts the uses of all accounts.
    uses: u64,
}

#[derive(Default, Debug)]
struct Entry {
    account: Account,
    /// The number of its last use.
    last: u64,
}

impl Accounts {
    /// Returns the account of a file.
    pub(super) fn get(&self, image: Image) -> Account {
        self.all.get(&image).map(|entry| entry.account).unwrap_or_default()
    }

    /// Adds CPU time that processes have used.
    pub(super) fn add_used(&mut self, image: Image, time: Duration) {
        let used = &mut self.entry(image).used;
        *used = used.saturating_add(time);
    }

    /// Adds CPU time that lifts took.
    pub(super) fn add_spent(&mut self, image: Image, time: Duration) {
        let spent = &mut self.entry(image).spent;
        *spent = spent.saturating_add(time);
    }

    fn entry(&mut self, image: Image) -> &mut Account {
        self.uses += 1;
        let entry = self.all.entry(image).or_default();
        entry.last = self.uses;
        &mut entry.account
    }

    /// Drops the accounts that no process of `alive` has, but for the [`KEPT`] that were used last.
    pub(super) fn prune(&mut self, alive: &BTreeSet<Image>) {
        if self.all.len() <= alive.len() + KEPT {
            return;
        }
        let idle = self.all.iter().filter(|(image, _)| !alive.contains(image));
        let mut uses: Vec<u64> = idle.map(|(_, entry)| entry.last).collect();
        uses.sort_unstable_by(|a, b| b.cmp(a));
        if let Some(&oldest) = uses.get(KEPT - 1) {
            self.all.retain(|image, entry| alive.contains(image) || entry.last >= oldest);
        }
    }

    /// Returns the number of accounts.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_accounts_used_last_outlive_their_processes() {
        let mut accounts = Accounts::default();
        let second = Duration::from_secs(1);
        let alive = BTreeSet::from([(0, 1), (0, 2)]);
        for inode in 0..1000 {
            accounts.add_used((0, inode), second);
            accounts.prune(&alive);
        }
        assert_eq!(accounts.len(), KEPT + 2);
        let used = |inode| accounts.get((0, inode)).used;
        assert_eq!([1, 2, 999, 936].map(used), [second; 4]);
        assert_eq!([0, 935].map(used), [Duration::ZERO; 2]);
        accounts.add_spent((0, 936), second);
        accounts.add_used((0, 1000), second);
        accounts.prune(&alive);
        assert_eq!(accounts.get((0, 936)).spent, second, "it was used just now");
        assert_eq!(accounts.get((0, 937)).used, Duration::ZERO);
    }
}
