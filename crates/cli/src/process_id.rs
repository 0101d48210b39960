// SPDX-License-Identifier: Apache-2.0
//! Process ids on the command line.

use hugelift_core::printable::{Escape, quoted};
use std::ffi::OsStr;

/// Parses the id of a process. A name is answered with the command that finds its ids.
///
/// # Errors
/// No process can have this id.
pub fn parse(text: &str) -> Result<u32, String> {
    number(text).map_err(|why| format!("{why}{}", by_pidof(text)))
}

/// Like [`parse`], where `--name` takes a name.
///
/// # Errors
/// No process can have this id.
pub fn parse_or_name(text: &str) -> Result<u32, String> {
    number(text).map_err(|why| match is_name(text) {
        true => format!("{why}; by its name: --name {}", quoted(OsStr::new(text))),
        false => why,
    })
}

fn number(text: &str) -> Result<u32, String> {
    // pid_t is a signed number of 32 bits, and no process has the id 0.
    let number = text.parse::<u32>().ok().filter(|n| (1..1 << 31).contains(n));
    number.ok_or_else(|| match is_name(text) {
        true => "not a process id".into(),
        false => format!("no process has the id {}", OsStr::new(text).escaped()),
    })
}

fn is_name(text: &str) -> bool {
    text.chars().any(char::is_alphabetic)
}

fn by_pidof(text: &str) -> String {
    match is_name(text) {
        true => format!("; 'pidof {}' prints the ids of programs of that name", quoted(OsStr::new(text))),
        false => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_29_b10_a_name_in_place_of_an_id() {
        assert_eq!((parse("1"), parse_or_name("2147483647")), (Ok(1), Ok((1 << 31) - 1)));
        let why = parse_or_name("mariadbd").unwrap_err();
        assert_eq!(why, "not a process id; by its name: --name mariadbd");
        assert!(parse_or_name("a b").unwrap_err().ends_with("--name 'a b'"));
        let why = parse("mariadbd").unwrap_err();
        assert_eq!(why, "not a process id; 'pidof mariadbd' prints the ids of programs of that name");
        for text in ["0", "-1", "2147483648", "99999999999", ""] {
            assert_eq!(parse(text).unwrap_err(), format!("no process has the id {text}"));
        }
    }
}
