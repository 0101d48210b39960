// SPDX-License-Identifier: Apache-2.0
//! Manual pages, one a command: `hugelift.1`, `hugelift-run.1`, `hugelift-pool-set.1`.

use crate::shown;
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use hugelift_cli::Ending;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

/// Writes the pages of a command and of its subcommands.
///
/// # Errors
/// The folder or a page cannot be written.
pub fn write_all(command: &Command, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let command = crate::built(command);
    let source = format!("{} {}", command.get_name(), command.get_version().unwrap_or_default());
    write(&command, &source, &[], folder)
}

/// Writes the page of the command that these words behind `hugelift` name, and those of its subcommands.
fn write(command: &Command, source: &str, words: &[&str], folder: &Path) -> io::Result<()> {
    let man = Man::new(command.clone()).source(source).manual("hugelift");
    fs::write(folder.join(man.get_filename()), page(&man, command, words)?)?;
    for inner in shown(command) {
        write(inner, source, &[words, &[inner.get_name()]].concat(), folder)?;
    }
    Ok(())
}

fn page(man: &Man, command: &Command, words: &[&str]) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    writeln!(page, ".\\\" Made from the definition of the options by ci/manual.sh.")?;
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if shown(command).next().is_some() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut rest = Roff::new();
    if let Some(ending) = Ending::of(&words.join(" ")) {
        exit_status(&mut rest, ending);
        examples(&mut rest, ending.examples);
    }
    see_also(&mut rest, command, words);
    rest.to_writer(&mut page)?;
    once(page)
}

/// Leaves the definition of the apostrophe, which each section begins with, only at the first of them.
fn once(page: Vec<u8>) -> io::Result<Vec<u8>> {
    let page = String::from_utf8(page).map_err(io::Error::other)?;
    let definition = Roff::new().render();
    let (before, rest) = page.split_once(&definition).unwrap_or(("", &page));
    Ok([before, &definition, &rest.replace(&definition, "")].concat().into_bytes())
}

fn exit_status(roff: &mut Roff, ending: &Ending) {
    roff.control("SH", ["EXIT STATUS"]);
    for (status, when) in ending.status {
        roff.control("TP", []);
        roff.text([bold(*status)]);
        roff.text([roman(*when)]);
    }
}

fn examples(roff: &mut Roff, examples: &[(&str, &str)]) {
    roff.control("SH", ["EXAMPLES"]);
    for (line, what) in examples {
        roff.control("PP", []);
        roff.text([roman(format!("{what}:"))]);
        roff.control("PP", []);
        roff.control("RS", ["4"]);
        roff.control("nf", []);
        line.lines().for_each(|line| _ = roff.text([roman(line)]));
        roff.control("fi", []);
        roff.control("RE", []);
    }
}

/// Names the pages of the command above and of those below.
fn see_also(roff: &mut Roff, command: &Command, words: &[&str]) {
    let own = ["hugelift"].iter().chain(words).copied().collect::<Vec<_>>();
    let above = own.split_last().map(|(_, above)| above.join("-")).filter(|above| !above.is_empty());
    let below = shown(command).map(|inner| format!("{}-{}", own.join("-"), inner.get_name()));
    let mut text: Vec<Inline> = Vec::new();
    for name in above.into_iter().chain(below) {
        if !text.is_empty() {
            text.push(roman(", "));
        }
        text.extend([bold(name), roman("(1)")]);
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text(text);
}
