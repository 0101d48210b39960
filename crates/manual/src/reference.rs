// SPDX-License-Identifier: Apache-2.0
//! What the pages of `docs/reference` say of options, exit statuses and examples. A page has it between two lines of
//! comment; all else in it is written by hand.

use crate::markdown::{cell, code};
use crate::shown;
use anyhow::{Context as _, Result, ensure};
use clap::builder::{PossibleValue, ValueRange};
use clap::{Arg, Command};
use hugelift_cli::Ending;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The first line of what is made.
const BEGIN: &str =
    "<!-- Made from the definition of the options: BLESS=1 cargo test -p hugelift-manual -->\n";
/// The line behind it.
const END: &str = "<!-- End of what is made. -->\n";

/// Writes what is made anew into the pages that have a place for it.
///
/// # Errors
/// A command has no page, a page of a command has no such place, or it cannot be read or written.
pub fn write_all(command: &Command, folder: &Path) -> Result<()> {
    let command = crate::built(command);
    let mut pages: BTreeSet<&str> = shown(&command).map(Command::get_name).collect();
    pages.extend(["index", "exit-status"]);
    for page in pages {
        let made = match page {
            "index" => index(&command),
            "exit-status" => exit_statuses(&command),
            name => of_command(&command, command.find_subcommand(name).context("its definition")?, &[name]),
        };
        let path = folder.join(page).with_extension("md");
        write(&path, &made).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn write(path: &Path, made: &str) -> Result<()> {
    let text = fs::read_to_string(path)?;
    let parts = text.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, behind) = parts.with_context(|| format!("it lacks the lines\n{BEGIN}{END}"))?;
    ensure!(!behind.contains(BEGIN), "it has two places for what is made");
    Ok(fs::write(path, format!("{before}{BEGIN}\n{made}\n{END}{behind}"))?)
}

/// Returns a table of all commands, and of the options that all of them have.
fn index(command: &Command) -> String {
    let row = |inner: &Command| {
        let name = inner.get_name();
        format!("| [{name}]({name}.md) | {} |\n", cell(&about(inner)))
    };
    let rows: String = shown(command).map(row).collect();
    let options: String = options(None, command).into_iter().map(|(_, table)| table).collect();
    format!("| command | what it does |\n|---|---|\n{rows}\nEach of them also takes:\n\n{options}")
}

/// Returns a table of the exit statuses of all commands; commands that follow each other and have the same share a
/// row.
fn exit_statuses(command: &Command) -> String {
    let mut rows: Vec<(Vec<String>, &Ending)> = Vec::new();
    each(command, &mut Vec::new(), &mut |words| {
        let Some(ending) = Ending::of(&words.join(" ")) else { return };
        let name =
            words.first().map_or("`hugelift`".into(), |page| format!("[`{}`]({page}.md)", words.join(" ")));
        match rows.last_mut() {
            Some((names, last)) if last.status == ending.status => names.push(name),
            _ => rows.push((vec![name], ending)),
        }
    });
    let row = |(names, ending): &(Vec<String>, &Ending)| {
        let statuses: Vec<String> =
            ending.status.iter().map(|(status, when)| format!("**{status}**: {}", cell(when))).collect();
        format!("| {} | {} |\n", names.join(", "), statuses.join("<br>"))
    };
    "| command | exit status |\n|---|---|\n".to_string() + &rows.iter().map(row).collect::<String>()
}

/// Calls `visit` with the words behind `hugelift` that name each command.
fn each<'a>(command: &'a Command, words: &mut Vec<&'a str>, visit: &mut impl FnMut(&[&str])) {
    visit(words);
    for inner in shown(command) {
        words.push(inner.get_name());
        each(inner, words, visit);
        words.pop();
    }
}

