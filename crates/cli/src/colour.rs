// SPDX-License-Identifier: Apache-2.0
//! `--color`: whether output has colours. Nothing else decides it.

use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::io::IsTerminal;

/// When output has colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// On a terminal, unless NO_COLOR is set or TERM is dumb
    Auto,
    /// Also in a file or a pipe, and if NO_COLOR is set
    Always,
    /// Nowhere
    Never,
}

/// The option, which all commands have.
#[derive(Args, Clone, Copy, Debug)]
pub struct ColourArgs {
    /// When the output has colours
    #[arg(long = "color", id = "color", value_name = "WHEN", value_enum, default_value_t = When::Auto, global = true)]
    pub when: When,
}

impl When {
    /// Finds the option in a command line that clap has not accepted, or that asks for help.
    pub fn in_words(args: &[OsString]) -> When {
        let mut words = args.iter().map_while(|word| word.to_str()).take_while(|word| *word != "--");
        while let Some(word) = words.next() {
            let value = match word.strip_prefix("--color") {
                Some("") => words.next(),
                Some(rest) => rest.strip_prefix('='),
                None => None,
            };
            if let Some(when) = value.and_then(|value| When::from_str(value, false).ok()) {
                return when;
            }
        }
        When::Auto
    }

    /// Returns whether text on standard output has colours.
    pub fn on_stdout(self) -> bool {
        #[allow(clippy::disallowed_methods, reason = "asks about the terminal, and writes nothing")]
        self.on(std::io::stdout().is_terminal(), |name| std::env::var_os(name))
    }

    /// Decides it from what the stream is and from the environment.
    fn on(self, is_terminal: bool, variable: impl Fn(&str) -> Option<OsString>) -> bool {
        let is_unwanted = || variable("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_dumb = || variable("TERM").is_some_and(|term| term == "dumb");
        match self {
            When::Always => true,
            When::Never => false,
            When::Auto => is_terminal && !is_unwanted() && !is_dumb(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_then_the_environment_then_the_terminal() {
        let on = |when: When, is_terminal, name: &str, value: &str| {
            when.on(is_terminal, |asked| (asked == name).then(|| value.into()))
        };
        for (name, value, auto) in [
            ("", "", true),
            ("NO_COLOR", "1", false),
            ("NO_COLOR", "", true),
            ("TERM", "dumb", false),
            ("TERM", "xterm", true),
        ] {
            assert_eq!(on(When::Auto, true, name, value), auto, "{name}={value}");
            assert!(!on(When::Auto, false, name, value), "a pipe, {name}={value}");
            assert!(on(When::Always, false, name, value), "{name}={value}");
            assert!(!on(When::Never, true, name, value), "{name}={value}");
        }
    }

    #[test]
    fn in_a_command_line() {
        let of = |line: &str| When::in_words(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert_eq!(of("hugelift --color always --help"), When::Always);
        assert_eq!(of("hugelift run --color=never --help"), When::Never);
        for line in
            ["hugelift", "hugelift --color", "hugelift --color green", "hugelift run -- ls --color=always"]
        {
            assert_eq!(of(line), When::Auto, "{line}");
        }
    }
}
