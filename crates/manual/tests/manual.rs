// SPDX-License-Identifier: Apache-2.0
//! The manual pages and completions as the programs see them that read them. With `REQUIRE_ALL=1` in the
//! environment a skip is a failure.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

/// Makes the pages and completions in a folder.
fn made() -> TempDir {
    let folder = TempDir::new().expect("a folder");
    let out =
        Command::new(env!("CARGO_BIN_EXE_hugelift-manual")).arg(folder.path()).output().expect("it runs");
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
    folder
}

/// Returns what a program prints; none if there is no such program here.
fn output(program: &str, args: &[&str]) -> Option<Output> {
    match Command::new(program).args(args).env("LC_ALL", "C.UTF-8").env("MANWIDTH", "100").output() {
        Ok(out) => Some(out),
        Err(error) => {
            assert!(error.kind() == std::io::ErrorKind::NotFound, "{program}: {error}");
            assert!(std::env::var_os("REQUIRE_ALL").is_none_or(|v| v != "1"), "needs {program}");
            println!("SKIP: needs {program}");
            None
        }
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

fn path(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).to_str().expect("UTF-8").to_string()
}

/// Returns the names of all commands, as of their pages.
fn commands() -> BTreeSet<String> {
    fn add(command: &clap::Command, name: String, all: &mut BTreeSet<String>) {
        command.get_subcommands().for_each(|inner| add(inner, format!("{name}-{}", inner.get_name()), all));
        all.insert(name);
    }
    let mut all = BTreeSet::new();
    add(&hugelift_cli::definition(), "hugelift".into(), &mut all);
    all
}

#[test]
fn each_command_has_a_page_without_warnings() {
    let folder = made();
    let pages = fs::read_dir(folder.path().join("man")).expect("a folder");
    let names = pages.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"));
    let pages: BTreeSet<String> = names.map(|name| name.trim_end_matches(".1").to_string()).collect();
    assert_eq!(pages, commands());
    for name in &pages {
        let page = path(&folder, &format!("man/{name}.1"));
        let Some(out) = output("man", &["--warnings", "-l", "-Tutf8", &page]) else { return };
        assert!(out.status.success() && out.stderr.is_empty(), "{name}: {}", text(&out.stderr));
        // Letters that overstrike themselves are bold ones.
        let shown = plain(text(&out.stdout));
        for heading in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO"] {
            assert!(shown.lines().any(|line| line == heading), "{name}: no {heading} in\n{shown}");
        }
        assert!(shown.contains(&name.replacen('-', " ", 2)), "{shown}");
    }
}

/// Returns text without the bold and underlined letters of a line printer, and without SGR sequences.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\u{8}' => _ = out.pop(),
            '\x1b' => _ = letters.by_ref().find(char::is_ascii_alphabetic),
            other => out.push(other),
        }
    }
    out
}

/// Two runs give the same bytes.
#[test]
fn they_are_reproducible() {
    let (one, other) = (made(), made());
    for folder in ["man", "completions"] {
        for entry in fs::read_dir(one.path().join(folder)).expect("a folder") {
            let name = entry.expect("an entry").file_name();
            let of = |made: &TempDir| fs::read(made.path().join(folder).join(&name)).expect("a file");
            assert!(of(&one) == of(&other), "{folder}/{name:?}");
        }
    }
}

/// Returns what bash completes: the last of `words`, which may be empty.
fn completed_by_bash(file: &str, words: &[&str]) -> Vec<String> {
    let script = "source \"$1\"; shift
        COMP_WORDS=(\"$@\") COMP_CWORD=$(($# - 1)) COMP_LINE=\"$*\" COMP_POINT=${#COMP_LINE}
        function=$(complete -p hugelift | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
        $function hugelift \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"
        printf '%s\\n' \"${COMPREPLY[@]}\"";
    let args = [&["--norc", "-c", script, "bash", file], words].concat();
    let out = output("bash", &args).expect("tests need bash");
    assert!(out.status.success() && out.stderr.is_empty(), "{words:?}: {}", text(&out.stderr));
    text(&out.stdout).lines().map(str::to_string).collect()
}

#[test]
fn bash_completes() {
    let folder = made();
    let file = path(&folder, "completions/hugelift.bash");
    let of = |words: &[&str]| completed_by_bash(&file, words);
    assert_eq!(of(&["hugelift", "insp"]), ["inspect"]);
    assert_eq!(of(&["hugelift", "run", "--data-b"]), ["--data-backing"]);
    assert_eq!(of(&["hugelift", "run", "--backing", ""]), ["auto", "pagecache", "shared", "thp", "hugetlb"]);
    assert_eq!(of(&["hugelift", "pool", "set", "--per"]), ["--persist"]);
    assert_eq!(of(&["hugelift", "doctor", "--color", "al"]), ["always"]);
    let commands = of(&["hugelift", ""]);
    for name in ["run", "attach", "doctor", "lab"] {
        assert!(commands.iter().any(|command| command == name), "{commands:?}");
    }
}

#[test]
fn zsh_takes_its_file() {
    let folder = made();
    let file = path(&folder, "completions/_hugelift");
    let script = "autoload -U compinit && compinit -D && source $1 && whence -w _hugelift";
    let Some(out) = output("zsh", &["-f", "-c", script, "zsh", &file]) else { return };
    assert!(out.status.success(), "{out:?}");
    assert_eq!((text(&out.stdout), text(&out.stderr)), ("_hugelift: function\n", ""));
}

#[test]
fn fish_completes() {
    let folder = made();
    let file = path(&folder, "completions/hugelift.fish");
    let of = |line: &str| {
        let script = format!("source {file}; complete -C '{line}'");
        let out = output("fish", &["--no-config", "-c", &script])?;
        assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
        // A description follows behind a tab.
        let words = text(&out.stdout).lines().map(|line| line.split('\t').next().unwrap_or(line).to_string());
        Some(words.collect::<Vec<_>>())
    };
    let Some(commands) = of("hugelift insp") else { return };
    assert_eq!(commands, ["inspect"]);
    assert_eq!(of("hugelift run --data-b").expect("fish"), ["--data-backing"]);
    assert!(of("hugelift run --backing ").expect("fish").contains(&"hugetlb".to_string()));
}

/// Each option of each command is in the file of each shell.
#[test]
fn no_option_is_missing() {
    fn each(command: &clap::Command, look: &mut impl FnMut(&str)) {
        let options = command.get_arguments().filter(|option| !option.is_hide_set());
        options.filter_map(clap::Arg::get_long).for_each(&mut *look);
        command.get_subcommands().for_each(|inner| each(inner, look));
    }
    let folder = made();
    for name in ["hugelift.bash", "_hugelift", "hugelift.fish"] {
        let file = fs::read_to_string(Path::new(&path(&folder, "completions")).join(name)).expect("a file");
        each(&hugelift_cli::definition(), &mut |long| {
            let written = if name.ends_with(".fish") { format!("-l {long}") } else { format!("--{long}") };
            assert!(file.contains(&written), "{name} lacks {written}");
        });
    }
}
