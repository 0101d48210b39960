// SPDX-License-Identifier: Apache-2.0
//! Which commands and options there are, by their own help, and which a line of a shell uses.

use crate::common::HUGELIFT;
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Commands whose first word that is no option begins another program's command line.
const STARTERS: [&str; 3] = ["run", "compare", "stat"];
/// What ends a command in a shell.
const SEPARATORS: [&str; 5] = ["|", "||", "&&", ";", "&"];

/// What the help of a command names.
pub struct Help {
    /// Each option, without its dashes, and whether the next word is its value.
    options: BTreeMap<String, bool>,
    commands: BTreeSet<String>,
}

impl Help {
    fn of(path: &[String]) -> Result<Help, String> {
        let out = Command::new(HUGELIFT).args(path).arg("--help").output().expect("hugelift runs");
        if !out.status.success() {
            return Err(format!("there is no command '{}'", path.join(" ")));
        }
        let text = String::from_utf8(out.stdout).expect("UTF-8");
        let option =
            Regex::new(r"(?m)^\s+(?:-(\w)(?:, )?)?(?:--([a-z0-9-]+))?(?:\.\.\.)?(\s?=?<)?").expect("a regex");
        let mut options = BTreeMap::new();
        for found in option.captures_iter(&text) {
            for name in [found.get(1), found.get(2)].into_iter().flatten() {
                *options.entry(name.as_str().to_string()).or_default() |= found.get(3).is_some();
            }
        }
        let command = Regex::new(r"(?m)^  ([a-z]+)(?:  |$)").expect("a regex");
        let commands = command.captures_iter(&text).map(|found| found[1].to_string()).collect();
        Ok(Help { options, commands })
    }
}

/// The help of the commands that were asked for so far.
#[derive(Default)]
pub struct Helps(BTreeMap<Vec<String>, Help>);

impl Helps {
    fn get(&mut self, path: &[String]) -> Result<&Help, String> {
        if !self.0.contains_key(path) {
            self.0.insert(path.to_vec(), Help::of(path)?);
        }
        Ok(&self.0[path])
    }
}

/// Returns the names of all commands.
pub fn all() -> BTreeSet<String> {
    let mut all = Help::of(&[]).expect("hugelift has help").commands;
    all.remove("help");
    assert!(all.len() > 10, "{all:?}");
    all
}

/// Returns the commands of hugelift in a script or a unit, each as one line.
pub fn of_script(text: &str) -> impl Iterator<Item = String> {
    let joined = text.replace("\\\n", " ");
    let start = Regex::new(r"(?m)^(?:Exec\w+=[-+]*\S*/)?(hugelift .*)$").expect("a regex");
    let found: Vec<String> = start.captures_iter(&joined).map(|line| line[1].to_string()).collect();
    found.into_iter()
}

/// Checks the commands of hugelift in a line of a shell. Returns how many there are. A line that only describes
/// commands (`hugelift store list|drop`) has none.
///
/// # Errors
/// A command or an option does not exist.
pub fn check(line: &str, helps: &mut Helps) -> Result<usize, String> {
    let is_pattern = |word: &str| word.contains(['|', '[', '…']) && !SEPARATORS.contains(&word);
    if !line.contains("hugelift") {
        return Ok(0);
    }
    // What `$(...)` prints is one word here.
    let line = Regex::new(r"\$\([^)]*\)").expect("a regex").replace_all(line, "word");
    let words = shell_words::split(&line).map_err(|e| e.to_string())?;
    let mut count = 0;
    for command in words.split(|word| SEPARATORS.contains(&word.as_str())) {
        let is_before = |word: &&String| *word == "sudo" || word.contains('=');
        let command = &command[command.iter().take_while(is_before).count()..];
        let Some((first, rest)) = command.split_first() else { continue };
        if first == "hugelift" && !rest.is_empty() && !rest.first().is_some_and(|word| is_pattern(word)) {
            check_one(rest, helps)?;
            count += 1;
        }
    }
    Ok(count)
}

fn check_one(words: &[String], helps: &mut Helps) -> Result<(), String> {
    let mut path: Vec<String> = Vec::new();
    for word in words {
        // A word in capitals stands for any command.
        if word == "COMMAND" {
            return Ok(());
        }
        if !word.starts_with('-') && (path.is_empty() || helps.get(&path)?.commands.contains(word)) {
            path.push(word.clone());
        } else {
            break;
        }
    }
    let help = helps.get(&path)?;
    let mut rest = words[path.len()..].iter();
    while let Some(word) = rest.next() {
        if word == "--" || word.starts_with(['>', '<']) || word.starts_with("2>") {
            return Ok(());
        }
        let unknown = || format!("'hugelift {}' has no option {word}", path.join(" "));
        let takes_next = if let Some(long) = word.strip_prefix("--") {
            let name = long.split(['=', '[']).next().unwrap_or(long);
            let takes = *help.options.get(name).ok_or_else(unknown)?;
            takes && !long.contains('=')
        } else if let Some(short) = word.strip_prefix('-').filter(|s| s.starts_with(char::is_alphabetic)) {
            // In `-vv` and `-Ansq` the letters are options; behind one that takes a value stands the value.
            let mut letters = short.chars();
            let mut takes = false;
            while let Some(letter) = letters.next().filter(|_| !takes) {
                takes = *help.options.get(&letter.to_string()).ok_or_else(unknown)?;
            }
            takes && letters.as_str().is_empty()
        } else if path.first().is_some_and(|name| STARTERS.contains(&name.as_str())) {
            return Ok(());
        } else {
            false
        };
        if takes_next {
            rest.next();
        }
    }
    Ok(())
}
