// SPDX-License-Identifier: Apache-2.0
//! What is wrong with a configuration is said in one line, with the file, the line and the key.

use super::{Policy, source};
use proptest::prelude::*;

fn error_of(files: &[(&str, &str)]) -> String {
    let sources: Vec<_> = files.iter().map(|(name, text)| source(name, text)).collect();
    let error = Policy::parse(&sources).unwrap_err();
    assert!(!error.chars().any(char::is_control), "{error:?}");
    error
}

/// Returns the error of a rule with this line, which is the fourth, without the place.
fn of_rule(line: &str) -> String {
    let text = format!("[[rule]]\nname = \"a\"\ndo = [\"code\"]\n{line}\n");
    let error = error_of(&[("service.toml", &text)]);
    error.strip_prefix("service.toml: line 4: ").unwrap_or_else(|| panic!("{error}")).to_string()
}

#[test]
fn issue_33_8_copies_for_each_node_need_copies() {
    let rule = |acts: &str| format!("[[rule]]\nname = \"a\"\ndo = [{acts}]\nper_node = true\n");
    let taken = super::policy(&rule("\"code\", \"memory\""));
    assert!(
        taken.rules()[0].per_node
            && !super::policy("[[rule]]\nname = \"a\"\ndo = [\"code\"]\n").rules()[0].per_node
    );
    let why = error_of(&[("service.toml", &rule("\"pagecache\""))]);
    assert!(why.contains("line 4: per_node: only code is copied for each node"), "{why}");
}

#[test]
fn issue_33_values_of_a_rule() {
    for (line, says) in [
        ("unti = \"x\"", "unknown field `unti`, expected one of `name`"),
        ("unit = 5", "unit: invalid type: integer `5`, expected a pattern or a list of patterns"),
        ("unit = [\"a\", 5]", "unit: invalid type: integer `5`"),
        ("unit = []", "unit: an empty list matches nothing; remove the line for no condition"),
        ("unit = \"\"", "unit: an empty pattern"),
        ("unit = [\"a\", \"\"]", "unit: an empty pattern"),
        ("unit = \"[\"", "unit: error parsing glob '[': unclosed character class"),
        ("unit = \"system.slice\"", "unit: 'system.slice' is a slice, which holds units; give cgroup"),
        ("cgroup = \"{a\"", "cgroup: error parsing glob"),
        ("cgroup = \"kubepods*\"", "cgroup: 'kubepods*' matches no absolute path"),
        ("cgroup = []", "cgroup: an empty list"),
        ("user = \"\"", "user: an empty pattern"),
        ("user = 998", "user: invalid type: integer `998`, expected a pattern"),
        ("user = \"4294967295\"", "user: '4294967295' is not the number of a user"),
        ("user = \"[z-a]\"", "user: error parsing glob"),
        ("program = \"mariadbd\"", "program: 'mariadbd' matches no absolute path"),
        ("program = \"/x\\\\\"", "program: error parsing glob"),
        ("image = []", "image: an empty list"),
        ("image = \"[\"", "image: error parsing glob"),
        ("label = \"app\"", "label: 'app' matches no label; write key=value, or app=* for any value"),
        ("namespace = 5", "namespace: invalid type: integer `5`, expected a pattern"),
        ("larger_than = 20", "larger_than: invalid type: integer `20`, expected a string"),
        ("larger_than = \"20X\"", "larger_than: '20X' is not a size"),
        ("older_than = \"soon\"", "older_than: 'soon' is not a time"),
        ("budget = \"-1\"", "budget: '-1' is not a size"),
        ("any_user = \"yes\"", "any_user: invalid type: string \"yes\", expected a boolean"),
        ("any_user = true\nuser = \"x\"", "any_user: the rule names users"),
        ("do = []", "duplicate key"),
        ("name = \"b\"", "duplicate key"),
        ("program = \"/\\u001b[2J\\n[\"", "program: error parsing glob '/\\x1b[2J\\n['"),
        (
            &format!("program = \"/{}\"", "x".repeat(5000)),
            "program: '/xxxxxxxxxxxxxxxxxxx...' has 5001 bytes",
        ),
    ] {
        let error = of_rule(line);
        assert!(error.starts_with(says), "{line}: {error}");
    }
}

#[test]
fn issue_33_a_rule_needs_a_name_and_says_what_to_do() {
    for (text, says) in [
        ("\n[[rule]]\ndo = []", "x: line 2: name: is missing"),
        ("[[rule]]\nname = \"a\"", "x: line 1: do: is missing: what may be done"),
        (
            "[[rule]]\nname = \"a\"\ndo = \"code\"",
            "x: line 3: do: invalid type: string \"code\", expected a sequence",
        ),
        (
            "[[rule]]\nname = \"a\"\ndo = [\"cod\"]",
            "x: line 3: do: unknown variant `cod`, expected one of `pagecache`, `code`",
        ),
        ("[[rule]]\nname = \"\"\ndo = []", "x: line 2: name: it has 0 bytes, and a name has 1 to 64"),
        ("[[rule]]\nname = \"a/b\"\ndo = []", "x: line 2: name: '/' is not a letter"),
        ("[[rule]]\nname = \"\\u202e\"\ndo = []", "x: line 2: name: '\\u{202e}' is not a letter"),
        ("[rule]\nname = \"a\"", "x: line 1: invalid type: map, expected a sequence"),
    ] {
        let error = error_of(&[("x", text)]);
        assert!(error.starts_with(says), "{text}: {error}");
    }
    let long = format!("[[rule]]\ndo = []\nname = \"{}\"", "x".repeat(65));
    assert!(error_of(&[("x", &long)]).starts_with("x: line 3: name: it has 65 bytes"));
}

