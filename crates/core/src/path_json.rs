// SPDX-License-Identifier: Apache-2.0
//! Writes and reads paths in the JSON of records and notes without loss, in the form of
//! [`Untrusted`]: a string or an array of bytes.
//!
//! It is for `#[serde(with = "path_json")]`. serde's own form of a path fails if the path is not UTF-8.

use crate::printable::Untrusted;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::path::{Path, PathBuf};

/// Writes a path.
///
/// # Errors
/// Returns the errors of the serializer.
pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    Untrusted::from(path).serialize(serializer)
}

/// Reads what [`serialize`] wrote.
///
/// # Errors
/// Returns an error if it is neither a string nor an array of bytes.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    Ok(Untrusted::deserialize(deserializer)?.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    #[derive(Serialize, Deserialize, PartialEq, Debug)]
    struct Holder(#[serde(with = "super")] PathBuf);

    #[test]
    fn paths_are_written_and_read() {
        for (path, json) in [
            (&b"/usr/bin/x"[..], r#""/usr/bin/x""#),
            (b"", r#""""#),
            ("/\u{e9}\"".as_bytes(), "\"/\u{e9}\\\"\""),
            (b"/\xff", r#"{"bytes":[47,255]}"#),
        ] {
            let holder = Holder(OsString::from_vec(path.to_vec()).into());
            assert_eq!(serde_json::to_string(&holder).unwrap(), json);
            assert_eq!(serde_json::from_str::<Holder>(json).unwrap(), holder);
        }
        for bad in ["1", "null", r#"{"bytes":[256]}"#, r#"{"bytes":"x"}"#, "{}"] {
            assert!(serde_json::from_str::<Holder>(bad).is_err(), "{bad}");
        }
    }
}