/// Returns the options, exit statuses and examples of a command, which these words name, and of its subcommands.
fn of_command(above: &Command, command: &Command, words: &[&str]) -> String {
    let mut text = String::new();
    let level = if let [_] = words {
        "##"
    } else {
        text += &format!("## hugelift {}\n\n{}.\n\n", words.join(" "), about(command));
        "###"
    };
    let usage = command.clone().render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
    text += &format!("{level} Options\n\n");
    usage.lines().for_each(|line| text += &format!("    {}\n", line.trim()));
    for (heading, table) in options(Some(above), command) {
        if let Some(heading) = heading {
            text += &format!("\n{heading}:\n");
        }
        text += &format!("\n{table}");
    }
    if let Some(ending) = Ending::of(&words.join(" ")) {
        text += &format!("\n{level} Exit status\n\n| status | when |\n|---|---|\n");
        ending.status.iter().for_each(|(status, when)| text += &format!("| {status} | {} |\n", cell(when)));
        text += &format!("\n{level} Examples\n");
        for (line, what) in ending.examples {
            text += &format!("\n{}:\n\n```console,norun=example\n$ {line}\n```\n", cell(&capital(what)));
        }
    }
    for inner in shown(command) {
        text += &format!("\n{}", of_command(command, inner, &[words, &[inner.get_name()]].concat()));
    }
    text
}

/// Returns a table for each heading of the help, without the options that each command has and without those of the
/// command above.
fn options(above: Option<&Command>, command: &Command) -> Vec<(Option<String>, String)> {
    let is_above = |arg: &Arg| {
        let same = |other: &Arg| other.is_global_set() && other.get_id() == arg.get_id();
        above.is_some_and(|above| above.get_arguments().any(same))
    };
    let is_everywhere = |arg: &Arg| ["help", "version"].contains(&arg.get_id().as_str());
    let shown = |arg: &&Arg| !arg.is_hide_set() && !is_everywhere(arg) && !is_above(arg);
    let mut args: Vec<&Arg> = command.get_arguments().filter(shown).collect();
    // As in the help: what has no dashes comes first, then what has no heading.
    args.sort_by_key(|arg| (!arg.is_positional(), arg.get_help_heading().is_some()));
    let mut tables: Vec<(Option<String>, String)> = Vec::new();
    for arg in args {
        let heading = arg.get_help_heading().map(str::to_string);
        let row = format!("| {} | {} |\n", name(arg), meaning(arg));
        match tables.iter_mut().find(|(other, _)| *other == heading) {
            Some((_, table)) => *table += &row,
            None => tables.push((heading, "| option | |\n|---|---|\n".to_string() + &row)),
        }
    }
    tables
}

/// Returns the names of an option with its value, or what stands for a word without dashes.
fn name(arg: &Arg) -> String {
    let values = arg.get_value_names().unwrap_or_default().join(" ");
    let range = arg.get_num_args().unwrap_or(ValueRange::EMPTY);
    let many = if range.max_values() > 1 { "…" } else { "" };
    if arg.is_positional() {
        return code(&format!("{values}{many}"));
    }
    let value = match (arg.get_action().takes_values(), range.min_values()) {
        (false, _) => String::new(),
        (true, 0) => format!("[={values}]"),
        (true, _) => format!(" {values}{many}"),
    };
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let mut names: Vec<String> = short.into_iter().chain(long).collect();
    if let Some(last) = names.last_mut() {
        *last += &value;
    }
    names.iter().map(|name| code(name)).collect::<Vec<_>>().join(", ")
}

/// Returns what an option does, its possible values, and its default.
fn meaning(arg: &Arg) -> String {
    let mut text = cell(&arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default());
    if arg.get_action().takes_values() && !arg.is_hide_possible_values_set() {
        let possible = arg.get_possible_values();
        for value in possible.iter().filter(|value| !value.is_hide_set()) {
            text += &format!("<br>{}", possible_value(value));
        }
    }
    let defaults = arg.get_default_values();
    if arg.get_action().takes_values() && !arg.is_hide_default_value_set() && !defaults.is_empty() {
        let defaults: Vec<_> = defaults.iter().map(|value| value.to_string_lossy()).collect();
        text += &format!("<br>[default: {}]", defaults.join(" "));
    }
    text
}

fn possible_value(value: &PossibleValue) -> String {
    let help = value.get_help().map(|help| format!(": {}", cell(&help.to_string())));
    code(value.get_name()) + &help.unwrap_or_default()
}

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
