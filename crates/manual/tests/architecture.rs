// SPDX-License-Identifier: Apache-2.0
//! ARCHITECTURE.md says of the tree what is so: which crate uses which, what each table lists, and each file that it names. So do
//! the tables of modules at the head of sources.

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
    first_column(rows)
}

/// Returns the names in the first column of rows of a table, without what only leads documentation to them: `mod@` and `()`.
fn first_column<'t>(rows: impl Iterator<Item = &'t str>) -> BTreeSet<String> {
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let plain = |name: &str| name.trim_start_matches("mod@").trim_end_matches(['/', '(', ')']).to_string();
    names.map(plain).collect()
}

/// Panics unless `listed` are `modules`.
fn must_list(place: &str, listed: &BTreeSet<String>, modules: &BTreeSet<String>) {
    let missing: Vec<_> = modules.difference(listed).collect();
    let gone: Vec<_> = listed.difference(modules).collect();
    assert!(missing.is_empty() && gone.is_empty(), "{place}: not listed {missing:?}; not there {gone:?}");
}

/// Returns the names in the table of modules in the comment at the head of a source, if it has one.
fn listed_at_head(source: &str) -> Option<BTreeSet<String>> {
    let head = source.lines().filter_map(|line| line.strip_prefix("//!")).map(str::trim_start);
    let rows = head.skip_while(|line| !line.starts_with("| module")).take_while(|line| line.starts_with('|'));
    let names = first_column(rows);
    (!names.is_empty()).then_some(names)
}

/// Returns the modules that a source declares, but for those of its tests.
fn declared(source: &str) -> BTreeSet<String> {
    let lines: Vec<&str> = source.lines().collect();
    let name = |line: &str| {
        let (before, name) = line.strip_suffix(';')?.split_once("mod ")?;
        (before.is_empty() || before.starts_with("pub")).then(|| name.to_string())
    };
    let declared = lines.iter().enumerate().filter(|(at, _)| *at == 0 || lines[at - 1] != "#[cfg(test)]");
    declared.filter_map(|(_, line)| name(line)).collect()
}

/// Finds the sources of a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for name in names(folder) {
        let path = folder.join(&name);
        match path.is_dir() {
            true => sources(&path, found),
            false if name.ends_with(".rs") => found.push(path),
            false => {}
        }
    }
}

#[test]
fn each_table_at_the_head_of_a_source_lists_its_modules() {
    let crates = root().join("crates");
    let mut found = Vec::new();
    names(&crates).iter().for_each(|name| sources(&crates.join(name).join("src"), &mut found));
    let mut with_table = BTreeSet::new();
    for path in found {
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let place = path.strip_prefix(&crates).expect("below crates").display().to_string();
        if let Some(listed) = listed_at_head(&text) {
            must_list(&place, &listed, &declared(&text));
            with_table.insert(place);
        }
    }
    for wanted in ["cli/src/lib.rs", "measure/src/lib.rs", "relink/src/separate/mod.rs", "service/src/lib.rs"]
    {
        assert!(with_table.contains(wanted), "{wanted} has no table of its modules");
    }
}

#[test]
fn each_table_lists_the_modules_of_its_crate() {
    for name in ["core", "linux", "inject", "pages", "relink", "lift"] {
        let sources = names(&root().join("crates").join(name).join("src"));
        let mut modules: BTreeSet<String> =
            sources.iter().map(|file| file.strip_suffix(".rs").unwrap_or(file).to_string()).collect();
        modules.retain(|module| !["lib", "main", "tests"].contains(&module.as_str()));
        must_list(name, &listed(name), &modules);
    }
}
