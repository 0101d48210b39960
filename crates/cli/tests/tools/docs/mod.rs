// SPDX-License-Identifier: Apache-2.0
//! Tests that the documentation is true: its links lead somewhere, all its pages are in the book, the commands and
//! options that it names exist, and its blocks of commands print what they show.

pub mod book;
mod commands;
pub mod console;

use book::{Page, pages};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A README that is longer is not read.
const MOST_LINES: usize = 200;

pub fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// Fails with all of `faults`, a line each.
pub fn none(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn the_readme_is_short() {
    let lines = std::fs::read_to_string(top().join("README.md")).expect("README.md").lines().count();
    assert!(
        lines <= MOST_LINES,
        "README.md has {lines} lines: what is more than {MOST_LINES} belongs to docs/"
    );
}

#[test]
fn all_links_lead_somewhere() {
    let pages = pages(&top());
    let mut faults = Vec::new();
    let mut count = 0;
    for page in &pages {
        for link in page.links.iter().filter(|link| !link.is_external()) {
            count += 1;
            if let Err(why) = link.resolve(&top(), page, &pages) {
                faults.push(format!("{}:{}: {}: {why}", page.path.display(), link.line, link.to));
            }
        }
    }
    none(&faults);
    assert!(count > 100, "only {count} links were found");
}

/// A reader of the book has no other files of the repository. mdBook makes `index.html` of a `README.md`, and leaves links
/// to `README.md` as they are.
#[test]
fn pages_of_the_book_lead_to_pages_of_the_book() {
    let pages = pages(&top());
    let outside = |page: &Page, to: &str| {
        let path = book::joined(&page.path, to);
        !path.starts_with("docs") || (path.ends_with("README.md") && !page.path.ends_with("SUMMARY.md"))
    };
    let faults: Vec<String> = pages
        .iter()
        .filter(|page| page.is_in_book())
        .flat_map(|page| page.links.iter().map(move |link| (page, link)))
        .filter(|(page, link)| !link.is_external() && outside(page, &link.to))
        .map(|(page, link)| format!("{}:{}: {}", page.path.display(), link.line, link.to))
        .collect();
    none(&faults);
}

#[test]
fn the_summary_has_each_page_once() {
    let pages = pages(&top());
    let summary =
        pages.iter().find(|page| page.path == Path::new("docs/SUMMARY.md")).expect("docs/SUMMARY.md");
    let listed: Vec<PathBuf> =
        summary.links.iter().map(|link| book::joined(&summary.path, &link.to)).collect();
    let once: BTreeSet<&Path> = listed.iter().map(PathBuf::as_path).collect();
    assert_eq!(once.len(), listed.len(), "a page is listed twice: {listed:?}");
    let there = pages.iter().filter(|page| page.is_in_book() && page.path != summary.path);
    assert_eq!(once, there.map(|page| page.path.as_path()).collect(), "left: listed, right: there");
}

#[test]
fn each_command_has_a_page() {
    let missing: Vec<String> = commands::all()
        .into_iter()
        .filter(|name| !top().join(format!("docs/reference/{name}.md")).exists())
        .collect();
    none(&missing);
}

/// Blocks of commands, commands in the text, and the examples.
#[test]
fn each_command_and_option_exists() {
    let top = top();
    let mut lines: Vec<(String, String)> = Vec::new();
    for page in pages(&top) {
        let at = |line: usize| format!("{}:{line}", page.path.display());
        for block in &page.blocks {
            lines.extend(block.commands().map(|step| (at(block.line), step.line)));
        }
        lines.extend(page.spans.iter().map(|(line, span)| (at(*line), span.clone())));
    }
    for folder in ["examples/compare", "examples/systemd", "systemd"] {
        for file in std::fs::read_dir(top.join(folder)).expect("a folder") {
            let file = file.expect("a file").path();
            let text = std::fs::read_to_string(&file).expect("a text");
            lines.extend(commands::of_script(&text).map(|line| (file.display().to_string(), line)));
        }
    }
    let mut helps = commands::Helps::default();
    let mut faults = Vec::new();
    let mut count = 0;
    for (place, line) in &lines {
        match commands::check(line, &mut helps) {
            Ok(found) => count += found,
            Err(why) => faults.push(format!("{place}: {line}: {why}")),
        }
    }
    none(&faults);
    assert!(count > 100, "only {count} commands were found");
}

#[test]
fn blocks_print_what_they_show() {
    let mut faults = Vec::new();
    let mut count = 0;
    for page in pages(&top()) {
        for block in page.blocks.iter().filter(|block| block.is_console()) {
            let place = format!("{}:{}", page.path.display(), block.line);
            match block.may_run() {
                Err(why) => faults.push(format!("{place}: {why}")),
                Ok(false) => {}
                Ok(true) => {
                    count += 1;
                    faults.extend(console::run(block).into_iter().map(|why| format!("{place}: {why}")));
                }
            }
        }
    }
    none(&faults);
    assert!(count >= 10, "only {count} blocks were run");
}

#[test]
fn the_scripts_of_the_examples_can_be_read() {
    for script in std::fs::read_dir(top().join("examples/compare")).expect("examples/compare") {
        let script = script.expect("a file").path();
        crate::common::build::must(std::process::Command::new("bash").arg("-n").arg(script));
    }
}
