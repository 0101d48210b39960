// SPDX-License-Identifier: Apache-2.0
//! A command of `ExecStart=`: its prefixes, its program and its arguments (systemd.service(5), "Command lines").

use super::refusal::Refusal;
use super::words::{Variables, quoted, split_first};

/// The characters that may stand in front of a program. `|` starts it by a shell (systemd 258).
const PREFIXES: [char; 6] = ['-', '@', ':', '+', '!', '|'];
/// Programs that start others.
const SHELLS: [&str; 8] = ["sh", "bash", "dash", "ash", "zsh", "ksh", "busybox", "env"];

/// A command as it is written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// As in `-` or `+:`.
    prefixes: String,
    /// With its quotes and escapes.
    program: String,
    /// With their quotes and escapes.
    arguments: String,
}

impl Command {
    /// Reads the commands of one value of `ExecStart=`, which stand between lone semicolons.
    ///
    /// # Errors
    /// A command that systemd cannot read.
    pub fn read(value: &str) -> Result<Vec<Command>, Refusal> {
        let unreadable = || Refusal::Unreadable(value.to_string());
        let mut commands = Vec::new();
        let mut rest = value;
        loop {
            let (first, behind) = split_first(rest).ok_or_else(unreadable)?;
            if first.is_empty() {
                return Ok(commands);
            }
            let end = end_of_command(behind).ok_or_else(unreadable)?;
            if !is_separator(first) {
                let (arguments, behind) = behind.split_at(end);
                commands.push(Command::new(first, arguments.trim_end()).ok_or_else(unreadable)?);
                rest = behind.strip_prefix(';').unwrap_or(behind);
            } else {
                rest = behind;
            }
        }
    }

    /// Moves the prefixes, which may be behind an opening quote, in front of the program. Returns `None` if there is no
    /// program, or an escape may stand for a prefix.
    fn new(first: &str, arguments: &str) -> Option<Command> {
        let mut prefixes = String::new();
        let mut quotes = String::new();
        let mut rest = first;
        while let Some(character) =
            rest.chars().next().filter(|c| PREFIXES.contains(c) || matches!(c, '"' | '\''))
        {
            match character {
                '"' | '\'' => quotes.push(character),
                prefix => prefixes.push(prefix),
            }
            rest = &rest[character.len_utf8()..];
        }
        let has_program = !rest.is_empty() && !rest.starts_with('\\');
        let program = format!("{quotes}{rest}");
        has_program.then(|| Command { prefixes, program, arguments: arguments.to_string() })
    }

    /// Returns why this command cannot be started by hugelift, if it cannot.
    pub fn refusal(&self) -> Option<Refusal> {
        if self.is_wrapped() {
            return Some(Refusal::Wrapped(self.program.clone()));
        }
        let refused = self.prefixes.chars().find(|prefix| matches!(prefix, '@' | '|'));
        refused.map(|prefix| Refusal::Prefix(prefix, self.program.clone()))
    }

    /// Returns whether it is `hugelift run` already.
    pub fn is_wrapped(&self) -> bool {
        self.program_name() == "hugelift"
            && split_first(&self.arguments).is_some_and(|(word, _)| word == "run")
    }

    /// Returns whether the program is one that starts others.
    pub fn is_shell(&self) -> bool {
        SHELLS.contains(&self.program_name())
    }

    /// Returns the program without its quotes.
    pub fn program(&self) -> &str {
        self.program.trim_matches(['"', '\''])
    }

    fn program_name(&self) -> &str {
        let program = self.program();
        program.rsplit('/').next().unwrap_or(program)
    }

    /// Returns the value of `ExecStart=` by which hugelift starts the program.
    pub fn wrapped(&self, hugelift: &str, options: &[String]) -> String {
        let variables = if self.prefixes.contains(':') { Variables::Plain } else { Variables::Expanded };
        let own = |word: &str| quoted(word, variables);
        // In the first word systemd puts no variables, but in the arguments it does.
        let program = match variables {
            Variables::Expanded => self.program.replace('$', "$$"),
            Variables::Plain => self.program.clone(),
        };
        let words =
            [format!("{}{}", self.prefixes, quoted(hugelift, Variables::Plain)), "run".into()].into_iter();
        let words = words.chain(options.iter().map(|word| own(word))).chain(["--".into(), program]);
        let line = words.collect::<Vec<String>>().join(" ");
        if self.arguments.is_empty() { line } else { format!("{line} {}", self.arguments) }
    }
}

/// Returns whether a first word is `;`, with quotes or without.
fn is_separator(word: &str) -> bool {
    word.trim_matches(['"', '\'']) == ";"
}

/// Returns where the command ends: at a lone semicolon without quotes, or at the end of the text. Returns `None` if the text
/// cannot be read.
fn end_of_command(text: &str) -> Option<usize> {
    let mut rest = text;
    while !rest.is_empty() {
        let (word, behind) = split_first(rest)?;
        if word == ";" {
            break;
        }
        rest = behind;
    }
    Some(text.len() - rest.len())
}
