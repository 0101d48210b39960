// SPDX-License-Identifier: Apache-2.0
//! The conditions of a rule, and whether they hold for a process.
//!
//! A user must not gain by a name: everybody can give a program a path or a group of processes a name. So a
//! rule that does not say whose processes it takes, and that does something with them, takes those of root and
//! of system users alone, unless it has `any_user = true`.

use crate::service::container::described::Container;
use crate::service::patterns::{Names, Paths, Units, Users};
use crate::service::unit::system_unit;
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// The first number of an ordinary user (`UID_MIN` of login.defs(5)).
const FIRST_USER: u32 = 1000;
/// The number of `nobody`, which no person has.
const NOBODY: u32 = 65534;

/// The slice of the sessions and the managers of users (systemd.special(7)).
const USERS: &str = "/user.slice/";

/// What is known about a process.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The path of its executable, without the ` (deleted)` of the kernel.
    pub program: &'a Path,
    /// The number of its real user, by which a set-user-ID program is its caller's.
    pub uid: u32,
    /// The name of its user, if it has one.
    pub user: Option<&'a str>,
    /// The path of its control group (version 2), behind the `0::` of `/proc/PID/cgroup`.
    pub cgroup: &'a str,
    /// What is known about its container; `None` if it is in none.
    pub container: Option<&'a Container>,
    /// Bytes of code that it maps.
    pub code: u64,
    /// The time since its start.
    pub age: Duration,
}

impl Facts<'_> {
    /// Returns whether the process is one of root or of a system user.
    pub fn is_of_system(&self) -> bool {
        self.uid < FIRST_USER || self.uid == NOBODY
    }
}

/// A condition of a rule. They are tried in this order. What may change while the process runs comes last: a
/// process that is passed because of [`Condition::OlderThan`] fulfils all the others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Condition {
    /// `unit`: its unit of the system's manager.
    Unit,
    /// `cgroup`: its control group.
    Cgroup,
    /// `user`: its user.
    User,
    /// `program`: its executable.
    Program,
    /// `image`: the image of its container.
    Image,
    /// `label`: a label of its container or pod.
    Label,
    /// `namespace`: the namespace of its pod.
    Namespace,
    /// Neither `user` nor `any_user = true`: its user is root or a system user.
    SystemUser,
    /// `larger_than`: it maps more bytes of code.
    LargerThan,
    /// `older_than`: more time has passed since its start.
    OlderThan,
}

impl Condition {
    /// All of them, in the order in which they are tried.
    pub const ALL: [Condition; 10] = [
        Condition::Unit,
        Condition::Cgroup,
        Condition::User,
        Condition::Program,
        Condition::Image,
        Condition::Label,
        Condition::Namespace,
        Condition::SystemUser,
        Condition::LargerThan,
        Condition::OlderThan,
    ];
}

/// The key of the configuration. For [`Condition::SystemUser`] it is the one that lifts the condition.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Condition::Unit => "unit",
            Condition::Cgroup => "cgroup",
            Condition::User => "user",
            Condition::Program => "program",
            Condition::Image => "image",
            Condition::Label => "label",
            Condition::Namespace => "namespace",
            Condition::SystemUser => "any_user",
            Condition::LargerThan => "larger_than",
            Condition::OlderThan => "older_than",
        })
    }
}

/// The conditions of a rule, all of which must hold. Of the patterns of one condition one must match.
#[derive(Clone, Debug, Default)]
pub struct Conditions {
    pub(super) unit: Option<Units>,
    pub(super) cgroup: Option<Paths>,
    pub(super) user: Option<Users>,
    pub(super) program: Option<Paths>,
    pub(super) image: Option<Names>,
    pub(super) label: Option<Names>,
    pub(super) namespace: Option<Names>,
    pub(super) system_user: bool,
    pub(super) larger_than: Option<u64>,
    pub(super) older_than: Option<Duration>,
}

impl Conditions {
    /// Returns the first condition that does not hold.
    pub fn first_broken(&self, facts: &Facts) -> Option<Condition> {
        Condition::ALL.into_iter().find(|condition| !self.holds(*condition, facts))
    }

