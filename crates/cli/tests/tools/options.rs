// SPDX-License-Identifier: Apache-2.0
//! Each option of each command is in a command line of a test. Tests of those that several commands share.

use super::command_line::each;
use crate::common::{Cmd, End, HUGELIFT, Held, Primed, fat, plain};
use regex::Regex;
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

/// What a file of tests has in its strings.
#[derive(Default)]
struct Strings {
    /// All words: the command must be among them.
    words: BTreeSet<String>,
    /// The options in strings that are words of command lines: not in messages, nor in what output is searched for.
    options: BTreeSet<String>,
}

/// Calls of these run `hugelift run` without its name.
const RUNS: [&str; 4] = ["lifted(", "Held::start(", "each_way(", "each_backing("];
/// What output is searched for is an argument of these.
const SEARCHES: [&str; 5] = ["contains(", "starts_with(", "ends_with(", "matches(", "expect("];
/// Comments, strings and characters of Rust. `\x22` and `\x27` are quotation marks, since this file is read too.
const TOKEN: &str = concat!(
    r"(?s)//[^\n]*|r##\x22(.*?)\x22##|r#\x22(.*?)\x22#|r\x22([^\x22]*)\x22",
    r"|\x22((?:[^\x22\\]|\\.)*)\x22|\x27(?:\\?.)\x27"
);

impl Strings {
    fn of(source: &str) -> Strings {
        let token = Regex::new(TOKEN).expect("a regex");
        let mut found = Strings::default();
        for one in token.captures_iter(source) {
            let Some(text) = (1..=4).find_map(|group| one.get(group)) else { continue };
            let text = text.as_str().replace("\\\n", " ").replace("\\n", " ");
            let bare = |word: &'_ str| word.trim_matches(['\'', ';', ')']).to_string();
            let words: Vec<String> = text.split_whitespace().map(bare).collect();
            let Some(first) = words.first() else { continue };
            let is_line = words.len() == 1 || first.starts_with('-') || text.contains("hugelift ");
            let before = source[..one.get(0).map_or(0, |all| all.start())].trim_end();
            let before = before.trim_end_matches("format!(").trim_end_matches('&');
            if is_line && !SEARCHES.iter().any(|call| before.ends_with(call)) {
                let names = words.iter().map(|word| word.split('=').next().unwrap_or(word));
                found.options.extend(names.filter(|name| name.starts_with('-')).map(String::from));
            }
            found.words.extend(words);
        }
        if RUNS.iter().any(|call| source.contains(call)) {
            found.words.insert("run".into());
        }
        found
    }

    fn has_option(&self, long: Option<&str>, short: Option<char>) -> bool {
        let is_long = |long| self.options.contains(&format!("--{long}"));
        // In `-vv` and `-Ansq` the letters are options.
        let letters = |word: &&String| !word.starts_with("--");
        let is_short = |short| self.options.iter().filter(letters).any(|word| word[1..].contains(short));
        long.is_some_and(is_long) || short.is_some_and(is_short)
    }
}

/// Reads the files of a folder. Those of a module call each other's functions, so they have their words together.
fn read(folder: &Path, all: &mut Vec<Strings>) {
    let mut here: Vec<Strings> = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            read(&entry, all);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            here.push(Strings::of(&fs::read_to_string(&entry).expect("a file")));
        }
    }
    if folder.join("mod.rs").exists() {
        let together: BTreeSet<String> = here.iter().flat_map(|file| file.words.clone()).collect();
        here.iter_mut().for_each(|file| file.words.clone_from(&together));
    }
    all.append(&mut here);
}

#[test]
fn each_option_of_each_command_is_in_a_test() {
    let mut files = Vec::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"), &mut files);
    let mut missing = Vec::new();
    each(&hugelift_cli::definition(), &[], &mut |command, words| {
        let of_command = |file: &&Strings| words.iter().all(|word| file.words.contains(*word));
        for option in command.get_arguments().filter(|option| !option.is_positional()) {
            // It is each command's. command_line::color_decides_for_a_pipe tries some.
            if option.is_global_set() && !words.is_empty() {
                continue;
            }
            let (long, short) = (option.get_long(), option.get_short());
            if !files.iter().filter(of_command).any(|file| file.has_option(long, short)) {
                missing.push(format!(
                    "{} {}",
                    words.join(" "),
                    long.map(String::from).unwrap_or_else(|| format!("{short:?}"))
                ));
            }
        }
    });
    assert!(missing.is_empty(), "no test in crates/cli/tests has a command line with {missing:#?}");
}

/// What only looks like a command line with an option is none.
#[test]
fn messages_and_comments_do_not_count() {
    let source = r##"
        // run("--comment")
        fn f() { run("top", "--used"); run(&["--also=1", "-vx"]); sh("hugelift top --inner 'x'"); let c = '"'; }
        assert!(text.contains("--searched"));
        assert!(line.starts_with(&format!("--begun {x}")));
        assert_eq!(line, "use --advised instead");
        let raw = r#"--raw "quoted" --more"#;
    "##;
    let found = Strings::of(source);
    let expected = ["--also", "--inner", "--more", "--raw", "--used", "-vx"].map(String::from);
    assert_eq!(found.options, BTreeSet::from(expected));
    assert!(found.words.contains("top") && !found.words.contains("run"));
    assert!(found.has_option(None, Some('x')) && !found.has_option(Some("searched"), Some('y')));
}

