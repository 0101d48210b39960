// SPDX-License-Identifier: Apache-2.0
//! All configuration files of the service together: a table that only one of them may have, and their rules.

use crate::printable::printable;
use crate::service::rule::Rule;
use crate::service::source::Source;
use crate::service::written::Written;
use crate::toml_text::Wrong;
use std::collections::BTreeMap;
use toml::Spanned;

/// More rules cannot be overlooked, and each is tried for each process.
const MOST_RULES: usize = 1000;
/// The bytes of all patterns. As many of the worst that were tried take 20 MB when they are prepared.
const MOST_PATTERNS: usize = 128 << 10;

/// A file, and what is written in it.
struct File<'s> {
    source: &'s Source,
    written: Written,
}

/// A table of a file.
struct Table<'f, T> {
    source: &'f Source,
    written: &'f Spanned<T>,
}

/// The files in the order in which their rules are tried.
pub struct Files<'s>(Vec<File<'s>>);

impl<'s> Files<'s> {
    /// Reads all files.
    ///
    /// # Errors
    /// Returns the file and the line that are wrong, and why.
    pub fn read(sources: &'s [Source]) -> Result<Files<'s>, String> {
        let read = |source: &'s Source| Ok(File { source, written: source.read()? });
        let files: Vec<File> = sources.iter().map(read).collect::<Result<_, String>>()?;
        check_amount(&files)?;
        Ok(Files(files))
    }

    /// Checks the table that only one of the files may have.
    ///
    /// # Errors
    /// Returns the file, the line and the key that are wrong, and why.
    pub fn check_only<'f, T: 'f, U>(
        &'f self,
        key: &str,
        of: impl Fn(&'f Written) -> Option<&'f Spanned<T>>,
        check: impl Fn(&T) -> Result<U, Wrong>,
    ) -> Result<Option<U>, String> {
        let Some(Table { source, written }) = self.only(key, of)? else { return Ok(None) };
        check(written.get_ref()).map(Some).map_err(|wrong| source.complain(&wrong.or_at(written.span())))
    }

    fn only<'f, T>(
        &'f self,
        key: &str,
        of: impl Fn(&'f Written) -> Option<&'f Spanned<T>>,
    ) -> Result<Option<Table<'f, T>>, String> {
        let table = |file: &'f File| Some(Table { source: file.source, written: of(&file.written)? });
        let mut tables = self.0.iter().filter_map(table);
        let first = tables.next();
        let (Some(one), Some(other)) = (&first, tables.next()) else { return Ok(first) };
        let place = one.source.place(one.written.span().start);
        let why = format!("is given in {place} too; only one file may have it");
        Err(other.source.complain(&Wrong::value(&format!("[{key}]"), other.written, why)))
    }

    /// Checks all rules, each by itself and all together.
    ///
    /// # Errors
    /// Returns the file, the line and the key that are wrong, and why.
    pub fn check_rules(&self) -> Result<Vec<Rule>, String> {
        let mut rules = Vec::new();
        for File { source, written } in &self.0 {
            for rule in &written.rules {
                rules.push(Rule::check(source, rule).map_err(|wrong| source.complain(&wrong))?);
            }
        }
        check_names(&rules)?;
        check_hidden(&rules)?;
        Ok(rules)
    }
}

/// Checks how much is written, before it is prepared.
fn check_amount(files: &[File]) -> Result<(), String> {
    let (mut rules, mut patterns) = (0, 0);
    for File { source, written } in files {
        for rule in &written.rules {
            rules += 1;
            patterns += rule.get_ref().pattern_bytes();
            let why = match (rules > MOST_RULES, patterns > MOST_PATTERNS) {
                (true, _) => format!("more than {MOST_RULES} rules"),
                (_, true) => format!("the patterns up to here have more than {MOST_PATTERNS} bytes"),
                (false, false) => continue,
            };
            return Err(source.complain(&Wrong::value("rule", rule, why)));
        }
    }
    Ok(())
}

fn check_names(rules: &[Rule]) -> Result<(), String> {
    let mut known = BTreeMap::new();
    for rule in rules {
        if let Some(other) = known.insert(&rule.name, &rule.place) {
            return Err(complain(
                rule,
                &format!("name: '{}' is the name of the rule in {other} too", rule.name),
            ));
        }
    }
    Ok(())
}

/// Checks that no rule takes all processes before the last rule can.
fn check_hidden(rules: &[Rule]) -> Result<(), String> {
    let Some((_, before)) = rules.split_last() else { return Ok(()) };
    match before.iter().find(|rule| rule.conditions.take_all()) {
        Some(rule) => Err(complain(
            rule,
            &format!(
                "rule: '{}' has no condition, and hides the rules behind it; move it to the end",
                rule.name
            ),
        )),
        None => Ok(()),
    }
}

fn complain(rule: &Rule, what: &str) -> String {
    format!("{}: {}", rule.place, printable(what))
}
