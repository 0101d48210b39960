// SPDX-License-Identifier: Apache-2.0
//! A process that the policy takes.

use crate::machine::instance::Instance;
use crate::machine::line::Huge;
use crate::machine::memory::Memory;
use crate::machine::wants::Wants;
use hugelift_core::policy::Backing;
use hugelift_core::printable::Untrusted;
use hugelift_core::proc_stat::Identity;
use hugelift_core::service::acts::Acts;
use hugelift_core::service::matching::Facts;
use hugelift_core::service::policy;
use hugelift_core::service::unit::system_unit;
use hugelift_core::service::verify::Program;
use hugelift_core::snapshot::Part;

/// Said of a process that no lifter is left for. It has no digits, so that the metrics name it (`refusals`).
const NO_LIFTER: &str = "it waits: too many rules differ in what they 'do', in 'budget' or in 'per_node', or processes of too many users are \
                         lifted; rules with the same values count once ('hugelift service check' shows the rules)";

/// A process that the policy takes.
#[derive(Clone, Debug)]
pub struct Taken {
    /// Its id, and when it was started.
    pub process: Identity,
    /// What distinguishes the program that it executes from an earlier one: where its stack began.
    pub life: Option<u64>,
    /// What may be done with it.
    pub acts: Acts,
    /// The rule that takes it; none for the default.
    pub rule: Option<String>,
    /// The path of its executable.
    pub program: Untrusted,
    /// Its unit of the system's manager.
    pub unit: Option<Untrusted>,
    /// Its executable and its unit, by which the ledger knows it.
    pub key: Program,
    /// It is lifted only where an experiment has shown a gain.
    pub verify: bool,
    /// What is wanted of it while it runs.
    pub wants: Option<Wants>,
    /// The ordinary user who has started it, where the rule takes the processes of any.
    pub of_user: Option<u32>,
    /// It was named to a lifter.
    pub is_given: bool,
    /// Its bytes on huge pages after the last change, by part.
    pub huge: Huge,
    /// Why it was not changed last time.
    pub refusal: Option<Untrusted>,
}

impl Taken {
    /// Returns a process of these facts that a policy takes so, of which nothing is known yet. `life` is where the stack of its
    /// program began, and `build_id` tells its executable from others.
    pub fn new(
        process: Identity,
        life: Option<u64>,
        build_id: &str,
        facts: &Facts,
        by: &policy::Taken,
        wants: Option<Wants>,
    ) -> Taken {
        let unit = system_unit(facts.cgroup).map(String::from);
        Taken {
            process,
            life,
            acts: by.acts,
            rule: by.rule().map(|rule| rule.name.clone()),
            program: facts.program.into(),
            unit: unit.as_deref().map(Untrusted::from),
            key: Program { build_id: build_id.into(), unit },
            verify: by.verify,
            wants,
            of_user: by.of_user,
            is_given: false,
            huge: Huge::new(),
            refusal: None,
        }
    }

    /// Returns the process with the program that it executes.
    pub fn instance(&self) -> Instance {
        Instance { process: self.process, stack: self.life }
    }

    /// Returns whether the same is to be done with the same program in the same process.
    pub fn is_same(&self, other: &Taken) -> bool {
        (self.process, self.life, self.wants) == (other.process, other.life, other.wants)
            && (self.acts, self.verify) == (other.acts, other.verify)
    }

    /// Takes note that there is no lifter for it just now.
    pub fn wait_for_lifter(&mut self) {
        self.refusal = Some(NO_LIFTER.into());
    }

    /// Forgets that there was no lifter for it.
    pub fn forget_wait(&mut self) {
        self.refusal.take_if(|why| why.as_os_str() == NO_LIFTER);
    }

    /// Returns the bytes of all its parts on huge pages.
    pub fn bytes(&self) -> u64 {
        self.huge.values().sum()
    }

    /// Returns the bytes of its copies of code and constants. What is huge in the page cache is no copy.
    pub fn copies(&self) -> u64 {
        let is_copy = |(part, backing): &(Part, Backing)| {
            matches!(part, Part::Text | Part::Rodata) && *backing != Backing::Pagecache
        };
        self.huge.iter().filter(|(key, _)| is_copy(key)).map(|(_, bytes)| bytes).sum()
    }

    /// Takes what smaps shows of it after a change.
    pub fn show(&mut self, objects: Huge, memory: Option<Memory>) {
        let of = |backing: Backing| {
            objects.iter().filter(|((_, b), _)| *b == backing).map(|(_, bytes)| bytes).sum()
        };
        let Memory { anonymous, shared } = memory.unwrap_or_default();
        let rest = [
            ((Part::Anon, Backing::Thp), anonymous.saturating_sub(of(Backing::Thp))),
            ((Part::Shm, Backing::Shared), shared.saturating_sub(of(Backing::Shared))),
        ];
        self.huge = objects;
        self.huge.extend(rest.into_iter().filter(|(_, bytes)| *bytes > 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Taken {
        /// Returns one of which nothing is wanted.
        pub fn example(process: Identity) -> Taken {
            Taken {
                process,
                life: None,
                acts: Acts::NONE,
                rule: None,
                program: "/a".into(),
                unit: None,
                key: Program { build_id: "a".into(), unit: None },
                verify: false,
                wants: None,
                of_user: None,
                is_given: false,
                huge: Huge::new(),
                refusal: None,
            }
        }
    }

    #[test]
    fn one_that_waits_for_a_lifter_says_so() {
        let mut taken = Taken { refusal: Some("no".into()), ..Taken::example((7, 1)) };
        taken.forget_wait();
        assert_eq!(taken.refusal, Some("no".into()));
        taken.wait_for_lifter();
        let why = taken.refusal.clone().unwrap().to_string();
        let is_plain = !why.contains(|c: char| c.is_ascii_digit() || c == '/');
        assert!(why.starts_with("it waits: ") && is_plain, "{why}");
        taken.forget_wait();
        assert_eq!(taken.refusal, None);
    }

    #[test]
    fn issue_33_2_what_is_huge_counts_once_and_the_page_cache_is_no_copy() {
        let mut taken = Taken::example((7, 1));
        let objects = Huge::from([
            ((Part::Text, Backing::Shared), 4),
            ((Part::Rodata, Backing::Thp), 2),
            ((Part::Text, Backing::Pagecache), 16),
            ((Part::Heap, Backing::Thp), 8),
        ]);
        taken.show(objects, Some(Memory { anonymous: 100, shared: 4 }));
        // 100 of anonymous memory hold the copy of the constants and the heap; the shared memory is the copy of the code.
        assert_eq!(taken.huge.get(&(Part::Anon, Backing::Thp)), Some(&90));
        assert_eq!(taken.huge.get(&(Part::Shm, Backing::Shared)), None);
        assert_eq!((taken.copies(), taken.bytes()), (6, 120));
    }
}
