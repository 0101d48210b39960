// SPDX-License-Identifier: Apache-2.0
//! How much there is room for: memory for copies, and places for processes. Ordinary users whom no rule names leave half of both
//! to the others.

use super::taken::Taken;
use super::wants::SHARE_OF_USER;
use crate::journal::{Level, log};
use hugelift_core::proc_stat::Identity;
use std::cell::Cell;
use std::collections::BTreeMap;

/// The most processes that are taken at the same time.
const MOST: usize = 4096;

/// The bytes of copies, by whose processes have them.
pub struct Charges {
    /// Bytes that all may take.
    memory: u64,
    /// Of root, of system users, and of those whom a rule names.
    others: u64,
    /// Of each ordinary user whom no rule names.
    of_users: BTreeMap<u32, u64>,
}

impl Charges {
    /// Sums the copies of processes that may have `memory` bytes of them together.
    pub fn of<'a>(all: impl Iterator<Item = &'a Taken>, memory: u64) -> Charges {
        let mut charges = Charges { memory, others: 0, of_users: BTreeMap::new() };
        for taken in all {
            let sum = match taken.of_user {
                Some(user) => charges.of_users.entry(user).or_default(),
                None => &mut charges.others,
            };
            *sum = sum.saturating_add(taken.copies());
        }
        charges
    }

    /// Returns whether one more process may have copies. An ordinary user whom no rule names may have a quarter of the memory, and
    /// all such users half. What they have beyond that, which they have made of their own accord, takes nothing from others.
    pub fn leave_room(&self, of_user: Option<u32>) -> bool {
        let (share, half) = (self.memory / SHARE_OF_USER, self.memory / 2);
        let of_users: u64 = self.of_users.values().map(|bytes| (*bytes).min(share)).sum();
        let is_users_room =
            |user: u32| of_users < half && self.of_users.get(&user).is_none_or(|bytes| *bytes < share);
        of_user.is_none_or(is_users_room) && self.others.saturating_add(of_users.min(half)) < self.memory
    }
}

/// The places for processes, and what the log has said of them.
#[derive(Default, Debug)]
pub struct Places {
    /// There is none.
    is_full_said: Cell<bool>,
    /// There is none for users.
    is_users_full_said: Cell<bool>,
}

impl Places {
    /// Returns whether another process has no place beside those that are taken. Processes of an ordinary user whom no rule names may
    /// have at most an eighth of the places, and those of all such users half.
    pub fn lack_one(&self, all: &BTreeMap<u32, Taken>, process: Identity, of_user: Option<u32>) -> bool {
        if all.contains_key(&process.0) {
            return false;
        }
        let taken = all.len();
        if taken >= MOST {
            let line = format!("{taken} processes are taken, which is the most: others are left alone");
            say_once(&self.is_full_said, &line);
            return true;
        }
        let count = |is_one: &dyn Fn(u32) -> bool| {
            all.values().filter(|taken| taken.of_user.is_some_and(is_one)).count()
        };
        let is_users_full = |user: u32| {
            taken >= MOST / 8 && (count(&|one| one == user) >= MOST / 8 || count(&|_| true) >= MOST / 2)
        };
        let Some(user) = of_user.filter(|user| is_users_full(*user)) else { return false };
        let line = format!(
            "further processes of user {user} are left alone: of {MOST} that can be taken a user may have an eighth, and all users half"
        );
        say_once(&self.is_users_full_said, &line);
        true
    }
}

fn say_once(is_said: &Cell<bool>, line: &str) {
    if !is_said.replace(true) {
        log(Level::Warning, line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::policy::Backing;
    use hugelift_core::snapshot::Part;

    /// A process of an ordinary user, or of root, with so many bytes of copies.
    fn taken(pid: u32, of_user: Option<u32>, bytes: u64) -> Taken {
        Taken { of_user, huge: [((Part::Text, Backing::Thp), bytes)].into(), ..Taken::example((pid, 1)) }
    }

    /// An ordinary user can make copies without the service, and fork what has them.
    #[test]
    fn issue_33_5_copies_of_users_leave_half_of_the_memory_to_others() {
        let charges = |all: Vec<Taken>| Charges::of(all.iter(), 1000);
        let one_user = charges((0..20).map(|n| taken(n, Some(1000), 500)).collect());
        assert_eq!(one_user.of_users, [(1000, 10_000)].into());
        assert_eq!([None, Some(1000), Some(1001)].map(|user| one_user.leave_room(user)), [true, false, true]);
        let little = charges(vec![taken(1, Some(1000), 250), taken(2, Some(1001), 100)]);
        assert_eq!([None, Some(1000), Some(1001)].map(|user| little.leave_room(user)), [true, false, true]);
        let many_users = charges((0..20).map(|n| taken(n, Some(1000 + n), 500)).collect());
        assert_eq!([None, Some(2000)].map(|user| many_users.leave_room(user)), [true, false]);
        let with_roots = charges((0..20).map(|n| taken(n, (n > 0).then_some(1000 + n), 500)).collect());
        assert!(!with_roots.leave_room(None));
        let roots = charges(vec![taken(1, None, 999)]);
        assert!(roots.leave_room(None) && roots.leave_room(Some(1000)));
    }

    #[test]
    fn issue_33_5_processes_of_users_leave_half_of_the_table_to_others() {
        let most = MOST as u32;
        let full_of = |users: u32, each: u32| -> BTreeMap<u32, Taken> {
            (0..users * each).map(|n| (n, taken(n, Some(1000 + n / each), 0))).collect()
        };
        let lacks = |all: &BTreeMap<u32, Taken>, pid, user| Places::default().lack_one(all, (pid, 1), user);
        let new = most + 1;
        let one_user = full_of(1, most / 8);
        assert_eq!(
            [Some(1000), Some(1001), None].map(|user| lacks(&one_user, new, user)),
            [true, false, false]
        );
        assert!(!lacks(&one_user, 0, Some(1000)), "it is there already");
        let many_users = full_of(8, most / 16);
        assert_eq!([Some(2000), None].map(|user| lacks(&many_users, new, user)), [true, false]);
        assert!(lacks(&full_of(16, most / 16), new, None));
    }
}
