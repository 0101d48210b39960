// SPDX-License-Identifier: Apache-2.0
//! Lifts processes of other users in a child: what those users arrange may make the child wait, but not the watcher.
//!
//! A user whose process has made a child wait is left alone for a while, twice as long each time. So a user costs a
//! watcher a few waits a day, however many processes there are.

use crate::watcher::apart::{Children, NoAnswer};
use hugelift_core::addr::{Addr, Range};
use hugelift_core::heat::follow::Code;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The longest time for which a child may use no CPU time. A child that waits for a borrowed thread gives up earlier.
const SILENCE: Duration = Duration::from_secs(15);
/// How long a user is left alone after the first wait.
const ALONE: Duration = Duration::from_secs(600);
/// The longest such time.
const ALONE_AT_MOST: Duration = Duration::from_secs(24 * 3600);

/// What came of a lift: what the watcher keeps of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Done {
    /// What was found; or why the process could not be lifted.
    pub result: Result<Attempt, String>,
    /// CPU time of the child.
    pub cpu: Duration,
    /// What was to be said could be said.
    pub is_heard: bool,
}

/// What a lift has found and done.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Attempt {
    /// Something was lifted.
    pub is_lifted: bool,
    /// Some of what was planned stays as it was.
    pub is_partial: bool,
    /// Bytes of anonymous copies that were made, or of zeros that were freed.
    pub copied: u64,
    /// The address at which the zeros that follow begin, if there are more.
    pub next: Option<Addr>,
    /// The CPU time that lifting the rest would take, if there is a rest.
    pub wants: Option<Duration>,
    /// Bytes of the wanted parts that are on huge pages, if they were counted.
    pub huge: Option<u64>,
    /// What could be copied and what is, if only the code in use is to be.
    pub code: Option<Code>,
    /// Copies that were given back.
    pub given: Vec<Range>,
}

/// The children that lift processes of other users.
#[derive(Debug, Default)]
pub(super) struct Apart {
    children: Children,
    /// Users who have made a child wait: until when they are left alone, and for how long the last time.
    alone: BTreeMap<u32, (Instant, Duration)>,
}

impl Apart {
    /// Takes children that have ended out of the list of processes.
    pub(super) fn reap(&mut self) {
        self.children.reap();
    }

    /// Does the lift of a process of `user` in a child.
    pub(super) fn run(&mut self, user: u32, lift: impl FnOnce() -> Done) -> Done {
        let refused = |why: String| Done { result: Err(why), cpu: Duration::ZERO, is_heard: true };
        if let Some((until, _)) = self.alone.get(&user).filter(|(until, _)| *until > Instant::now()) {
            let minutes = until.saturating_duration_since(Instant::now()).as_secs().div_ceil(60);
            return refused(format!(
                "another process of user {user} has kept hugelift waiting; its processes are left alone for {minutes} \
                 more minutes"
            ));
        }
        match self.children.run(SILENCE, || lift().to_bytes()) {
            Ok(bytes) => {
                Done::from_bytes(&bytes).unwrap_or_else(|| refused("its child gave no answer".into()))
            }
            Err(error @ NoAnswer::Silent(_)) => {
                let last = self.alone.get(&user).map(|(_, last)| *last);
                let time = last.map_or(ALONE, |last| (last * 2).min(ALONE_AT_MOST));
                self.alone.insert(user, (Instant::now() + time, time));
                refused(format!(
                    "{error}; the processes of user {user} are left alone for {} minutes",
                    time.as_secs() / 60
                ))
            }
            Err(error) => refused(error.to_string()),
        }
    }
}

