// SPDX-License-Identifier: Apache-2.0
//! The files of the folder monitoring: their queries use only series and labels that the service has, and each series
//! is described there. promtool runs the rules and their tests, where it is installed.

mod common;

use common::{Format, Sample, full, parse};
use hugelift_service::metrics::series::{classic, open_metrics};
use regex::Regex;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// The labels that Prometheus gives to all series.
const OF_SCRAPE: [&str; 2] = ["job", "instance"];
/// Words of PromQL that are no names of series.
const WORDS: [&str; 8] = ["by", "without", "and", "or", "unless", "on", "ignoring", "offset"];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../monitoring")
}

fn read(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).unwrap()
}

fn yaml(name: &str) -> Value {
    serde_norway::from_str(&read(name)).unwrap()
}

fn dashboard() -> Value {
    serde_json::from_str(&read("dashboard.json")).unwrap()
}

/// Returns all strings that have this key, however deep.
fn strings<'a>(value: &'a Value, key: &str) -> Vec<&'a str> {
    match value {
        Value::Array(items) => items.iter().flat_map(|item| strings(item, key)).collect(),
        Value::Object(fields) => {
            let own = fields.get(key).and_then(Value::as_str);
            own.into_iter().chain(fields.values().flat_map(|field| strings(field, key))).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the labels of each series that the service has.
fn exported() -> BTreeMap<String, BTreeSet<String>> {
    let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for Sample { name, labels, .. } in parse(&open_metrics(&full()).unwrap(), Format::Open) {
        names.entry(name).or_default().extend(labels.into_keys());
    }
    names
}

/// The names in a query.
#[derive(Default, PartialEq, Eq, Debug)]
struct Names {
    series: BTreeSet<String>,
    labels: BTreeSet<String>,
}

/// Takes the names out of a query in PromQL. What is neither a function, a word of the language nor a label is a series.
fn names(query: &str) -> Names {
    let strings = Regex::new(r#""(?:[^"\\]|\\.)*""#).unwrap();
    let ranges = Regex::new(r"\[[^\]]*\]|\boffset\s+\w+").unwrap();
    let lists = Regex::new(r"\{([^}]*)\}|\b(?:by|without|on|ignoring)\s*\(([^)]*)\)").unwrap();
    let word = Regex::new(r"[A-Za-z_][A-Za-z0-9_:]*(\s*\()?").unwrap();
    let query = ranges.replace_all(&strings.replace_all(query, ""), "").into_owned();
    let mut found = Names::default();
    for list in lists.captures_iter(&query) {
        let inside = list.get(1).or(list.get(2)).unwrap().as_str();
        found.labels.extend(word.find_iter(inside).map(|label| label.as_str().into()));
    }
    for captures in word.captures_iter(&lists.replace_all(&query, "")) {
        if captures.get(1).is_none() && !WORDS.contains(&&captures[0]) {
            found.series.insert(captures[0].into());
        }
    }
    found
}

/// Checks that the service has all series and labels of a query.
fn check(query: &str) -> BTreeSet<String> {
    let exported = exported();
    let names = names(query);
    assert!(!names.series.is_empty(), "{query}");
    let mut labels: BTreeSet<String> = OF_SCRAPE.map(String::from).into();
    for name in names.series.iter().filter(|name| *name != "up") {
        let of_series = exported.get(name).unwrap_or_else(|| panic!("{query}: there is no series {name}"));
        labels.extend(of_series.iter().cloned());
    }
    assert!(names.labels.is_subset(&labels), "{query}: {:?} are not all in {labels:?}", names.labels);
    names.series
}

#[test]
fn issue_33_names_are_found_in_queries() {
    let query =
        r#"sum by (act) (rate(a_total{x="b{c}", y=~"d"}[5m] offset 1h)) / on(z) e > 5 * time() and f"#;
    let set = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
    assert_eq!(
        names(query),
        Names { series: set(&["a_total", "e", "f"]), labels: set(&["act", "x", "y", "z"]) }
    );
}

#[test]
fn issue_33_alerts_use_series_that_exist_and_say_what_to_do() {
    let alerts = yaml("alerts.yml");
    let rules = alerts["groups"][0]["rules"].as_array().unwrap();
    assert!(rules.len() >= 6);
    for rule in rules {
        check(rule["expr"].as_str().unwrap());
        let name = rule["alert"].as_str().unwrap();
        for key in ["summary", "description", "runbook"] {
            let text = rule["annotations"][key].as_str().unwrap_or_else(|| panic!("{name} has no {key}"));
            assert!(text.len() > 40 && text.ends_with('.'), "{name}: {text}");
        }
        assert!(rule["for"].is_string() && rule["labels"]["severity"].is_string(), "{name}");
        for label in labels_in_text(rule) {
            assert!(OF_SCRAPE.contains(&&label[..]) || label == "page_size", "{name}: {label}");
        }
    }
}

/// Returns the labels that the texts of a rule mention.
fn labels_in_text(rule: &Value) -> Vec<String> {
    let label = Regex::new(r"\$labels\.(\w+)").unwrap();
    let texts = rule["annotations"].to_string();
    label.captures_iter(&texts).map(|captures| captures[1].into()).collect()
}

#[test]
fn issue_33_panels_that_alerts_name_exist() {
    let dashboard = dashboard();
    let titles = strings(&dashboard, "title");
    let panel = Regex::new(r#"the panel "([^"]+)""#).unwrap();
    let alerts = yaml("alerts.yml");
    let runbooks = strings(&alerts, "runbook").join("\n");
    let named: Vec<String> = panel.captures_iter(&runbooks).map(|captures| captures[1].into()).collect();
    assert!(!named.is_empty());
    assert!(named.iter().all(|name| titles.contains(&&name[..])), "{named:?}: {titles:?}");
}

#[test]
fn issue_33_tests_of_alerts_use_series_that_exist_and_miss_no_alert() {
    let tests = yaml("alerts_test.yml");
    strings(&tests, "series").into_iter().for_each(|series| drop(check(series)));
    let text = read("alerts_test.yml");
    for alert in strings(&yaml("alerts.yml"), "alert") {
        assert!(text.contains(alert), "{alert} has no test");
    }
}

#[test]
fn issue_33_the_dashboard_shows_series_that_exist() {
    let dashboard = dashboard();
    let queries = strings(&dashboard, "expr");
    let shown: BTreeSet<String> = queries.into_iter().flat_map(check).collect();
    let missing: Vec<String> = exported().into_keys().filter(|name| !shown.contains(name)).collect();
    assert_eq!(missing, [""; 0], "the dashboard does not show them");
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if let Some(query) = variable["query"]["query"].as_str() {
            let inner = query.strip_prefix("label_values(").and_then(|q| q.rsplit_once(',')).unwrap().0;
            check(inner);
        }
    }
}

#[test]
fn issue_33_the_readme_lists_each_series_with_its_labels() {
    let readme = read("README.md");
    let row = Regex::new(r"(?m)^\| `(hugelift_\w+)` \|([^|]*)\|").unwrap();
    let described: BTreeMap<String, String> =
        row.captures_iter(&readme).map(|captures| (captures[1].into(), captures[2].into())).collect();
    let exported = exported();
    assert!(described.keys().eq(exported.keys()), "{described:?}");
    for (name, labels) in exported {
        assert!(
            labels.iter().all(|label| described[&name].contains(&format!("`{label}`"))),
            "{name}: {labels:?}"
        );
    }
}

#[test]
fn issue_33_promtool_accepts_the_rules_the_tests_and_the_text() {
    let promtool = |words: &[&str]| Command::new("promtool").current_dir(folder()).args(words).output();
    let Ok(checked) = promtool(&["check", "rules", "alerts.yml"]) else {
        println!("SKIP: there is no promtool");
        return;
    };
    for output in [checked, promtool(&["test", "rules", "alerts_test.yml"]).unwrap()] {
        assert!(output.status.success(), "{output:?}");
    }
    let output = promtool_check_metrics(&classic(&full()).unwrap());
    assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
}

/// Checks a text and its names by promtool.
fn promtool_check_metrics(text: &str) -> Output {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}
