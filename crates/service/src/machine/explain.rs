// SPDX-License-Identifier: Apache-2.0
//! Which rule of a policy takes which process that runs, and why: `hugelift service check`.

use crate::machine::surroundings::Surroundings;
use crate::machine::users::Users;
use crate::machine::watched::facts;
use hugelift_core::addr::human_bytes;
use hugelift_core::printable::Untrusted;
use hugelift_core::service::policy::{Policy, Taker};
use hugelift_linux::proc::census::{Known, Reader};
use hugelift_linux::proc::procfs::Process;
use nix::unistd::Group;
use serde::Serialize;
use std::path::PathBuf;

/// What a policy says of a process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Explained {
    /// The process.
    pub pid: u32,
    /// The path of its executable.
    pub program: Untrusted,
    /// The rule that takes it; none for the default, or if nobody takes it.
    pub rule: Option<String>,
    /// Where the rule is written.
    pub place: Option<String>,
    /// It is taken, by a rule or by the default.
    pub is_taken: bool,
    /// What may be done with it.
    pub acts: Vec<String>,
    /// Its code is copied only where an experiment has shown a gain.
    pub verify: bool,
    /// Each NUMA node has its own copies of its code.
    pub per_node: bool,
    /// The ordinary user whose processes together may have a quarter of the memory for copies, where the rule does not name
    /// the user.
    pub of_user: Option<u32>,
    /// Bytes of copies that it may have; none for as much as all may have.
    pub budget_bytes: Option<u64>,
    /// What is known about its container, in words; none if it is in none.
    pub container: Option<Untrusted>,
    /// Bytes of code that it maps, at least.
    pub code_bytes: u64,
    /// The rules that were tried before, and the first condition of each that does not hold.
    pub passed: Vec<Passed>,
}

/// A rule that does not take a process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Passed {
    /// The rule.
    pub rule: String,
    /// The first of its conditions that does not hold, as in the configuration.
    pub condition: String,
    /// What the condition asks for.
    pub asks: Option<String>,
}

/// Explains each process that runs, or this one alone. `pods` is the path of the file of pods.
/// Threads of the kernel and what may not be read are left out.
///
/// # Errors
/// One line: /proc cannot be read, or there is no such process.
pub fn explain(policy: &Policy, pid: Option<u32>, pods: Option<PathBuf>) -> Result<Vec<Explained>, String> {
    let (mut reader, mut surroundings) = (Reader::new(), Surroundings::read(pods));
    let pids = match pid {
        Some(pid) => vec![pid],
        None => Process::all().map_err(|error| format!("cannot list /proc: {error}"))?,
    };
    let mut all = Vec::new();
    for one in pids {
        match reader.read(one) {
            Ok(known) => all.extend(of(policy, &mut reader, &mut surroundings, &known)),
            Err(error) if pid.is_some() => return Err(error.to_string()),
            Err(_) => {}
        }
    }
    match pid.filter(|_| all.is_empty()) {
        Some(pid) => Err(format!("process {pid} is a thread of the kernel, has ended, or may not be read")),
        None => Ok(all),
    }
}

/// Returns a line for each user and group that the policy names and that this machine does not have.
pub fn unknown_names(policy: &Policy) -> Vec<String> {
    let users = Users::read();
    let mut notes = Vec::new();
    for rule in policy.rules() {
        notes
            .extend(rule.conditions.unknown_users(|name| users.has(name)).map(Untrusted::from).map(|name| {
            format!(
                "{}: rule {}: /etc/passwd has no user '{name}', so the rule takes no process of that user. \
                 If another directory has the user, write the number that `id -u {name}` prints",
                rule.place, rule.name
            )
        }));
    }
    let group = policy.keep.as_ref().and_then(|keep| keep.group.as_deref());
    notes
        .extend(group.filter(|name| !matches!(Group::from_name(name), Ok(Some(_)))).map(Untrusted::from).map(
        |name| {
            format!(
                "keep: group: there is no group '{name}', so only the daemon's own user may ask for its state"
            )
        },
    ));
    notes
}

fn of(
    policy: &Policy,
    reader: &mut Reader,
    surroundings: &mut Surroundings,
    known: &Known,
) -> Option<Explained> {
    facts(reader, surroundings, known, |facts| {
        let taken = policy.rule_for(facts);
        let passed = taken.passed.iter().map(|passed| Passed {
            rule: passed.rule.name.clone(),
            condition: passed.broken.to_string(),
            asks: passed.rule.conditions.asks(passed.broken),
        });
        Explained {
            pid: known.identity.0,
            program: facts.program.into(),
            rule: taken.rule().map(|rule| rule.name.clone()),
            place: taken.rule().map(|rule| rule.place.to_string()),
            is_taken: !matches!(taken.by, Taker::Nobody) && !taken.acts.is_empty(),
            acts: taken.acts.iter().map(|act| act.to_string()).collect(),
            verify: taken.verify,
            per_node: taken.per_node,
            of_user: taken.of_user,
            budget_bytes: taken.budget,
            container: facts.container.map(|container| container.to_string().as_str().into()),
            code_bytes: facts.code,
            passed: passed.collect(),
        }
    })
}

impl Explained {
    /// Returns a line such as "1234 /usr/sbin/mariadbd, 24 MB of code: rule databases: pagecache, code".
    pub fn line(&self) -> String {
        let code = human_bytes(self.code_bytes);
        let by = match (&self.rule, self.is_taken) {
            (Some(rule), _) => format!("rule {rule}"),
            (None, true) => "the default".into(),
            (None, false) => "no rule".into(),
        };
        let acts = match self.acts.is_empty() {
            true => "left alone".into(),
            false => self.acts.join(", "),
        };
        let verify = if self.verify { "; code once an experiment has shown a gain" } else { "" };
        let node = if self.per_node { "; copies on each NUMA node" } else { "" };
        format!("{} {}, {code} of code: {by}: {acts}{verify}{node}", self.pid, self.program)
    }

    /// Returns the lines that say what is known about its container, and why the rules before do not take it.
    pub fn why(&self) -> Vec<String> {
        let line = |passed: &Passed| {
            let asks = passed.asks.as_ref().map(|asks| format!(" ({asks})")).unwrap_or_default();
            format!("rule {} does not take it: {}{asks} does not hold", passed.rule, passed.condition)
        };
        let container = self.container.iter().map(|container| match container.to_string().is_empty() {
            true => "it is in a container of which no runtime says anything".to_string(),
            false => format!("its container: {container}"),
        });
        let user = self.of_user.filter(|_| self.is_taken).map(|user| {
            format!("all processes of user {user} together may have a quarter of the memory for copies: the rule names no user")
        });
        container.chain(user).chain(self.passed.iter().map(line)).collect()
    }
}
