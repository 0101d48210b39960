// SPDX-License-Identifier: Apache-2.0
//! Tests of the whole policy: which rule takes a process, and what is wrong with a configuration.

use super::acts::{Act, Acts};
use super::container::described::Container;
use super::matching::{Condition, Facts};
use super::policy::{Policy, Taken, Taker};
use super::source::Source;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

mod containers;
mod errors;
mod first_match;

fn source(name: &str, text: &str) -> Source {
    Source { name: name.to_string(), text: text.to_string() }
}

fn policy(text: &str) -> Policy {
    Policy::parse(&[source("service.toml", text)]).unwrap()
}

fn mariadb() -> Facts<'static> {
    Facts {
        program: Path::new("/usr/sbin/mariadbd"),
        uid: 998,
        user: Some("mysql"),
        cgroup: "/system.slice/mariadb.service",
        container: None,
        code: 24 << 20,
        age: Duration::from_secs(60),
    }
}

/// Returns who takes the process: the name of a rule, `(default)` or `(nobody)`.
fn taker(taken: &Taken) -> String {
    match taken.by {
        Taker::Rule(rule) => rule.name.clone(),
        Taker::Default => "(default)".to_string(),
        Taker::Nobody => "(nobody)".to_string(),
    }
}

/// Returns the first condition of a rule with these lines that does not hold for the process.
fn broken(conditions: &str, facts: &Facts) -> Option<Condition> {
    let policy = policy(&format!("[[rule]]\nname = \"a\"\ndo = [\"code\"]\n{conditions}\n"));
    let taken = policy.rule_for(facts);
    assert_eq!(taken.rule().is_some(), taken.passed.is_empty());
    taken.passed.first().map(|passed| passed.broken)
}

const EXAMPLE: &str = r#"
[limits]
memory = "4%"
cpu = "0.5%"

[metrics]
socket = "/run/hugelift/metrics.sock"
port = 9773
textfile = "/var/lib/prometheus/node-exporter/hugelift.prom"

[keep]
programs = ["clang++-19"]
budget = "1G"

[[rule]]
name = "databases"
unit = "mariadb.service"
cgroup = "/system.slice/*"
user = ["mysql", "998"]
program = "/usr/sbin/mariadbd"
larger_than = "20M"
older_than = "10s"
do = ["pagecache", "code"]
budget = "64M"
any_user = false

[[rule]]
name = "not these"
program = ["/usr/bin/gdb", "/usr/bin/strace"]
do = []
"#;

#[test]
fn issue_33_a_complete_policy() {
    let policy = policy(EXAMPLE);
    let limits = policy.limits(100 << 20);
    assert_eq!((limits.memory, limits.cpu.to_string()), (4 << 20, "0.5%".to_string()));
    assert_eq!(policy.metrics.tcp(), Some((Ipv4Addr::LOCALHOST, 9773).into()));
    assert_eq!(policy.metrics.socket.as_deref(), Some(Path::new("/run/hugelift/metrics.sock")));
    assert!(policy.metrics.textfile.is_some());
    let keep = policy.keep.as_ref().unwrap();
    assert_eq!((keep.programs.len(), keep.budget), (1, 1 << 30));
    let taken = policy.rule_for(&mariadb());
    let rule = taken.rule().unwrap();
    assert_eq!((rule.name.as_str(), rule.place.to_string()), ("databases", "service.toml: line 15".into()));
    assert_eq!(taken.acts.to_string(), "[\"pagecache\", \"code\"]");
    assert_eq!((taken.budget, taken.later), (Some(64 << 20), None));
    let asks: Vec<_> = Condition::ALL.iter().filter_map(|c| rule.conditions.asks(*c)).collect();
    assert_eq!(
        asks,
        ["mariadb.service", "/system.slice/*", "mysql, 998", "/usr/sbin/mariadbd", "20971520 bytes", "10s"]
    );
}

#[test]
fn issue_33_metrics_at_another_address() {
    let metrics = policy("[metrics]\nport = 9773\naddress = \"::\"").metrics;
    assert_eq!(metrics.tcp(), Some((Ipv6Addr::UNSPECIFIED, 9773).into()));
}

