// SPDX-License-Identifier: Apache-2.0
//! The words of `ExecStart=`: where each one ends, and how a word is written so that systemd reads it as it is
//! (`extract_first_word` in systemd's src/basic/extract-word.c).

use super::syntax::BLANKS;
use std::fmt::Write as _;

/// Splits `text` behind its first word, which keeps its quotes and escapes. The rest begins with its next word. Both are
/// empty if there is no word. Returns `None` if a quote is not closed, or an escape has no end.
pub fn split_first(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start_matches(BLANKS);
    let mut quote = None;
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match (character, quote) {
            ('\\', _) => _ = characters.next()?,
            (_, Some(open)) if character == open => quote = None,
            (_, Some(_)) => {}
            ('"' | '\'', None) => quote = Some(character),
            (_, None) if BLANKS.contains(&character) => {
                let (word, rest) = text.split_at(at);
                return Some((word, rest.trim_start_matches(BLANKS)));
            }
            (_, None) => {}
        }
    }
    quote.is_none().then_some((text, ""))
}

/// Returns whether systemd puts the values of variables into a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Variables {
    /// It does: `$` is written as `$$`.
    Expanded,
    /// It does not, as behind the prefix `:`.
    Plain,
}

/// Writes a word so that systemd passes it on as it is: with quotes if it needs them, and with `%` and `$` doubled.
pub fn quoted(word: &str, variables: Variables) -> String {
    let mut text = String::new();
    for character in word.chars() {
        match character {
            '%' => text.push_str("%%"),
            '$' if variables == Variables::Expanded => text.push_str("$$"),
            '\\' | '"' => text.extend(['\\', character]),
            // UTF-8 in octal digits or as it is: systemd takes no NUL, and no word of a command line has one.
            character if character.is_ascii_control() => _ = write!(text, "\\x{:02x}", u32::from(character)),
            character => text.push(character),
        }
    }
    let is_plain =
        |character: char| !BLANKS.contains(&character) && !matches!(character, '\'' | '"' | ';' | '#');
    if !word.is_empty() && word.chars().all(is_plain) { text } else { format!("\"{text}\"") }
}