    /// Returns whether a process of these facts is an ordinary user's, and nobody but this user has said what it is: the rule
    /// names no user and no unit except for units of users, and the process is in no container.
    pub fn takes_any(&self, facts: &Facts) -> bool {
        let has_unit = self.unit.is_some() && !facts.cgroup.starts_with(USERS);
        let is_named = has_unit || self.user.is_some() || facts.container.is_some();
        !facts.is_of_system() && !is_named
    }

    /// Returns whether a condition holds. One that the rule does not have holds.
    pub fn holds(&self, condition: Condition, facts: &Facts) -> bool {
        match condition {
            Condition::Unit => {
                let unit = || system_unit(facts.cgroup);
                self.unit.as_ref().is_none_or(|units| unit().is_some_and(|unit| units.hold(unit)))
            }
            Condition::Cgroup => is_none_or_holds(self.cgroup.as_ref(), Path::new(facts.cgroup)),
            Condition::User => self.user.as_ref().is_none_or(|users| users.hold(facts.uid, facts.user)),
            Condition::Program => is_none_or_holds(self.program.as_ref(), facts.program),
            Condition::Image => has(self.image.as_ref(), facts.container.map(|its| &its.images)),
            Condition::Label => has(self.label.as_ref(), facts.container.map(|its| &its.labels)),
            Condition::Namespace => {
                has(self.namespace.as_ref(), facts.container.and_then(|its| its.namespace.as_ref()).map(Some))
            }
            Condition::SystemUser => !self.system_user || facts.is_of_system(),
            Condition::LargerThan => self.larger_than.is_none_or(|bytes| facts.code > bytes),
            Condition::OlderThan => self.older_than.is_none_or(|time| facts.age > time),
        }
    }

    /// Returns what a condition asks for, in words; `None` if there is no such condition.
    pub fn asks(&self, condition: Condition) -> Option<String> {
        match condition {
            Condition::Unit => self.unit.as_ref().map(|units| units.written.to_string()),
            Condition::Cgroup => self.cgroup.as_ref().map(|paths| paths.written.to_string()),
            Condition::User => self.user.as_ref().map(|users| users.written.to_string()),
            Condition::Program => self.program.as_ref().map(|paths| paths.written.to_string()),
            Condition::Image => self.image.as_ref().map(|names| names.written.to_string()),
            Condition::Label => self.label.as_ref().map(|names| names.written.to_string()),
            Condition::Namespace => self.namespace.as_ref().map(|names| names.written.to_string()),
            Condition::SystemUser => self.system_user.then(|| "root or a system user".to_string()),
            Condition::LargerThan => self.larger_than.map(|bytes| format!("{bytes} bytes")),
            Condition::OlderThan => self.older_than.map(|time| format!("{time:?}")),
        }
    }

    /// Returns the users that the conditions name and that do not exist.
    pub fn unknown_users(&self, is_known: impl Fn(&str) -> bool) -> impl Iterator<Item = &str> {
        self.user.iter().flat_map(move |users| users.unknown(&is_known).collect::<Vec<_>>())
    }

    /// Returns whether nothing is asked for but whose process it is.
    pub fn take_all(&self) -> bool {
        let asks = |condition: &Condition| self.asks(*condition).is_some();
        !Condition::ALL.iter().filter(|condition| **condition != Condition::SystemUser).any(asks)
    }

    /// Returns the time after which a process fulfils [`Condition::OlderThan`].
    pub fn wait(&self, age: Duration) -> Option<Duration> {
        let left = self.older_than?.checked_sub(age)?;
        Some(left.saturating_add(Duration::from_nanos(1)))
    }
}

/// Returns whether there are no patterns, or one of the names of the container matches one of them.
fn has<'n>(patterns: Option<&Names>, names: Option<impl IntoIterator<Item = &'n String>>) -> bool {
    patterns.is_none_or(|patterns| names.is_some_and(|names| patterns.hold(names)))
}

fn is_none_or_holds(paths: Option<&Paths>, path: &Path) -> bool {
    paths.is_none_or(|paths| paths.hold(path))
}