#[test]
fn issue_33_nothing_is_configured() {
    let policy = Policy::parse(&[]).unwrap();
    let limits = policy.limits(1 << 30);
    assert_eq!((limits.memory, limits.cpu.to_string()), ((1 << 30) / 50, "0.2%".to_string()));
    assert!(policy.keep.is_none() && policy.metrics == Default::default() && policy.rules().is_empty());
    assert_eq!(policy.rule_for(&mariadb()).acts, Acts::from(Act::Pagecache));
}

#[test]
fn issue_33_the_default_takes_no_process_of_an_ordinary_user() {
    for (uid, expected) in [
        (0, "(default)"),
        (999, "(default)"),
        (65534, "(default)"),
        (1000, "(nobody)"),
        (65533, "(nobody)"),
        (100_000, "(nobody)"),
    ] {
        let policy = Policy::default();
        let taken = policy.rule_for(&Facts { uid, ..mariadb() });
        assert_eq!(taker(&taken), expected, "{uid}");
        assert_eq!(taken.acts.is_empty(), expected == "(nobody)");
    }
}

#[test]
fn issue_33_each_condition_must_hold() {
    use Condition::*;
    for (conditions, expected) in [
        ("", None),
        ("unit = \"mariadb.service\"", None),
        ("unit = \"mariadb\"", None),
        ("unit = [\"nginx\", \"maria*\"]", None),
        ("unit = \"maria\"", Some(Unit)),
        ("unit = \"mariadb.scope\"", Some(Unit)),
        ("cgroup = \"/system.slice/*\"", None),
        ("cgroup = [\"/x\", \"*mariadb*\"]", None),
        ("cgroup = \"/system.slice\"", Some(Cgroup)),
        ("user = \"mysql\"", None),
        ("user = \"my*\"", None),
        ("user = \"998\"", None),
        ("user = [\"postgres\", \"998\"]", None),
        ("user = \"9*\"", Some(User)),
        ("user = \"99\"", Some(User)),
        ("user = \"MySQL\"", Some(User)),
        ("program = \"/usr/sbin/mariadbd\"", None),
        ("program = \"/usr/*mariadbd\"", None),
        ("program = \"/usr/{bin,sbin}/[lm]ariad?d\"", None),
        ("program = \"/usr/bin/mariadbd\"", Some(Program)),
        ("program = \"/usr/sbin/mariadb\"", Some(Program)),
        ("larger_than = \"23M\"", None),
        ("larger_than = \"24M\"", Some(LargerThan)),
        ("older_than = \"59s\"", None),
        ("older_than = \"60s\"", Some(OlderThan)),
        ("user = \"root\"\nunit = \"nginx\"", Some(Unit)),
        ("older_than = \"1h\"\nlarger_than = \"1G\"", Some(LargerThan)),
    ] {
        assert_eq!(broken(conditions, &mariadb()), expected, "{conditions}");
    }
}

#[test]
fn issue_33_a_user_without_a_name_is_known_by_the_number() {
    let nameless = Facts { user: None, ..mariadb() };
    assert_eq!(broken("user = \"998\"", &nameless), None);
    assert_eq!(broken("user = \"*\"", &nameless), Some(Condition::User));
}

#[test]
fn issue_33_a_name_with_a_backslash_is_escaped_in_a_pattern() {
    let vm = Facts { cgroup: "/machine.slice/machine-qemu\\x2d1.scope", ..mariadb() };
    assert_eq!(broken("unit = 'machine-qemu\\\\x2d1.scope'", &vm), None);
    assert_eq!(broken("unit = 'machine-qemu\\x2d1.scope'", &vm), Some(Condition::Unit));
}

#[test]
fn issue_33_a_program_need_not_be_utf8() {
    use std::os::unix::ffi::OsStrExt;
    let program = Path::new(std::ffi::OsStr::from_bytes(b"/opt/\xff/x"));
    assert_eq!(broken("program = \"/opt/*/x\"", &Facts { program, ..mariadb() }), None);
    assert_eq!(broken("program = \"/opt/x\"", &Facts { program, ..mariadb() }), Some(Condition::Program));
}