impl Done {
    fn to_bytes(&self) -> Vec<u8> {
        let none = Attempt::default();
        let (attempt, why) = match &self.result {
            Ok(attempt) => (attempt, ""),
            Err(why) => (&none, why.as_str()),
        };
        let (is_ok, wants, counts) = (self.result.is_ok(), attempt.wants.is_some(), attempt.huge.is_some());
        let has_code = attempt.code.is_some();
        let flags = [is_ok, attempt.is_lifted, attempt.is_partial, wants, counts, has_code, self.is_heard];
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let wants = attempt.wants.map_or(0, nanos);
        let nothing = Code::default();
        let code = attempt.code.as_ref().unwrap_or(&nothing);
        let next = attempt.next.unwrap_or_default().0;
        let numbers = [nanos(self.cpu), attempt.copied, wants, attempt.huge.unwrap_or(0), code.copied, next];
        let lists = [&code.left, &code.anonymous, &attempt.given];
        let ranges = lists.into_iter().flat_map(|list| {
            let bounds = list.iter().flat_map(|range| [range.start.0, range.end.0]);
            std::iter::once(list.len() as u64).chain(bounds)
        });
        let mut bytes: Vec<u8> = flags.map(u8::from).to_vec();
        bytes.extend(numbers.into_iter().chain(ranges).flat_map(u64::to_le_bytes));
        bytes.extend_from_slice(why.as_bytes());
        bytes
    }

    /// Returns what [`Done::to_bytes`] wrote; `None` if it is cut off.
    fn from_bytes(bytes: &[u8]) -> Option<Done> {
        let (flags, mut rest) = bytes.split_first_chunk::<7>()?;
        let [is_ok, is_lifted, is_partial, wants_more, counts, has_code, is_heard] =
            flags.map(|flag| flag != 0);
        let mut number = || {
            let (number, left) = rest.split_first_chunk::<8>()?;
            rest = left;
            Some(u64::from_le_bytes(*number))
        };
        let cpu = Duration::from_nanos(number()?);
        let (copied, wants, huge) = (number()?, Duration::from_nanos(number()?), number()?);
        let (code_copied, next) = (number()?, number()?);
        let next = (next > 0).then_some(Addr(next));
        let mut list = || {
            let count = number()?;
            (0..count).map(|_| Range::new(Addr(number()?), Addr(number()?))).collect::<Option<Vec<Range>>>()
        };
        let (left, anonymous, given) = (list()?, list()?, list()?);
        let why = rest;
        let (wants, huge) = (wants_more.then_some(wants), counts.then_some(huge));
        let code = has_code.then_some(Code { left, copied: code_copied, anonymous });
        let attempt = Attempt { is_lifted, is_partial, copied, next, wants, huge, code, given };
        let result = if is_ok { Ok(attempt) } else { Err(String::from_utf8(why.to_vec()).ok()?) };
        Some(Done { result, cpu, is_heard })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_child_found_arrives() {
        let attempt = Attempt {
            is_lifted: true,
            is_partial: false,
            copied: 1 << 40,
            next: Some(Addr(1 << 30)),
            wants: Some(Duration::from_millis(7)),
            huge: Some(3 << 21),
            code: None,
            given: Vec::new(),
        };
        let range = |start: u64| Range::sized(Addr(start << 21), 2 << 21).expect("a range");
        let code = Code { left: vec![range(5), range(9)], copied: 1 << 21, anonymous: vec![range(7)] };
        let results = [
            Ok(attempt.clone()),
            Ok(Attempt { code: Some(code), ..attempt.clone() }),
            Ok(Attempt { given: vec![range(7), range(11)], ..Attempt::default() }),
            Ok(Attempt { wants: None, huge: None, is_partial: true, ..attempt }),
            Err("no thread: ü".into()),
        ];
        for result in results {
            for is_heard in [false, true] {
                let done = Done { result: result.clone(), cpu: Duration::from_micros(1234), is_heard };
                let bytes = done.to_bytes();
                assert_eq!(Done::from_bytes(&bytes), Some(done));
                assert_eq!(Done::from_bytes(&bytes[..54]), None);
            }
        }
    }

    #[test]
    fn a_user_who_makes_a_child_wait_is_left_alone() {
        let mut apart =
            Apart { alone: BTreeMap::from([(7, (Instant::now() + ALONE, ALONE))]), ..Apart::default() };
        let done = || Done { result: Ok(Attempt::default()), cpu: Duration::ZERO, is_heard: true };
        let refused = apart.run(7, || unreachable!("it is not lifted")).result.unwrap_err();
        assert!(refused.contains("left alone for 10 more minutes"), "{refused}");
        assert_eq!(apart.run(8, done), done());
    }
}
