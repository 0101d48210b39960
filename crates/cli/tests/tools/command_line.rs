// SPDX-License-Identifier: Apache-2.0
//! What all commands have in common: help, the version, `--color`.

use crate::common::recorded::Recorded;
use crate::common::run::{End, NO_STORE};
use crate::common::screen::Screen;
use crate::common::{Cmd, HUGELIFT, Outcome};
use clap::Command;

fn hugelift(words: &[&str]) -> Outcome {
    Cmd::new([HUGELIFT]).args(words).env("HUGELIFT_STORE", NO_STORE).bare()
}

/// Calls `look` with each command, and with the words that name it.
pub fn each(command: &Command, words: &[&str], look: &mut impl FnMut(&Command, &[&str])) {
    look(command, words);
    command.get_subcommands().for_each(|inner| each(inner, &[words, &[inner.get_name()]].concat(), look));
}

#[test]
fn each_command_explains_itself() {
    each(&hugelift_cli::definition(), &[], &mut |_, words| {
        let [short, long] = ["-h", "--help"].map(|option| hugelift(&[words, &[option]].concat()));
        for help in [&short, &long] {
            assert_eq!((help.end, help.stderr.as_str()), (End::Code(0), ""), "{words:?}: {help:?}");
            assert!(help.stdout.contains("\nUsage: hugelift"), "{}", help.stdout);
        }
        assert!(short.stdout.contains("\nExample:\n  "), "{}", short.stdout);
        assert!(
            long.stdout.contains("\nExit status:\n") && long.stdout.contains("\nExamples:\n"),
            "{words:?}"
        );
        assert!(long.stdout.len() > short.stdout.len(), "{words:?}");
    });
    let run = hugelift(&["run", "-h"]).stdout;
    for heading in ["Huge pages:", "What is lifted:", "How the program runs:", "Output:"] {
        assert!(run.lines().any(|line| line == heading), "{run}");
    }
}

/// As git does, but on stderr: who pipes the output of a command that does nothing gets no help in it.
#[test]
fn without_a_command_it_prints_help_and_fails() {
    for words in [&[][..], &["store"], &["lab"]] {
        let outcome = hugelift(words);
        assert_eq!((outcome.end, outcome.stdout.as_str()), (End::Code(2), ""), "{outcome:?}");
        assert!(
            outcome.stderr.contains("Usage: hugelift") && outcome.stderr.contains("Example:"),
            "{outcome:?}"
        );
    }
}

#[test]
fn the_version_names_commit_and_target() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(hugelift(&["-V"]).stdout, format!("hugelift {version}\n"));
    let long = hugelift(&["--version"]).stdout;
    let inside =
        long.strip_prefix(&format!("hugelift {version} (")).and_then(|rest| rest.strip_suffix(")\n"));
    let (commit, target) =
        inside.and_then(|inside| inside.split_once(", ")).unwrap_or_else(|| panic!("{long}"));
    assert!(target.starts_with(std::env::consts::ARCH) && target.contains("linux"), "{long}");
    let is_commit = commit.len() == 12 && commit.chars().all(|c| c.is_ascii_hexdigit());
    let is_named = option_env!("HUGELIFT_COMMIT").is_some_and(|named| named == commit);
    assert!(is_commit || is_named || commit == "debug build" || commit == "unknown", "{long}");
}

/// Returns whether what `hugelift` prints to a pipe has colours.
fn is_coloured(words: &[&str], no_color: &str) -> bool {
    let outcome = Cmd::new([HUGELIFT]).args(words).env("NO_COLOR", no_color).bare();
    assert!(!outcome.stdout.is_empty() && outcome.stderr.is_empty(), "{words:?}: {outcome:?}");
    outcome.stdout.contains('\x1b')
}

#[test]
fn color_decides_for_a_pipe() {
    let machine = Recorded::well_set();
    let root = machine.root().to_str().expect("UTF-8");
    for words in [&["--help"][..], &["run", "--help"], &["doctor", "--root", root]] {
        for (color, expected) in [("always", true), ("never", false), ("auto", false)] {
            let words = [&["--color", color], words].concat();
            assert_eq!(is_coloured(&words, ""), expected, "{words:?}");
            assert_eq!(is_coloured(&words, "1"), expected, "NO_COLOR {words:?}");
        }
    }
    // It may also stand behind the command.
    assert!(is_coloured(&["inspect", "--color=always", "--help"], ""));
    // Whatever the program prints is its own.
    assert_eq!(hugelift(&["--color=always", "run", "--", "echo", "--color=never"]).stdout, "--color=never\n");
    let wrong = hugelift(&["--color", "green", "doctor"]);
    assert_eq!(wrong.end, End::Code(125));
    assert!(wrong.own_lines()[0].contains("[possible values: auto, always, never]"), "{wrong:?}");
}

/// On a terminal `auto` means colours, unless NO_COLOR is set.
#[test]
fn color_decides_for_a_terminal() {
    for (before, color, expected) in [
        (&["env", "-u", "NO_COLOR"][..], "auto", true),
        (&["env", "-u", "NO_COLOR"], "never", false),
        (&["env", "NO_COLOR=1"], "auto", false),
        (&["env", "NO_COLOR=1"], "always", true),
    ] {
        let words = [before, &[HUGELIFT, "--color", color, "top", "--interval", "0.2"]].concat();
        let mut screen = Screen::start(&words, 24, 100);
        screen.until("the table", |text| text.contains("TEXT×CPU▾") && text.contains("try: "));
        assert_eq!(screen.is_coloured(), expected, "{words:?}");
        screen.press("q");
        assert_eq!(screen.end().0, End::Code(0));
    }
}
