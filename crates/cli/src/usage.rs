// SPDX-License-Identifier: Apache-2.0
//! What is wrong with a command line, in one line as everything else that hugelift complains of.

use clap::error::ErrorKind;

/// What clap says in several lines, in one: what was given, what may have been meant, where to
/// read more. Nothing if it is no complaint: help was asked for, or is what helps.
pub fn complaint(error: &clap::Error, subcommand: &str) -> Option<String> {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return None;
    }
    let text = error.render().to_string();
    let is_told = |line: &&str| !line.starts_with("Usage:") && !line.starts_with("For more information");
    let told: Vec<&str> = text.lines().map(str::trim).take_while(is_told).filter(|l| !l.is_empty()).collect();
    let (tips, what): (Vec<&str>, Vec<&str>) = told.into_iter().partition(|line| line.starts_with("tip: "));
    let what = what.join(" ");
    let what = what.strip_prefix("error: ").unwrap_or(&what);
    let tips: String = tips.iter().map(|tip| format!("; {}", tip.trim_start_matches("tip: "))).collect();
    let help = ["hugelift", subcommand, "--help"].into_iter().filter(|word| !word.is_empty());
    Some(format!("{what}{tips}; all options: {}", help.collect::<Vec<_>>().join(" ")))
}

#[cfg(test)]
mod tests {
    use super::complaint;
    use crate::{Cli, subcommands};
    use clap::Parser;
    use std::ffi::OsString;

    fn of(words: &[&str]) -> Option<String> {
        let words = [&["hugelift"], words].concat();
        let error = Cli::try_parse_from(&words).err().expect("an error");
        complaint(&error, &subcommands(&words.iter().map(OsString::from).collect::<Vec<_>>()))
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
}
