// SPDX-License-Identifier: Apache-2.0
//! Makes untrusted text safe for a terminal, a line or a JSON document.
//!
//! Other people choose the bytes of names of files, processes and symbols, of strings in ELF files and
//! of command lines. A control character in them moves the cursor, forges a line or changes the
//! window's title. So no such text is displayed as it is:
//!
//! - An [`Untrusted`] holds such a string. Its `Display` escapes; the bytes themselves are kept.
//! - [`Escape::escaped`] displays a borrowed path or string. `clippy.toml` forbids `Path::display` and
//!   similar functions in the crates of the program.
//! - [`printable`] escapes a line of text that contains such strings already.
//! - [`printable_lines`] escapes everything that goes to standard output.
//! - [`json`] writes JSON: the value is exact, and nothing in it acts on a terminal.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fmt::{self, Display, Write as _};
use std::ops::Deref;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Displays untrusted bytes. Characters that act on a terminal, and bytes that are not UTF-8, are
/// escaped as in C and Rust (`\n`, `\x1b`, `\u{202e}`, `\xff`).
///
/// A backslash stays as it is, so that escaping twice is the same as escaping once. [`json`] has exact
/// values.
#[derive(Clone, Copy)]
pub struct Escaped<'a>(&'a [u8]);

impl Escaped<'_> {
    fn write_to(self, out: &mut impl fmt::Write) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            escape(chunk.valid(), out)?;
            for byte in chunk.invalid() {
                write!(out, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.width().is_none() && f.precision().is_none() {
            return self.write_to(f);
        }
        // `pad` counts the characters that are shown.
        let mut text = String::new();
        self.write_to(&mut text)?;
        f.pad(&text)
    }
}

fn escape(text: &str, out: &mut impl fmt::Write) -> fmt::Result {
    for c in text.chars() {
        match c {
            c if !acts(c) => out.write_char(c)?,
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            c if c.is_ascii() => write!(out, "\\x{:02x}", u32::from(c))?,
            c => write!(out, "\\u{{{:x}}}", u32::from(c))?,
        }
    }
    Ok(())
}

/// Returns whether a character acts on the terminal: it controls it, changes the direction of the text
/// around it, or is invisible.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Text that may be untrusted.
pub trait Escape {
    /// Returns the text for display: see [`Escaped`].
    fn escaped(&self) -> Escaped<'_>;
}

impl Escape for Path {
    fn escaped(&self) -> Escaped<'_> {
        Escaped(self.as_os_str().as_bytes())
    }
}

impl Escape for OsStr {
    fn escaped(&self) -> Escaped<'_> {
        Escaped(self.as_bytes())
    }
}

impl Escape for str {
    fn escaped(&self) -> Escaped<'_> {
        Escaped(self.as_bytes())
    }
}

impl Escape for [u8] {
    fn escaped(&self) -> Escaped<'_> {
        Escaped(self)
    }
}

/// An untrusted string or path. Its `Display` escapes.
///
/// In JSON it is a string, or an array of numbers if it is not UTF-8: `{"bytes": [47, 255]}`.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Untrusted(OsString);

impl Untrusted {
    /// Returns the string as it is, for comparison and for system calls.
    pub fn as_os_str(&self) -> &OsStr {
        &self.0
    }
}

impl fmt::Display for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.escaped().fmt(f)
    }
}

impl fmt::Debug for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Most of them are paths.
impl Deref for Untrusted {
    type Target = Path;

