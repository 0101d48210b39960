// SPDX-License-Identifier: Apache-2.0
//! The policy of `hugelift service`, in one file or two, and the rule that takes a process.
#![no_main]

use hugelift_core::service::matching::Facts;
use hugelift_core::service::policy::{Policy, Taker};
use hugelift_core::service::source::Source;
use hugelift_core::service::unit::system_unit;
use libfuzzer_sys::fuzz_target;
use std::path::Path;
use std::time::Duration;

fn facts(data: &[u8], uid: u32) -> Facts<'_> {
    let text = std::str::from_utf8(data).unwrap_or("/system.slice/mariadb.service");
    Facts {
        container: None,
        program: Path::new("/usr/sbin/mariadbd"),
        uid,
        user: Some(text),
        cgroup: text,
        code: data.len() as u64,
        age: Duration::from_secs(data.len() as u64),
    }
}

fn check(policy: &Policy, facts: &Facts) {
    let taken = policy.rule_for(facts);
    for (passed, rule) in taken.passed.iter().zip(policy.rules()) {
        assert_eq!(passed.rule.name, rule.name);
        assert_eq!(rule.conditions.first_broken(facts), Some(passed.broken));
    }
    match taken.by {
        Taker::Rule(rule) => {
            assert_eq!(rule.conditions.first_broken(facts), None);
            assert_eq!(policy.rules()[taken.passed.len()].name, rule.name);
        }
        Taker::Default => assert!(facts.is_of_system() && taken.passed.len() == policy.rules().len()),
        Taker::Nobody => assert!(!facts.is_of_system() && taken.acts.is_empty()),
    }
    assert!(policy.limits(u64::MAX).cpu.of(u64::MAX) > 0);
    if let Some(later) = taken.later {
        let age = facts.age.saturating_add(later);
        let now = policy.rule_for(&Facts { age, ..*facts });
        assert!(now.passed.len() < taken.passed.len() && now.rule().is_some());
    }
}

/// Lines of a rule. Without coverage feedback, bytes at random make no rule.
const LINES: [&str; 24] = [
    "unit = \"mariadb\"",
    "unit = [\"*.service\", \"x\"]",
    "cgroup = \"*\"",
    "cgroup = \"/system.slice/*\"",
    "user = \"1000\"",
    "user = [\"my*\", \"0\"]",
    "program = \"/usr/{bin,sbin}/*\"",
    "program = [\"/x\", \"*[!a]\"]",
    "larger_than = \"4\"",
    "larger_than = \"1k\"",
    "older_than = \"4\"",
    "older_than = \"1m30s\"",
    "budget = \"64M\"",
    "any_user = true",
    "any_user = false",
    "user = \"[\"",
    "unit = []",
    "program = \"x\"",
    "budget = \"x\"",
    "x = 1",
    "[limits]\ncpu = \"0.3%\"",
    "[limits]\nmemory = \"1G\"",
    "[metrics]\nport = 9773",
    "[keep]\nprograms = [\"node\"]",
];

/// Returns a configuration of a rule or line for each byte.
fn of_lines(data: &[u8]) -> String {
    let line = |(i, byte): (usize, &u8)| match LINES.get(usize::from(*byte % 32)) {
        Some(line) => format!("{line}\n"),
        None => format!("[[rule]]\nname = \"{i}\"\ndo = [\"code\"]\n"),
    };
    data.iter().enumerate().map(line).collect()
}

fn parse(texts: &[&str]) -> Result<Policy, String> {
    let source = |(name, text): (&str, &&str)| Source { name: name.into(), text: (*text).into() };
    let sources: Vec<Source> = ["a.toml", "b.toml"].into_iter().zip(texts).map(source).collect();
    Policy::parse(&sources)
}

fuzz_target!(|data: &[u8]| {
    if let Some(unit) = std::str::from_utf8(data).ok().and_then(system_unit) {
        assert!(!unit.is_empty() && unit.is_ascii() && !unit.contains(['/', '\n', ' ']));
    }
    // A NUL is no part of a file of TOML: here it ends the first of two files.
    let texts: Result<Vec<&str>, _> = data.splitn(2, |byte| *byte == 0).map(std::str::from_utf8).collect();
    let of_lines = of_lines(&data[..data.len().min(64)]);
    for policy in [texts.map(|texts| parse(&texts)).ok(), Some(parse(&["", &of_lines]))].into_iter().flatten()
    {
        match policy {
            Ok(policy) => [0, 1000].iter().for_each(|uid| check(&policy, &facts(data, *uid))),
            Err(error) => {
                assert!(!error.contains('\n'), "{error}");
                assert!(error.starts_with("a.toml: ") || error.starts_with("b.toml: "), "{error}");
            }
        }
    }
});