#[test]
fn issue_33_a_user_gains_nothing_by_a_name() {
    let user = Facts {
        uid: 1000,
        user: Some("alice"),
        cgroup: "/user.slice/user-1000.slice/user@1000.service/app.slice/mariadb.service",
        ..mariadb()
    };
    for conditions in ["", "program = \"*/mariadbd\"", "cgroup = \"*/mariadb.service\"", "unit = \"user@*\""]
    {
        assert_eq!(broken(conditions, &user), Some(Condition::SystemUser), "{conditions}");
        assert_eq!(broken(&format!("{conditions}\nany_user = true"), &user), None, "{conditions}");
        assert_eq!(broken(&format!("{conditions}\nuser = \"alice\""), &user), None, "{conditions}");
    }
    // The user's own manager has a unit of that name, which is no unit of the system.
    assert_eq!(broken("unit = \"mariadb.service\"\nany_user = true", &user), Some(Condition::Unit));
}

#[test]
fn issue_33_what_users_have_together_is_bounded_where_the_rule_does_not_name_them() {
    let user = Facts { uid: 1000, user: Some("alice"), ..mariadb() };
    let session = Facts { cgroup: "/user.slice/user-1000.slice/user@1000.service/a.service", ..user };
    let of_user = |conditions: &str, facts: &Facts| {
        let policy = policy(&format!("[[rule]]\nname = \"a\"\ndo = [\"code\"]\n{conditions}\n"));
        policy.rule_for(facts).of_user
    };
    assert_eq!(of_user("any_user = true", &user), Some(1000));
    assert_eq!(of_user("any_user = true\nprogram = \"/usr/*\"", &user), Some(1000));
    assert_eq!(of_user("any_user = true\nunit = \"user@*\"", &session), Some(1000));
    // A service with a user of its own, one that is named, a system user, and one in a container.
    assert_eq!(of_user("any_user = true\nunit = \"mariadb\"", &user), None);
    assert_eq!(of_user("user = \"alice\"", &user), None);
    assert_eq!(of_user("any_user = true", &mariadb()), None);
    let container = Container::default();
    assert_eq!(of_user("any_user = true", &Facts { container: Some(&container), ..user }), None);
}

#[test]
fn issue_33_a_rule_leaves_programs_of_all_users_alone() {
    let policy = policy(
        "[[rule]]\nname = \"not\"\nprogram = \"*/mariadbd\"\ndo = []\n\
         [[rule]]\nname = \"all\"\nany_user = true\ndo = [\"code\"]\n",
    );
    let user = Facts { uid: 1000, ..mariadb() };
    assert_eq!(taker(&policy.rule_for(&user)), "not");
    assert_eq!(taker(&policy.rule_for(&Facts { program: Path::new("/usr/bin/vi"), ..user })), "all");
}

#[test]
fn issue_33_a_young_process_is_looked_at_again() {
    let policy = policy(
        "[[rule]]\nname = \"old\"\nuser = \"mysql\"\nolder_than = \"10s\"\ndo = [\"code\"]\n\
         [[rule]]\nname = \"older\"\nolder_than = \"1m\"\ndo = [\"memory\"]\n",
    );
    let young = Facts { age: Duration::from_secs(4), ..mariadb() };
    let taken = policy.rule_for(&young);
    assert_eq!((taker(&taken), taken.passed.len()), ("(default)".to_string(), 2));
    let age = young.age + taken.later.unwrap();
    assert_eq!(taker(&policy.rule_for(&Facts { age, ..young })), "old");
    let before = age - Duration::from_nanos(1);
    assert_eq!(taker(&policy.rule_for(&Facts { age: before, ..young })), "(default)");
    let other = policy.rule_for(&Facts { user: None, ..young }).later;
    assert_eq!(other, Some(Duration::from_nanos(56_000_000_001)));
}

#[test]
fn issue_33_all_facts_are_shown_and_copied() {
    let policy = policy(EXAMPLE).clone();
    assert!(format!("{policy:?}").contains("databases"));
    assert!(format!("{:?}", policy.rule_for(&mariadb()).clone()).contains("budget: Some(67108864)"));
}
