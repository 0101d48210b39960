// SPDX-License-Identifier: Apache-2.0
//! Text of clap as Markdown.

/// Returns text of a help as Markdown for a cell of a table: options, paths and what is quoted become code.
pub fn cell(text: &str) -> String {
    text.split("\n\n").map(paragraph).collect::<Vec<_>>().join("<br>")
}

/// Returns code for a cell of a table.
pub fn code(text: &str) -> String {
    format!("`{}`", text.replace('|', "\\|"))
}

fn paragraph(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let starts_word = out.is_empty() || out.ends_with([' ', '(']);
        let (piece, length) = match (starts_word, first) {
            (_, '`') => quoted(rest, '`'),
            (true, '\'') => quoted(rest, '\''),
            (true, '-' | '/') => word(rest),
            _ => None,
        }
        .unwrap_or_else(|| (escaped(first), first.len_utf8()));
        out.push_str(&piece);
        rest = &rest[length..];
    }
    out
}

/// Returns what stands between two quotes as code, and the bytes that it takes with them.
fn quoted(text: &str, quote: char) -> Option<(String, usize)> {
    let inner = &text[1..text[1..].find(quote)? + 1];
    Some((code(inner), inner.len() + 2))
}

/// Returns an option or a path as code, and its bytes. Punctuation behind it is not part of it.
fn word(text: &str) -> Option<(String, usize)> {
    let word = text.split_whitespace().next()?.trim_end_matches([',', '.', ';', ':', ')']);
    word.contains(|c: char| c.is_ascii_alphabetic()).then(|| (code(word), word.len()))
}

/// Returns a character so that Markdown prints it as it is.
fn escaped(character: char) -> String {
    match character {
        '\n' => " ".into(),
        '|' | '*' => format!("\\{character}"),
        '<' => "&lt;".into(),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_paths_and_quotes_are_code() {
        for (text, expected) in [
            ("Say what (-vv: and why)", "Say what (`-vv`: and why)"),
            (
                "With --json, or with 'run --backing shared'.",
                "With `--json`, or with `run --backing shared`.",
            ),
            ("files in /etc/sysctl.d, or none", "files in `/etc/sysctl.d`, or none"),
            ("the program's own (-: stdout)", "the program's own (-: stdout)"),
            ("options of `hugelift run`", "options of `hugelift run`"),
            ("a|b <c> *", "a\\|b &lt;c> \\*"),
            ("one\n\ntwo\nlines", "one<br>two lines"),
            ("'open", "'open"),
        ] {
            assert_eq!(cell(text), expected);
        }
        assert_eq!(code("local|NODES"), "`local\\|NODES`");
    }
}