fn pages(options: &[&str], program: &Path) -> u64 {
    let done = Cmd::new([HUGELIFT, "pool", "need", "--json"]).args(options).args([program]).bare();
    let json: Value =
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{options:?}: {e}: {done:?}"));
    json["pages"]["2097152"].as_u64().unwrap_or(0)
}

/// The options that say what `run` lifts say for how much `pool need` counts pages.
#[test]
fn pool_need_counts_what_the_options_choose() {
    let program = fat("hold").flags(&["-static"]).build();
    let of = |options: &[&str]| pages(options, &program);
    let all = of(&[]);
    let (text, rodata) = (of(&["--parts", "text"]), of(&["--parts", "rodata"]));
    assert!(text > 0 && rodata > 0 && text + rodata == all, "{text} + {rodata} = {all}");
    for nothing in [["--object", "none*"], ["--exclude", "*"], ["--page-size", "1G"]] {
        assert_eq!(of(&nothing), 0, "{nothing:?}");
    }
    for same in [["--page-size", "2M"], ["--numa", "interleave"], ["--spare", "64M"], ["--span", "inner"]] {
        assert_eq!(of(&same), all, "{same:?}");
    }
    let writes = plain("writes").flags(&["-static", "-DNO_FORK"]).build();
    let data = |backing| pages(&["--parts", "data,bss", "--data-backing", backing], &writes);
    assert_eq!((data("thp"), data("hugetlb") > 4), (0, true), "data needs {} pages", data("hugetlb"));
    let done = Cmd::new([HUGELIFT, "pool", "need", "--numa", "63"]).args([&program]).bare();
    assert!(done.end == End::Code(125) && done.stderr.contains("--numa 63: node 63"), "{done:?}");
}

/// Returns the bytes of a process that are huge, by inspect.
fn huge(pid: u32) -> u64 {
    let done = Cmd::new([HUGELIFT, "inspect", "--json", &pid.to_string()]).bare();
    let json: Value = serde_json::from_str(&done.stdout).expect("JSON of inspect");
    let totals = json["totals"].as_object().expect("totals");
    totals.values().map(|total| total["huge_bytes"].as_u64().expect("a number")).sum()
}

/// `attach` and `inspect` heed the options that say where, and which objects.
#[test]
fn attach_lifts_what_the_options_choose() {
    // A file of its own: other tests may have made the page cache of the usual one huge.
    let program = fat("hold").flags(&["-DOF_OPTIONS"]).build();
    let held = Held::start(&Cmd::new([&program]), None, &program);
    let pid = held.pid().to_string();
    let attach = |options: &[&str]| {
        Cmd::new([HUGELIFT, "attach", "--whole", "--backing", "thp"]).args(options).args([&pid]).bare()
    };
    let none = attach(&["--object", "none*"]);
    assert!(huge(held.pid()) == 0 && none.stdout.contains("excluded by a pattern"), "{none:?}");
    let refused = attach(&["--numa", "63"]);
    assert!(refused.end == End::Code(125) && refused.stderr.contains("--numa 63: node 63"), "{refused:?}");
    let name = program.file_name().and_then(OsStr::to_str).expect("a name");
    let options = ["--object", name, "--numa", "local", "--span", "inner", "--data-backing", "thp"];
    let done = attach(&options);
    assert!(done.end == End::Code(0) && huge(held.pid()) > 4 << 20, "{done:?}");

    // Huge pages of the page cache, which the lift or the linker may have made, have no place on other nodes: with them
    // another way is chosen, at another address.
    let small = Primed::small(&program);
    let inspect =
        |options: &[&str]| Cmd::new([HUGELIFT, "inspect", "-v"]).args(options).args([small.path()]).bare();
    let plain = inspect(&[]);
    let same = inspect(&["--numa", "interleave", "--spare", "64M"]);
    assert_eq!((same.end, &same.stdout), (End::Code(0), &plain.stdout), "{same:?}");
    let refused = inspect(&["--numa", "63"]);
    assert!(refused.end == End::Code(125) && refused.stderr.contains("--numa 63: node 63"), "{refused:?}");
}

/// A name or pattern that is longer than any path matches nothing. It is refused before much time and memory are used for it.
#[test]
fn issue_29_c14_a_pattern_that_is_longer_than_any_path() {
    let dir = tempfile::TempDir::new().unwrap();
    let config = dir.path().join("service.toml");
    let config = config.to_str().unwrap();
    let stars = "*".repeat(1 << 19);
    for line in [format!("files = [\"/{stars}\"]"), format!("files = [\"/x\"]\nexclude = [\"{stars}\"]")] {
        fs::write(config, format!("[keep]\n{line}")).unwrap();
        refuses_a_long_pattern(&["service", "check", "--config", config]);
    }
    // execve(2) takes no word of 128 kB.
    let stars = &stars[..100_000];
    refuses_a_long_pattern(&["attach", "--whole", "--name", stars]);
    for option in ["--object", "--exclude"] {
        refuses_a_long_pattern(&["inspect", option, stars, "true"]);
        refuses_a_long_pattern(&["run", option, stars, "true"]);
    }
}

fn refuses_a_long_pattern(words: &[&str]) {
    let outcome = Cmd::new([HUGELIFT]).args(words).bare();
    let line = outcome.stderr.trim_end();
    assert_eq!((outcome.end, outcome.stdout.as_str()), (End::Code(125), ""), "{line}");
    assert!(line.contains("bytes, and no path has more than 4096") && line.len() < 300, "{line}");
}
