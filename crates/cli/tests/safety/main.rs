// SPDX-License-Identifier: Apache-2.0
//! Tests that hugelift harms nothing and reports nothing wrong: one file for each boundary of
//! SECURITY.md, and one for the advice that hugelift gives.

#[path = "../common/mod.rs"]
mod common;

mod advice;
mod advised;
mod base;
mod day;
mod escapes;
mod files;
mod fork_guard;
mod host;
mod hostile;
mod launcher;
mod limits;
mod memory;
mod silent;
mod special;
mod store;
mod watchers;

/// SECURITY.md names the test of each boundary. This test finds names whose test was renamed or removed.
#[test]
fn security_md_names_only_tests_that_exist() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("../../SECURITY.md")).expect("SECURITY.md");
    let mut sources = String::new();
    // Those of what is pure stand beside it.
    let mut folders = vec![root.join("..")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|extension| extension == "rs") => {
                    sources += &std::fs::read_to_string(path).expect("a source file");
                }
                false => {}
            }
        }
    }
    let rows = page.lines().filter(|line| line.starts_with("| ") && line.contains('`'));
    let names: Vec<&str> = rows
        .filter_map(|row| row.rsplit('|').nth(1))
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect();
    assert!(names.len() > 40, "only {} names of tests were found in SECURITY.md", names.len());
    for name in names {
        let is_written = sources.contains(&format!("fn {name}(")) || sources.contains(&format!("({name},"));
        assert!(is_written, "SECURITY.md names {name}, but no test has this name");
    }
}
