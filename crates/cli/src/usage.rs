// SPDX-License-Identifier: Apache-2.0
//! Answers a command line that runs no command: with help, with the version, or with an error. The error is one line,
//! as all messages of hugelift.

use crate::FAILED;
use crate::colour::When;
use clap::error::ErrorKind;
use hugelift_linux::io::console;

/// The exit status if no command is given, as git and others return it. It is neither success nor a failure of
/// hugelift.
const NO_COMMAND: i32 = 2;

/// Returns the exit status.
pub fn status(error: &clap::Error) -> i32 {
    match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => NO_COMMAND,
        _ if error.use_stderr() => FAILED,
        _ => 0,
    }
}

/// Prints help or the version on standard output. Prints the help on stderr if a command is missing.
pub fn show(error: &clap::Error, when: When) {
    let text = error.render();
    // It fails only if no process reads the output.
    let _ = match (error.use_stderr(), when.on_stdout()) {
        (true, _) => console::print_to_stderr(&text.to_string()),
        (false, true) => console::print_coloured(&text.ansi().to_string()),
        (false, false) => console::print(&text.to_string()),
    };
}

/// Returns clap's message of several lines as one line: what was given, what may have been meant,
/// and which command lists all options. Returns `None` where clap prints help instead.
pub fn complaint(error: &clap::Error, subcommand: &str) -> Option<String> {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return None;
    }
    let text = error.render().to_string();
    let in_message = |line: &&str| !line.starts_with("Usage:") && !line.starts_with("For more information");
    let lines = text.lines().map(str::trim).take_while(in_message).filter(|line| !line.is_empty());
    let (tips, what): (Vec<&str>, Vec<&str>) = lines.partition(|line| line.starts_with("tip: "));
    let what = what.join(" ");
    let what = what.strip_prefix("error: ").unwrap_or(&what);
    let tips: String = tips.iter().map(|tip| format!("; {}", tip.trim_start_matches("tip: "))).collect();
    let help = ["hugelift", subcommand, "--help"].into_iter().filter(|word| !word.is_empty());
    Some(format!("{what}{tips}; all options: {}", help.collect::<Vec<_>>().join(" ")))
}

#[cfg(test)]
mod tests {
    use super::{complaint, status};
    use crate::command_line::{definition, subcommands};
    use std::ffi::OsString;

    fn error(words: &[&str]) -> clap::Error {
        definition().try_get_matches_from([&["hugelift"], words].concat()).expect_err("an error")
    }

    fn of(words: &[&str]) -> Option<String> {
        let all: Vec<OsString> = [&["hugelift"], words].concat().iter().map(OsString::from).collect();
        complaint(&error(words), &subcommands(&all))
    }

    #[test]
    fn one_line_says_what_was_given_and_what_helps() {
        let line = of(&["run", "--page-sise", "2m", "true"]).expect("a complaint");
        let expected = "unexpected argument '--page-sise' found; a similar argument exists: '--page-size'; \
                        to pass '--page-sise' as a value, use '-- --page-sise'; all options: hugelift run --help";
        assert_eq!(line, expected);
        let line = of(&["run"]).expect("a complaint");
        let expected = "the following required arguments were not provided: <PROG> [ARGS]...; \
                        all options: hugelift run --help";
        assert_eq!(line, expected);
        let line = of(&["store", "drop"]).expect("a complaint");
        assert!(
            line.contains("--all") && line.ends_with("all options: hugelift store drop --help"),
            "{line}"
        );
        let line = of(&["nonsense"]).expect("a complaint");
        assert!(line.contains("'nonsense'") && line.ends_with("all options: hugelift --help"), "{line}");
        let line = of(&["run", "--backing", "foo", "true"]).expect("a complaint");
        assert!(line.contains("'foo'") && line.contains("[possible values: auto, pagecache"), "{line}");
        assert_eq!(line.lines().count(), 1);
    }

    #[test]
    fn help_is_no_complaint() {
        for words in [&["--help"][..], &["run", "--help"], &["--version"], &[]] {
            assert_eq!(of(words), None, "{words:?}");
        }
    }

    #[test]
    fn exit_statuses() {
        for (words, expected) in [
            (&["--help"][..], 0),
            (&["run", "-h"], 0),
            (&["--version"], 0),
            (&[], 2),
            (&["store"], 2),
            (&["nonsense"], 125),
            (&["run", "--nonsense"], 125),
        ] {
            assert_eq!(status(&error(words)), expected, "{words:?}");
        }
    }
}
