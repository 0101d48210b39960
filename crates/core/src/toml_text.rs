// SPDX-License-Identifier: Apache-2.0
//! Reads a configuration that is written as TOML, and says in one line what is wrong with it: the number
//! of the line, the key, and the reason.

use crate::printable::printable;
use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::ops::Range;
use toml::Spanned;

/// What is wrong with a text, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wrong {
    /// The bytes of the text that are wrong, if it is known which.
    at: Option<Range<usize>>,
    what: String,
}

impl Wrong {
    /// Says that the value of `key` is wrong.
    pub fn value<T>(key: &str, value: &Spanned<T>, why: impl Display) -> Wrong {
        Wrong::at(value.span(), format!("{key}: {why}"))
    }

    /// Says what is wrong with these bytes of the text.
    pub fn at(bytes: Range<usize>, what: String) -> Wrong {
        Wrong { at: Some(bytes), what }
    }

    /// Returns the same, at these bytes if it is about the text as a whole.
    #[must_use]
    pub fn or_at(self, bytes: Range<usize>) -> Wrong {
        Wrong { at: self.at.or(Some(bytes)), ..self }
    }

    /// Returns what is wrong with `text` in one line, which is safe for a terminal.
    pub fn in_text(&self, text: &str) -> String {
        let number = self.at.as_ref().and_then(|at| line_number(text, at.start));
        printable(&match number {
            Some(number) => format!("line {number}: {}", self.what),
            None => self.what.clone(),
        })
    }
}

/// Reads a text as TOML.
///
/// # Errors
/// Returns a syntax error, a key that is unknown or given twice, or a value of the wrong type.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<T, Wrong> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let message = error.message().replace('\n', ", ");
        let key = error.span().and_then(|at| key_before(text, at.start));
        Wrong { at: error.span(), what: key.map_or(message.clone(), |key| format!("{key}: {message}")) }
    })
}

/// Returns what `check` makes of the value of `key`, if the key is written.
///
/// # Errors
/// Returns what the check returns, with the place of the value.
pub fn checked<T, U>(
    key: &str,
    written: Option<&Spanned<T>>,
    check: impl Fn(&T) -> Result<U, String>,
) -> Result<Option<U>, Wrong> {
    written.map(|value| check(value.get_ref()).map_err(|e| Wrong::value(key, value, e))).transpose()
}

/// Returns the number of the line that holds the byte at `offset`, from 1.
pub fn line_number(text: &str, offset: usize) -> Option<usize> {
    text.get(..offset).map(|before| before.matches('\n').count() + 1)
}

/// Returns the key whose value begins in the same line and holds the byte at `offset`.
fn key_before(text: &str, offset: usize) -> Option<&str> {
    let line = text.get(..offset)?.rsplit('\n').next()?;
    let (key, _) = line.split_once('=')?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    Some(key.trim()).filter(|key| !key.is_empty() && key.chars().all(is_plain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize, Debug)]
    #[serde(deny_unknown_fields)]
    struct Example {
        size: Option<Spanned<String>>,
    }

    fn error_of(text: &str) -> String {
        read::<Example>(text).unwrap_err().in_text(text)
    }

    #[test]
    fn issue_33_an_error_has_its_line_and_its_key() {
        assert_eq!(error_of("\nsize = 5"), "line 2: size: invalid type: integer `5`, expected a string");
        assert_eq!(error_of("\n\nsise = \"5\""), "line 3: unknown field `sise`, expected `size`");
        assert!(error_of("size = \"").starts_with("line 1: size: "), "{}", error_of("size = \""));
        assert!(error_of("\nsize = \"1\"\nsize = \"2\"").starts_with("line 3: "));
        assert!(!error_of("\"si\\u001bze\" = 1").contains('\x1b'));
    }

    #[test]
    fn issue_33_a_value_is_found_again() {
        let text = "# ä\nsize = \"x\"\n";
        let size = read::<Example>(text).unwrap().size.unwrap();
        assert_eq!(Wrong::value("size", &size, "is\nodd").in_text(text), "line 2: size: is\\nodd");
        assert_eq!(Wrong { at: None, what: "all of it".into() }.in_text(text), "all of it");
    }

    #[test]
    fn issue_33_deep_nesting_is_refused() {
        let text = format!("size = {}", "[".repeat(100_000));
        assert!(error_of(&text).len() < 300);
    }
}
