// SPDX-License-Identifier: Apache-2.0
//! How the help of each command ends: with an example (`-h`), or with the exit statuses and all examples
//! (`--help`, and the manual page).

mod table;
mod text;

use clap::Command;
pub use text::Ending;

impl Ending {
    /// Returns the end of the help of a command, named by the words behind `hugelift`.
    pub fn of(command: &str) -> Option<&'static Ending> {
        table::ALL.iter().find(|ending| ending.command == command)
    }
}

/// Adds their ends to the help of a command and of its subcommands.
pub fn added_to(command: Command) -> Command {
    added(command, "")
}

fn added(command: Command, path: &str) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|inner| inner.get_name().to_string()).collect();
    let command = names.iter().fold(command, |command, name| {
        let path = format!("{path} {name}");
        command.mut_subcommand(name, |inner| added(inner, path.trim_start()))
    });
    match Ending::of(path) {
        Some(ending) => command.after_help(ending.short()).after_long_help(ending.long()),
        None => command,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::definition;

    /// Calls `visit` with each command, and with the words behind `hugelift` that name it.
    fn each(command: &Command, path: &str, visit: &mut impl FnMut(&Command, &str)) {
        visit(command, path);
        for inner in command.get_subcommands() {
            each(inner, format!("{path} {}", inner.get_name()).trim_start(), visit);
        }
    }

    #[test]
    fn each_command_has_one() {
        let mut names = Vec::new();
        each(&definition(), "", &mut |command, path| {
            assert!(Ending::of(path).is_some(), "ending/table.rs lacks 'hugelift {path}'");
            let (short, long) = (command.clone().render_help(), command.clone().render_long_help());
            let (short, long) = (short.to_string(), long.to_string());
            assert!(short.contains("\nExample:\n  ") && !short.contains("Exit status"), "{short}");
            assert!(long.contains("\nExit status:\n  0") && long.contains("\nExamples:\n  "), "{long}");
            names.push(path.to_string());
        });
        let unknown: Vec<_> = table::ALL.iter().filter(|e| !names.iter().any(|n| n == e.command)).collect();
        assert!(unknown.is_empty(), "there are no such commands: {unknown:?}");
    }

    #[test]
    fn each_example_is_a_valid_command_line() {
        for ending in table::ALL {
            assert!(!ending.examples.is_empty(), "{ending:?}");
            for example @ (line, what) in ending.examples {
                let text = text::example(example);
                // What stands in front of `hugelift`, and behind a pipe or in $( ), is the shell's.
                let line = line.strip_prefix("sudo ").unwrap_or(line).replace("$(pidof mariadbd)", "4711");
                let words = shell_words::split(line.split(" | ").next().expect("a piece")).expect("words");
                assert_eq!(words[0], "hugelift", "{line}");
                let parsed = definition().try_get_matches_from(&words);
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
                let of_this = words[1..].join(" ").starts_with(ending.command);
                assert!(of_this, "'{line}' is an example of 'hugelift {}'", ending.command);
                assert!(!what.ends_with('.'), "{what}");
                let widest = text.lines().map(|line| line.chars().count()).max();
                assert!(widest < Some(95), "clap would break a line of\n{text}");
            }
        }
    }
}