    fn deref(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl AsRef<Path> for Untrusted {
    fn as_ref(&self) -> &Path {
        self
    }
}

impl From<&[u8]> for Untrusted {
    fn from(bytes: &[u8]) -> Untrusted {
        Untrusted(OsString::from_vec(bytes.to_vec()))
    }
}

impl From<&Path> for Untrusted {
    fn from(path: &Path) -> Untrusted {
        Untrusted(path.as_os_str().to_os_string())
    }
}

impl From<PathBuf> for Untrusted {
    fn from(path: PathBuf) -> Untrusted {
        Untrusted(path.into_os_string())
    }
}

impl From<&PathBuf> for Untrusted {
    fn from(path: &PathBuf) -> Untrusted {
        path.as_path().into()
    }
}

impl From<&OsStr> for Untrusted {
    fn from(text: &OsStr) -> Untrusted {
        Untrusted(text.to_os_string())
    }
}

impl From<OsString> for Untrusted {
    fn from(text: OsString) -> Untrusted {
        Untrusted(text)
    }
}

impl From<&OsString> for Untrusted {
    fn from(text: &OsString) -> Untrusted {
        text.as_os_str().into()
    }
}

impl From<&str> for Untrusted {
    fn from(text: &str) -> Untrusted {
        Untrusted(text.into())
    }
}

impl From<String> for Untrusted {
    fn from(text: String) -> Untrusted {
        Untrusted(text.into())
    }
}

impl PartialEq<str> for Untrusted {
    fn eq(&self, other: &str) -> bool {
        self.0 == *other
    }
}

impl PartialEq<&str> for Untrusted {
    fn eq(&self, other: &&str) -> bool {
        self.0 == **other
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Form {
    Text(String),
    Bytes { bytes: Vec<u8> },
}

impl Serialize for Untrusted {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.to_str() {
            Some(text) => serializer.serialize_str(text),
            None => Form::Bytes { bytes: self.0.as_bytes().to_vec() }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Untrusted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Untrusted, D::Error> {
        Ok(match Form::deserialize(deserializer)? {
            Form::Text(text) => text.into(),
            Form::Bytes { bytes } => Untrusted(OsString::from_vec(bytes)),
        })
    }
}

/// Returns the text of a file that is to be parsed, such as one of /proc. It is not for display: make
/// an [`Untrusted`] of each piece that is shown.
pub fn text_to_parse(bytes: &[u8]) -> Cow<'_, str> {
    #[allow(clippy::disallowed_methods, reason = "parsers search it for their own words")]
    String::from_utf8_lossy(bytes)
}

/// Quotes a word for a shell. If it needs escapes, the result is for shells that support `$'...'`: bash,
/// zsh, ksh, busybox and POSIX of 2024.
pub fn quoted(word: &OsStr) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    match word.to_str() {
        Some(text) if !text.is_empty() && text.chars().all(plain) => text.to_string(),
        Some(text) if !text.contains(acts) => format!("'{}'", text.replace('\'', r"'\''")),
        _ => {
            let byte = |b: &u8| match b {
                b'\'' | b'\\' => format!("\\{}", char::from(*b)),
                b' '..=b'~' => char::from(*b).to_string(),
                _ => format!("\\{b:03o}"),
            };
            format!("$'{}'", word.as_bytes().iter().map(byte).collect::<String>())
        }
    }
}

/// Quotes the path of a file for a shell, so that a command takes it for no option: `./-x` for `-x`.
pub fn quoted_path(path: &Path) -> String {
    match path.as_os_str().as_bytes().first() {
        Some(b'-') => quoted(Path::new(".").join(path).as_os_str()),
        _ => quoted(path.as_os_str()),
    }
}

/// Returns the text as one line: [`Escaped`], including line feeds.
pub fn printable(text: &str) -> String {
    text.escaped().to_string()
}

/// Returns text of several lines for a terminal: line feeds and tabs stay, and all other characters
/// that act on a terminal are escaped.
pub fn printable_lines(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for piece in text.split_inclusive(['\n', '\t']) {
        let body = piece.trim_end_matches(['\n', '\t']);
        // Writing to a String cannot fail.
        let _ = escape(body, &mut out);
        out.push_str(&piece[body.len()..]);
    }
    out
}

/// Escapes as [`printable_lines`] does, but keeps colours (`ESC [ digits m`), which hugelift itself has
/// put into the text.
pub fn printable_coloured(text: &str) -> String {
    let mut pieces = text.split("\x1b[");
    let mut out = printable_lines(pieces.next().unwrap_or_default());
    for piece in pieces {
        let rest = piece.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';');
        out.push_str(if rest.starts_with('m') { "\x1b[" } else { "\\x1b[" });
        out += &printable_lines(piece);
    }
    out
}

/// Returns a value as JSON, in one line. Characters that act on a terminal can be in strings only, and
/// are escaped there by JSON's rules: the value is exact.
///
/// # Errors
/// Returns the errors of [`serde_json::to_string`].
pub fn json<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<String> {
    #[allow(clippy::disallowed_methods, reason = "this is the function to be used instead")]
    let text = serde_json::to_string(value)?;
    if !text.contains(acts) {
        return Ok(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if acts(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    Ok(out)
}

/// Returns a whole number in groups of three digits: `3213400` as `3 213 400`.
pub fn thousands(number: impl Display) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn is_harmless(text: &str) -> bool {
        !text.contains(acts)
    }

    #[test]
    fn digits_in_groups() {
        let shown = ["", "1", "123", "1234", "3213400"].map(thousands);
        assert_eq!(shown, ["", "1", "123", "1 234", "3 213 400"]);
    }

    #[test]
    fn escaped_text_does_not_move_the_cursor() {
        assert_eq!(printable("a\nb\x1b[2J\u{9b}\t\u{7f}ä\\"), "a\\nb\\x1b[2J\\u{9b}\\t\\x7fä\\");
        assert_eq!(OsStr::from_bytes(b"a\xff\xc3\n").escaped().to_string(), "a\\xff\\xc3\\n");
        assert_eq!(printable("gpj.\u{202e}exe"), "gpj.\\u{202e}exe");
    }

    #[test]
    fn lines_stay_lines_and_colours_are_for_text_with_colours() {
        assert_eq!(printable_lines("a\tb\n\r\x1b[1mc\n\n"), "a\tb\n\\r\\x1b[1mc\n\n");
        assert_eq!(printable_coloured("\x1b[1;31mred\x1b[0m\x1b[2J\x1b]0;t\x07"), {
            "\x1b[1;31mred\x1b[0m\\x1b[2J\\x1b]0;t\\x07"
        });
    }

    #[test]
    fn a_shell_gets_the_word_back() {
        let words: [&[u8]; 5] =
            [b"", b"it's \\ a $HOME", b"a\x1b[2J\n\xff'\\", "\u{202e}x".as_bytes(), b"/usr/bin/x"];
        for word in words {
            let line = format!("printf %s {}", quoted(OsStr::from_bytes(word)));
            assert!(is_harmless(&line), "{line:?}");
            let out = std::process::Command::new("bash").args(["-c", &line]).output().unwrap();
            assert_eq!(out.stdout, word, "{line}");
        }
    }

    #[test]
    fn a_width_counts_what_is_shown() {
        assert_eq!(format!("{:<6}|", Untrusted::from("a\n")), "a\\n   |");
    }

    proptest! {
        #[test]
        fn untrusted_bytes_do_not_act_on_a_terminal(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let outside = Untrusted::from(&bytes[..]);
            for shown in [outside.to_string(), format!("{outside:?}"), bytes.escaped().to_string()] {
                prop_assert!(is_harmless(&shown), "{shown:?}");
            }
        }

        #[test]
        fn no_text_acts_on_a_terminal_and_escaping_twice_is_escaping_once(text in "(\\PC|\\pC|.|\n){0,40}") {
            let once = printable(&text);
            prop_assert!(is_harmless(&once), "{once:?}");
            prop_assert_eq!(printable(&once), once.clone());
            let lines = printable_lines(&text);
            prop_assert!(is_harmless(&lines.replace(['\n', '\t'], "")), "{lines:?}");
            prop_assert_eq!(printable_lines(&lines), lines.clone());
            prop_assert_eq!(lines.matches('\n').count(), text.matches('\n').count());
            prop_assert_eq!(printable_lines(&once), once);
        }

        #[test]
        fn of_an_escape_sequence_only_colours_pass(text in "(\x1b\\[|\x1b|[0-9;]|m|J|\x07|a|\n){0,30}") {
            let shown = printable_coloured(&text);
            for after in shown.split('\x1b').skip(1) {
                let rest = after.strip_prefix('[').expect("a bracket");
                prop_assert!(rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with('m'));
            }
            prop_assert!(is_harmless(&shown.replace(['\n', '\x1b'], "")), "{shown:?}");
        }

        #[test]
        fn plain_text_is_shown_as_it_is(text in "[ -~äöüß漢字]{0,40}") {
            prop_assert_eq!(printable(&text), text.clone());
            prop_assert_eq!(Untrusted::from(text.clone()).to_string(), text);
        }

        #[test]
        fn json_is_exact_and_acts_on_no_terminal(bytes in prop::collection::vec(any::<u8>(), 0..40), text in ".{0,40}") {
            let value = (Untrusted::from(&bytes[..]), Untrusted::from(text.as_str()), text);
            let written = json(&value).unwrap();
            prop_assert!(is_harmless(&written), "{written:?}");
            prop_assert_eq!(serde_json::from_str::<(Untrusted, Untrusted, String)>(&written).unwrap(), value);
        }
    }
}
