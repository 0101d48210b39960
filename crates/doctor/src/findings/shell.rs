// SPDX-License-Identifier: Apache-2.0
//! Commands for sh(1).

/// Returns the command `echo VALUE > PATH`.
pub(super) fn write_command(value: impl std::fmt::Display, path: &str) -> String {
    format!("echo {value} > {}", quoted(path))
}

/// Returns a word for sh(1), in quotes where it needs them.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_string()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
