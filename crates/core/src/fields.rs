// SPDX-License-Identifier: Apache-2.0
//! Lines `name: value` and choices in brackets, as many files of /proc and /sys have them (proc(5)).

use crate::maps::decimal;

/// Returns the value of the first line `name: value`, without the space around it.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|l| l.strip_prefix(name)?.trim_start().strip_prefix(':')).map(str::trim)
}

/// Returns the value of the first line `name:  123 kB` in bytes.
pub fn bytes_of(text: &str, name: &str) -> Option<u64> {
    kilobytes(field(text, name)?.as_bytes())
}

/// Returns a value such as `   123 kB` in bytes.
pub fn kilobytes(value: &[u8]) -> Option<u64> {
    decimal(value.trim_ascii().strip_suffix(b"kB")?.trim_ascii_end())?.checked_mul(1024)
}

/// Returns the word in brackets of `always [madvise] never`.
pub fn chosen(text: &str) -> Option<&str> {
    Some(text.split_once('[')?.1.split_once(']')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_lines() {
        let text = "MemTotal:  16 kB\nMemFree: 1 kB\nMemAvailable:    8 kB\nmodel name\t: A: B\n";
        assert_eq!(field(text, "model name"), Some("A: B"));
        assert_eq!(field(text, "Mem"), None);
        assert_eq!(bytes_of(text, "MemAvailable"), Some(8192));
        assert_eq!(bytes_of(text, "MemTotal"), Some(16 << 10));
        assert_eq!(bytes_of(text, "HugePages_Total"), None);
        assert_eq!(bytes_of(text, "model name"), None);
    }

    #[test]
    fn the_choice_is_in_brackets() {
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
        assert_eq!(["", "1", "[x", "x]"].map(chosen), [None; 4]);
    }

    #[test]
    fn only_kilobytes_are_bytes() {
        assert_eq!(
            [&b" \t 12 kB"[..], b"2048kB", b"0 kB"].map(kilobytes),
            [Some(12 << 10), Some(2 << 20), Some(0)]
        );
        for odd in [&b""[..], b"kB", b"12", b"12 MB", b"+1 kB", b"-1 kB", b"x kB", b"99999999999999999999 kB"]
        {
            assert_eq!(kilobytes(odd), None, "{}", odd.escape_ascii());
        }
        assert_eq!(kilobytes(b"18014398509481984 kB"), None);
    }
}
