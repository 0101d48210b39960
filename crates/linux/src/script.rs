// SPDX-License-Identifier: Apache-2.0
//! Scripts: the kernel executes the interpreter that the first line names.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The number of scripts that the kernel follows: the interpreter of a `#!` may be a script again.
pub const MAX_SCRIPTS: usize = 5;

/// Returns the interpreter that a script names in its first line.
pub fn interpreter(head: &[u8]) -> Option<PathBuf> {
    let line = head.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?.trim_ascii_start();
    let end = line.iter().position(|b| matches!(b, b' ' | b'\t' | 0)).unwrap_or(line.len());
    (end > 0).then(|| PathBuf::from(OsStr::from_bytes(&line[..end])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreters() {
        for (head, want) in [
            (&b"#!/bin/sh\n"[..], Some("/bin/sh")),
            (b"#! /usr/bin/env python3 -x\nrest", Some("/usr/bin/env")),
            (b"#!/bin/sh", Some("/bin/sh")),
            (b"#!\n", None),
            (b"#!   ", None),
            (b"\x7fELF", None),
            (b"", None),
        ] {
            assert_eq!(interpreter(head), want.map(PathBuf::from), "{}", head.escape_ascii());
        }
    }
}