#[test]
fn issue_33_the_other_tables() {
    for (text, says) in [
        ("[limits]\nmemory = \"101%\"", "x: line 2: memory: '101%' is not a share, as in 2%"),
        ("[limits]\nmemory = \"many\"", "x: line 2: memory: 'many' is not a size, as in 64k"),
        ("[limits]\nmemory = 5", "x: line 2: memory: invalid type"),
        ("[limits]\ncpu = \"5M\"", "x: line 2: cpu: '5M' is not a share"),
        ("[limits]\ncpu = \"0%\"", "x: line 2: cpu: with '0%' the service could do nothing"),
        ("[limit]\n", "x: line 1: unknown field `limit`, expected one of `limits`"),
        ("[metrics]\nport = 0", "x: line 2: port: 0 is not a port, which is from 1 to 65535"),
        (
            "[metrics]\nport = 1\naddress = \"localhost\"",
            "x: line 3: address: 'localhost' is not an IP address",
        ),
        ("[metrics]\naddress = \"::1\"", "x: line 2: address: there is no port"),
        ("[metrics]\nport = 65536", "x: line 2: port: 65536 is not a port"),
        ("[metrics]\nport = \"9773\"", "x: line 2: port: invalid type"),
        ("[metrics]\nsocket = \"s\"", "x: line 2: socket: 's' is not an absolute path"),
        ("[metrics]\nsocket = \"/run/\"", "x: line 2: socket: '/run/' is not the path of a file"),
        ("[metrics]\ntextfile = \"/..\"", "x: line 2: textfile: '/..' is not the path of a file"),
        ("[metrics]\ntextfile = \"/a\\u0000b\"", "x: line 2: textfile: '/a\\x00b' is not"),
        ("[metrics]\nhost = \"0.0.0.0\"", "x: line 2: unknown field `host`"),
        ("[keep]\nprograms = [\"a\"]\nbudget = \"5X\"", "x: line 3: budget: '5X' is not a size"),
        ("[keep]\nfiles = [\"a\"]", "x: line 2: files: 'a' is not an absolute path"),
        ("[keep]\nprogram = [\"a\"]", "x: line 2: unknown field `program`"),
        ("x", "x: line 1: "),
    ] {
        let error = error_of(&[("x", text)]);
        assert!(error.starts_with(says), "{text}: {error}");
    }
    let socket = format!("[metrics]\nsocket = \"/{}\"", "x".repeat(107));
    assert!(error_of(&[("x", &socket)]).contains("has 108 bytes; the path of a socket has at most 107"));
}

#[test]
fn issue_33_several_files() {
    let rule = |name: &str| format!("\n[[rule]]\nname = \"{name}\"\nprogram = \"/x\"\ndo = []\n");
    assert_eq!(
        error_of(&[("a\n.toml", &rule("one")), ("b.toml", &(rule("two") + &rule("one")))]),
        "b.toml: line 7: name: 'one' is the name of the rule in a\\n.toml: line 2 too"
    );
    for (table, text) in [
        ("limits", "[limits]\ncpu = \"1%\"\n"),
        ("metrics", "[metrics]\nport = 1\n"),
        ("keep", "[keep]\nprograms = [\"x\"]\n"),
    ] {
        assert_eq!(
            error_of(&[("a.toml", text), ("b.toml", ""), ("c.toml", &format!("\n{text}"))]),
            format!("c.toml: line 2: [{table}]: is given in a.toml: line 1 too; only one file may have it")
        );
    }
}

#[test]
fn issue_33_a_rule_that_hides_others() {
    let all = "[[rule]]\nname = \"all\"\ndo = [\"code\"]\n";
    let one = "[[rule]]\nname = \"one\"\nlarger_than = \"1M\"\ndo = [\"code\"]\n";
    let says = "rule: 'all' has no condition, and hides the rules behind it; move it to the end";
    assert_eq!(error_of(&[("a", &format!("{all}{one}"))]), format!("a: line 1: {says}"));
    assert_eq!(error_of(&[("a", all), ("b", one)]), format!("a: line 1: {says}"));
    let any = all.replace("\ndo", "\nany_user = true\ndo");
    assert_eq!(error_of(&[("a", &any), ("b", one)]), format!("a: line 1: {says}"));
    assert_eq!(Policy::parse(&[source("a", one), source("b", all)]).unwrap().rules().len(), 2);
}

#[test]
fn issue_33_too_much_is_refused() {
    let rule =
        |i: usize, program: &str| format!("[[rule]]\nname = \"{i}\"\nprogram = [{program}]\ndo = []\n");
    let many: String = (0..1001).map(|i| rule(i, "\"/x\"")).collect();
    assert_eq!(error_of(&[("a", &many)]), "a: line 4001: rule: more than 1000 rules");
    let long = rule(0, &format!("\"/{}\", ", "*?".repeat(2000)).repeat(40));
    assert!(error_of(&[("a", ""), ("b", &long)]).contains("have more than 131072 bytes"));
    for nested in ["{".repeat(4000), "{".repeat(2000) + &"}".repeat(2000), "[!a]".repeat(1000)] {
        let _ = Policy::parse(&[source("a", &rule(0, &format!("\"/{nested}\"")))]);
    }
}

proptest! {
    #[test]
    fn issue_33_any_text_is_taken_or_refused_in_one_line(
        text in "(\\[|\\[\\[rule\\]\\]\nname = \"a\"\ndo = \\[\\]\n|\\[limits\\]|\\[keep\\]|unit|user|cgroup|memory|budget|=|\\]|\"|[a-z0-9/*{}%]|\n| ){0,40}",
    ) {
        if let Err(error) = Policy::parse(&[source("f", &text)]) {
            prop_assert!(!error.contains('\n') && error.starts_with("f: "), "{}", error);
        }
    }
}
