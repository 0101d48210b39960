// SPDX-License-Identifier: Apache-2.0
//! The pages of `docs/reference` say of options, exit statuses and examples what the definition of the command says.
//! `BLESS=1 cargo test -p hugelift-manual` writes them anew.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;
use tempfile::TempDir;

const PAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference");

/// Held while the pages of the repository are written or copied.
static PAGES_IN_USE: Mutex<()> = Mutex::new(());

/// Writes what is made into the pages of a folder.
fn make(folder: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hugelift-manual"))
        .arg("--reference")
        .arg(folder)
        .output()
        .expect("it runs")
}

fn must(out: &Output) {
    assert!(out.status.success() && out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// Returns the pages of a folder.
fn pages(folder: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let pages = entries.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let named = |path: &Path| path.file_name().expect("a name").to_str().expect("UTF-8").to_string();
    pages.map(|path| (named(&path), fs::read_to_string(&path).expect("a page"))).collect()
}

/// Returns a folder with copies of the pages.
fn copies() -> TempDir {
    let folder = TempDir::new().expect("a folder");
    let _use = PAGES_IN_USE.lock();
    for (name, text) in pages(Path::new(PAGES)) {
        fs::write(folder.path().join(name), text).expect("write");
    }
    folder
}

#[test]
fn the_pages_are_those_of_the_definition() {
    if std::env::var_os("BLESS").is_some() {
        let _use = PAGES_IN_USE.lock();
        must(&make(Path::new(PAGES)));
    }
    let folder = copies();
    must(&make(folder.path()));
    let (there, made) = (pages(Path::new(PAGES)), pages(folder.path()));
    let old: Vec<&String> =
        made.iter().filter(|(name, text)| there[*name] != **text).map(|(n, _)| n).collect();
    assert!(old.is_empty(), "not up to date: {old:?}: BLESS=1 cargo test -p hugelift-manual");
    for (page, expected) in [
        ("run.md", "\n| `--strict` | Do not start the program (exit 125)"),
        ("run.md", "\n| `--perf-map[=NAMES]` | "),
        ("pool.md", "\n## hugelift pool set\n"),
        ("exit-status.md", "\n| [`pool need`](pool.md) | **0**: the pools hold enough pages<br>**1**: "),
        ("index.md", "\n| [run](run.md) | Start a program"),
        ("index.md", "\n| `--color WHEN` | "),
    ] {
        assert!(made[page].contains(expected), "{page} lacks '{expected}':\n{}", made[page]);
    }
}

/// What is written by hand stays; what was made is made anew.
#[test]
fn only_what_is_made_changes() {
    let folder = copies();
    must(&make(folder.path()));
    let page = folder.path().join("align.md");
    let text = fs::read_to_string(&page).expect("the page");
    let changed = text.replace("# hugelift align\n", "# By hand\n").replace("| `--dry-run` |", "| `--old` |");
    assert!(changed.contains("# By hand\n") && changed.contains("| `--old` |"), "{changed}");
    fs::write(&page, changed).expect("write");
    must(&make(folder.path()));
    let made = fs::read_to_string(&page).expect("the page");
    assert_eq!(made, text.replace("# hugelift align\n", "# By hand\n"));
}

#[test]
fn a_page_without_a_place_is_named() {
    let folder = copies();
    fs::write(folder.path().join("align.md"), "# hugelift align\n").expect("write");
    let out = make(folder.path());
    let said = String::from_utf8(out.stderr).expect("UTF-8");
    assert!(
        !out.status.success() && said.contains("align.md") && said.contains("it lacks the lines"),
        "{said}"
    );
    fs::remove_file(folder.path().join("align.md")).expect("remove");
    let out = make(folder.path());
    let said = String::from_utf8(out.stderr).expect("UTF-8");
    assert!(!out.status.success() && said.contains("align.md"), "{said}");
}
