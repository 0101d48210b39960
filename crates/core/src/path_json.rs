// SPDX-License-Identifier: Apache-2.0
//! Paths in JSON, without loss: a string where they are UTF-8, else their bytes.
//!
//! ```text
//!   /usr/bin/x        "/usr/bin/x"
//!   /usr/bin/\xff     {"hex": "2f7573722f62696e2fff"}
//! ```
//!
//! For `#[serde(with = "path_json")]`: serde's own form of a path is an error where the path is not
//! UTF-8.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Form {
    Text(String),
    Bytes { hex: String },
}

/// Writes a path.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    let form = match path.to_str() {
        Some(text) => Form::Text(text.into()),
        None => Form::Bytes { hex: to_hex(path.as_os_str().as_bytes()) },
    };
    form.serialize(serializer)
}

/// Reads what [`serialize`] wrote.
///
/// # Errors
/// Neither a string nor hexadecimal digits in pairs.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    match Form::deserialize(deserializer)? {
        Form::Text(text) => Ok(text.into()),
        Form::Bytes { hex } => {
            let bytes =
                from_hex(&hex).ok_or_else(|| D::Error::custom("a path of other digits than 0-9a-f"))?;
            Ok(OsString::from_vec(bytes).into())
        }
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, Deserialize, PartialEq, Debug)]
    struct Holder(#[serde(with = "super")] PathBuf);

    #[test]
    fn paths_are_written_and_read() {
        for (path, json) in [
            (&b"/usr/bin/x"[..], r#""/usr/bin/x""#),
            (b"", r#""""#),
            ("/\u{e9}\"".as_bytes(), "\"/\u{e9}\\\"\""),
            (b"/\xff", r#"{"hex":"2fff"}"#),
        ] {
            let holder = Holder(OsString::from_vec(path.to_vec()).into());
            assert_eq!(serde_json::to_string(&holder).unwrap(), json);
            assert_eq!(serde_json::from_str::<Holder>(json).unwrap(), holder);
        }
        for bad in ["1", "null", r#"{"hex":"f"}"#, r#"{"hex":"FF"}"#, r#"{"hex":"\u00e9"}"#, "{}"] {
            assert!(serde_json::from_str::<Holder>(bad).is_err(), "{bad}");
        }
    }
}
