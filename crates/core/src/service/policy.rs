// SPDX-License-Identifier: Apache-2.0
//! The policy of the service, and the choice of the rule that takes a process.
//!
//! The rules are tried in the order in which they are given: those of the files in [`DROP_INS`] first, by the
//! names of the files, then those of [`CONFIG`]. The first rule whose conditions hold takes the process. If no
//! rule takes a process of root or of a system user, the default applies: its files are kept huge in the page
//! cache ([`DEFAULT`]). If no rule takes a process of another user, that process is left alone.

use crate::keep::Config;
use crate::service::acts::{Act, Acts};
use crate::service::files::Files;
use crate::service::limits::{Allowed, Limits};
use crate::service::matching::{Condition, Facts};
use crate::service::metrics::Metrics;
use crate::service::rule::Rule;
use crate::service::source::Source;
use crate::service::verify::Settings;
use std::time::Duration;

/// The machine's configuration file.
pub const CONFIG: &str = "/etc/hugelift/service.toml";
/// The folder of further configuration files, `*.toml`. Their rules come before those of [`CONFIG`].
pub const DROP_INS: &str = "/etc/hugelift/service.d";

/// What is done with a process of root or of a system user that no rule takes.
pub const DEFAULT: Act = Act::Pagecache;

/// The policy of the service.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    limits: Limits,
    /// Where it says what it has done.
    pub metrics: Metrics,
    /// How it verifies what its rules want to be verified.
    pub verify: Settings,
    /// What it keeps on huge pages whether or not it runs.
    pub keep: Option<Config>,
    rules: Vec<Rule>,
}

/// Who takes a process.
#[derive(Clone, Copy, Debug)]
pub enum Taker<'p> {
    /// A rule.
    Rule(&'p Rule),
    /// The default, as no rule does.
    Default,
    /// Nobody: no rule takes it, and it is a process of an ordinary user.
    Nobody,
}

/// What becomes of a process, and why.
#[derive(Clone, Debug)]
pub struct Taken<'p> {
    /// Who takes it.
    pub by: Taker<'p>,
    /// What may be done with it.
    pub acts: Acts,
    /// Bytes of copies that it may have; `None` leaves it to [`Allowed::memory`].
    pub budget: Option<u64>,
    /// It is lifted only where an experiment has shown a gain.
    pub verify: bool,
    /// On a machine with several NUMA nodes it has the copies of the nearest one.
    pub per_node: bool,
    /// The ordinary user who has started it, where the rule takes the processes of any user. All processes of one user together
    /// have a part of [`Allowed::memory`].
    pub of_user: Option<u32>,
    /// The rules that were tried before, in order.
    pub passed: Vec<Passed<'p>>,
    /// The time after which another rule takes it, if nothing but its age changes.
    pub later: Option<Duration>,
}

/// A rule that does not take a process.
#[derive(Clone, Copy, Debug)]
pub struct Passed<'p> {
    /// The rule.
    pub rule: &'p Rule,
    /// The first of its conditions that does not hold.
    pub broken: Condition,
}

impl Policy {
    /// Reads a policy from its files, in the order in which their rules are to be tried.
    ///
    /// # Errors
    /// Returns one line with the file, the line and the key that are wrong, and why.
    pub fn parse(sources: &[Source]) -> Result<Policy, String> {
        let files = Files::read(sources)?;
        Ok(Policy {
            limits: files.check_only("limits", |w| w.limits.as_ref(), Limits::check)?.unwrap_or_default(),
            metrics: files.check_only("metrics", |w| w.metrics.as_ref(), Metrics::check)?.unwrap_or_default(),
            verify: files.check_only("verify", |w| w.verify.as_ref(), Settings::check)?.unwrap_or_default(),
            keep: files.check_only("keep", |w| w.keep.as_ref(), |keep| Config::check(keep.clone()))?,
            rules: files.check_rules()?,
        })
    }

    /// Returns the rules in the order in which they are tried.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns the limits on a machine with so many bytes of memory.
    pub fn limits(&self, memory_of_the_machine: u64) -> Allowed {
        self.limits.on(memory_of_the_machine)
    }

    /// Returns what becomes of a process.
    pub fn rule_for(&self, facts: &Facts) -> Taken<'_> {
        let mut passed = Vec::new();
        for rule in &self.rules {
            match rule.conditions.first_broken(facts) {
                Some(broken) => passed.push(Passed { rule, broken }),
                None => return Taken::new(Taker::Rule(rule), passed, facts),
            }
        }
        let by = if facts.is_of_system() { Taker::Default } else { Taker::Nobody };
        Taken::new(by, passed, facts)
    }
}

impl<'p> Taken<'p> {
    fn new(by: Taker<'p>, passed: Vec<Passed<'p>>, facts: &Facts) -> Taken<'p> {
        let (acts, budget, verify, per_node) = match by {
            Taker::Rule(rule) => (rule.acts, rule.budget, rule.verify, rule.per_node),
            Taker::Default => (DEFAULT.into(), None, false, false),
            Taker::Nobody => (Acts::NONE, None, false, false),
        };
        let too_young = passed.iter().filter(|passed| passed.broken == Condition::OlderThan);
        let later = too_young.filter_map(|passed| passed.rule.conditions.wait(facts.age)).min();
        let of_user = match by {
            Taker::Rule(rule) if rule.conditions.takes_any(facts) => Some(facts.uid),
            _ => None,
        };
        Taken { by, acts, budget, verify, per_node, of_user, passed, later }
    }

    /// Returns the rule that takes the process, if it is not the default.
    pub fn rule(&self) -> Option<&'p Rule> {
        match self.by {
            Taker::Rule(rule) => Some(rule),
            Taker::Default | Taker::Nobody => None,
        }
    }
}
