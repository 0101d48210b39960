// SPDX-License-Identifier: Apache-2.0
//! A rule of the service: which processes it takes, and what may be done with them.

use crate::quantity;
use crate::service::acts::{Act, Acts};
use crate::service::matching::Conditions;
use crate::service::patterns::{Names, Paths, Units, Users};
use crate::service::source::{Place, Source};
use crate::service::written::WrittenRule;
use crate::toml_text::{Wrong, checked};
use std::ops::Range;
use toml::Spanned;

/// The longest name of a rule, in bytes.
const LONGEST: usize = 64;

/// A rule.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its name, which no other rule has: 1 to 64 letters, digits, blanks or `.`, `_`, `-` of ASCII.
    pub name: String,
    /// Where it is written.
    pub place: Place,
    /// What may be done with the processes that it takes.
    pub acts: Acts,
    /// Bytes of copies for each process; `None` leaves it to the limits of the service.
    pub budget: Option<u64>,
    /// They are lifted only where an experiment has shown a gain.
    pub verify: bool,
    /// On a machine with several NUMA nodes each node has its own copies of code.
    pub per_node: bool,
    /// Which processes it takes.
    pub conditions: Conditions,
}

impl Rule {
    /// Checks a rule that is written in this file.
    ///
    /// # Errors
    /// Returns the value that is wrong or missing, and why.
    pub fn check(source: &Source, written: &Spanned<WrittenRule>) -> Result<Rule, Wrong> {
        let (at, rule) = (written.span(), written.get_ref());
        let acts = rule.acts.as_ref().ok_or_else(|| {
            missing(at.clone(), "do", "what may be done with the processes; do = [] leaves them alone")
        })?;
        let acts: Acts = acts.iter().copied().collect();
        Ok(Rule {
            name: name(at.clone(), rule.name.as_ref())?,
            place: source.place(at.start),
            acts,
            budget: checked("budget", rule.budget.as_ref(), |text| quantity::bytes(text))?,
            verify: checked("verify", rule.verify.as_ref(), |verify| check_verify(*verify, acts))?
                .unwrap_or(false),
            per_node: checked("per_node", rule.per_node.as_ref(), |wanted| check_per_node(*wanted, acts))?
                .unwrap_or(false),
            conditions: conditions(rule, acts)?,
        })
    }
}

fn name(rule: Range<usize>, written: Option<&Spanned<String>>) -> Result<String, Wrong> {
    let name = checked("name", written, |name| check_name(name).map(|()| name.clone()))?;
    name.ok_or_else(|| missing(rule, "name", "by which messages call the rule"))
}

fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > LONGEST {
        return Err(format!("it has {} bytes, and a name has 1 to {LONGEST}", name.len()));
    }
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || " ._-".contains(c);
    match name.chars().find(|c| !is_allowed(*c)) {
        Some(c) => Err(format!("'{c}' is not a letter or digit of ASCII, a blank, or one of . _ -")),
        None => Ok(()),
    }
}

/// An experiment switches copies of code and nothing else, and what is not measured must not be done.
fn check_verify(verify: bool, acts: Acts) -> Result<bool, String> {
    let is_measured = acts.allow(Act::Code) && !acts.allow(Act::Memory) && !acts.allow(Act::Shm);
    match verify && !is_measured {
        true => Err(
            "only copies of code can be measured: do must have \"code\", and neither \"memory\" nor \"shm\""
                .into(),
        ),
        false => Ok(verify),
    }
}

/// The store has copies of code alone.
fn check_per_node(per_node: bool, acts: Acts) -> Result<bool, String> {
    match per_node && !acts.allow(Act::Code) {
        true => Err("only code is copied for each node: do must have \"code\"".into()),
        false => Ok(per_node),
    }
}

fn missing(rule: Range<usize>, key: &str, what: &str) -> Wrong {
    Wrong::at(rule, format!("{key}: is missing: {what}"))
}

fn conditions(rule: &WrittenRule, acts: Acts) -> Result<Conditions, Wrong> {
    let any_user = rule.any_user.as_ref().filter(|any| *any.get_ref());
    if let (Some(any), Some(_)) = (any_user, &rule.user) {
        return Err(Wrong::value("any_user", any, "the rule names users; remove one of the two lines"));
    }
    Ok(Conditions {
        unit: checked("unit", rule.unit.as_ref(), Units::new)?,
        cgroup: checked("cgroup", rule.cgroup.as_ref(), Paths::new)?,
        user: checked("user", rule.user.as_ref(), Users::new)?,
        program: checked("program", rule.program.as_ref(), Paths::new)?,
        image: checked("image", rule.image.as_ref(), Names::new)?,
        label: checked("label", rule.label.as_ref(), Names::labels)?,
        namespace: checked("namespace", rule.namespace.as_ref(), Names::new)?,
        // Nobody gains by being left alone.
        system_user: rule.user.is_none() && any_user.is_none() && !acts.is_empty(),
        larger_than: checked("larger_than", rule.larger_than.as_ref(), |text| quantity::bytes(text))?,
        older_than: checked("older_than", rule.older_than.as_ref(), |text| quantity::duration(text))?,
    })
}
