// SPDX-License-Identifier: Apache-2.0
//! Properties of the order of the rules: the first match wins, and a drop-in's rule precedes.

use super::{Facts, Policy, mariadb, source, taker};
use proptest::prelude::*;
use std::path::Path;

const PROGRAMS: [&str; 3] = ["/usr/bin/node", "/usr/sbin/mariadbd", "/opt/x"];
const GROUPS: [&str; 3] = ["/system.slice/a.service", "/system.slice/b.service", "/"];

/// A rule by the numbers of the programs and groups that it takes.
#[derive(Clone, Debug)]
struct Simple {
    programs: Vec<usize>,
    groups: Vec<usize>,
}

impl Simple {
    fn takes(&self, program: usize, group: usize) -> bool {
        self.programs.contains(&program) && self.groups.contains(&group)
    }

    fn text(&self, name: &str) -> String {
        let list = |all: &[usize], of: &[&str]| {
            all.iter().map(|i| format!("\"{}\"", of[*i])).collect::<Vec<_>>().join(", ")
        };
        format!(
            "[[rule]]\nname = \"{name}\"\ndo = [\"code\"]\nprogram = [{}]\ncgroup = [{}]\n",
            list(&self.programs, &PROGRAMS),
            list(&self.groups, &GROUPS)
        )
    }
}

fn simple() -> impl Strategy<Value = Simple> {
    let some = || prop::collection::vec(0..3_usize, 1..3);
    (some(), some()).prop_map(|(programs, groups)| Simple { programs, groups })
}

fn text(rules: &[Simple], name: &str) -> String {
    rules.iter().enumerate().map(|(i, rule)| rule.text(&format!("{name}{i}"))).collect()
}

proptest! {
    #[test]
    fn issue_33_the_first_match_wins_and_a_drop_in_precedes(
        before in prop::collection::vec(simple(), 0..4),
        main in prop::collection::vec(simple(), 0..4),
        program in 0..3_usize,
        group in 0..3_usize,
    ) {
        let sources = [source("10-x.toml", &text(&before, "drop-in ")), source("service.toml", &text(&main, "main "))];
        let policy = Policy::parse(&sources).unwrap();
        let facts = Facts { program: Path::new(PROGRAMS[program]), cgroup: GROUPS[group], ..mariadb() };
        let taken = policy.rule_for(&facts);
        let position = |rules: &[Simple]| rules.iter().position(|rule| rule.takes(program, group));
        let (name, passed) = match (position(&before), position(&main)) {
            (Some(i), _) => (format!("drop-in {i}"), i),
            (None, Some(i)) => (format!("main {i}"), before.len() + i),
            (None, None) => ("(default)".to_string(), before.len() + main.len()),
        };
        prop_assert_eq!((taker(&taken), taken.passed.len()), (name, passed));
        for (passed, rule) in taken.passed.iter().zip(policy.rules()) {
            prop_assert_eq!(&passed.rule.name, &rule.name);
            prop_assert!(!rule.conditions.holds(passed.broken, &facts));
        }
    }

    #[test]
    fn issue_33_a_rule_more_before_the_others_changes_only_what_it_takes(
        rules in prop::collection::vec(simple(), 0..4),
        more in simple(),
        program in 0..3_usize,
        group in 0..3_usize,
    ) {
        let facts = Facts { program: Path::new(PROGRAMS[program]), cgroup: GROUPS[group], ..mariadb() };
        let main = source("service.toml", &text(&rules, "main "));
        let alone = Policy::parse(std::slice::from_ref(&main)).unwrap();
        let both = Policy::parse(&[source("a.toml", &more.text("more")), main]).unwrap();
        let expected = if more.takes(program, group) { "more".into() } else { taker(&alone.rule_for(&facts)) };
        prop_assert_eq!(taker(&both.rule_for(&facts)), expected);
    }
}
