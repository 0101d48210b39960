// SPDX-License-Identifier: Apache-2.0
//! ARCHITECTURE.md says of the tree what is so: which crate uses which, what each table lists, and each file that it names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect()
}

/// Returns the crates that a crate's manifest names among its dependencies.
fn used_by(name: &str) -> BTreeSet<String> {
    let manifest = page(&format!("crates/{name}/Cargo.toml"));
    let of_product = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
    let of_product = of_product.split("\n[").next().unwrap_or_default();
    let words = of_product.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
    words
        .filter_map(|word| match word {
            "hugelift" => Some("cli".to_string()),
            _ => word.strip_prefix("hugelift-").map(str::to_string),
        })
        .collect()
}

/// Returns what the drawing of the rooms says: `cli     uses  lift, report`, two crates in a line at most.
fn drawn() -> BTreeMap<String, BTreeSet<String>> {
    let text = page("ARCHITECTURE.md");
    let rooms = text.split("## The rooms").nth(1).expect("the chapter");
    let lines = rooms.lines().filter(|line| line.starts_with("    ") && line.contains(" uses "));
    let mut drawn = BTreeMap::new();
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let starts = (0..words.len()).filter(|i| words.get(i + 1) == Some(&"uses"));
        for start in starts {
            let used = words[start + 2..].iter().scan(true, |goes_on, word| {
                let here = *goes_on;
                *goes_on = word.ends_with(',');
                here.then(|| word.trim_end_matches(',').to_string())
            });
            drawn.insert(words[start].to_string(), used.collect());
        }
    }
    drawn
}

#[test]
fn the_rooms_are_drawn_as_they_are() {
    let crates = names(&root().join("crates"));
    let drawn = drawn();
    for name in &crates {
        let real = used_by(name);
        assert_eq!(drawn.get(name).cloned().unwrap_or_default(), real, "what {name} uses");
    }
    assert!(drawn.keys().all(|name| crates.contains(name)), "{drawn:?}");
    let table = page("ARCHITECTURE.md");
    for name in &crates {
        assert!(table.contains(&format!("\n| `{name}` | ")), "{name} is not in the table of the rooms");
    }
}

#[test]
fn a_lift_needs_neither_what_measures_nor_what_draws() {
    let mut needed = BTreeSet::new();
    let mut open = vec!["lift".to_string()];
    while let Some(name) = open.pop() {
        let used = used_by(&name);
        open.extend(used.iter().filter(|used| needed.insert((*used).clone())).cloned());
    }
    let expected = ["core", "heat", "inject", "inside", "linux", "pages"].map(str::to_string);
    assert_eq!(needed, BTreeSet::from(expected));
}

/// Returns whether a source is named by `words`: `X/src/Y.rs`, `X/src/Y/`, or `X/Y` for either, all below `crates`.
fn exists(words: &str) -> bool {
    let crates = root().join("crates");
    let path = words.trim_end_matches('/');
    let (name, rest) = path.split_once('/').expect("it has a slash");
    let rest = rest.strip_prefix("src/").unwrap_or(rest);
    let places = [crates.join(name).join("src").join(rest), crates.join(name).join(rest)];
    places
        .iter()
        .any(|place| place.exists() || place.with_extension("rs").exists() || place.join("mod.rs").exists())
}

#[test]
fn each_source_that_is_named_is_there() {
    let crates = names(&root().join("crates"));
    let mut pages: Vec<String> =
        ["ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"].map(String::from).to_vec();
    pages.extend(names(&root().join("docs/design")).iter().map(|name| format!("docs/design/{name}")));
    let mut count = 0;
    for name in pages {
        let text = page(&name);
        let is_word = |c: char| c.is_ascii_alphanumeric() || "_/.-".contains(c);
        for word in text.split(|c| !is_word(c)) {
            let word = word.trim_end_matches(['.', '/']);
            let Some((first, rest)) = word.split_once('/') else { continue };
            // `crates/X` is a path of the tree, `X/Y` one below `crates`.
            let word = if first == "crates" { rest } else { word };
            let first = if first == "crates" { rest.split('/').next().unwrap_or_default() } else { first };
            if crates.contains(first) && word.contains('/') {
                assert!(exists(word), "{name} names {word}");
                count += 1;
            }
        }
    }
    assert!(count > 100, "only {count} names were found");
}

/// Returns the names in the first column of the table that follows a line with `` `NAME`: `` alone.
fn listed(name: &str) -> BTreeSet<String> {
    let text = page("ARCHITECTURE.md");
    let rows = text.split(&format!("\n`{name}`:\n")).nth(1).unwrap_or_else(|| panic!("{name} has no table"));
    let rows =
        rows.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let names =
        rows.filter_map(|row| row.split('|').nth(1)).flat_map(|cell| cell.split('`').skip(1).step_by(2));
    names.map(|name| name.trim_end_matches('/').to_string()).collect()
}

#[test]
fn each_table_lists_the_modules_of_its_crate() {
    for name in ["core", "linux", "inject", "pages", "relink", "lift"] {
        let sources = names(&root().join("crates").join(name).join("src"));
        let mut modules: BTreeSet<String> =
            sources.iter().map(|file| file.strip_suffix(".rs").unwrap_or(file).to_string()).collect();
        modules.retain(|module| !["lib", "main", "tests"].contains(&module.as_str()));
        let listed = listed(name);
        let missing: Vec<_> = modules.difference(&listed).collect();
        let gone: Vec<_> = listed.difference(&modules).collect();
        assert!(missing.is_empty() && gone.is_empty(), "{name}: not listed {missing:?}; not there {gone:?}");
    }
}
