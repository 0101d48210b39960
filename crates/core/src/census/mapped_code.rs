// SPDX-License-Identifier: Apache-2.0
//! How much code of files a process has mapped, from the lines of `/proc/PID/maps` (proc_pid_maps(5)).
//!
//! A census reads this of many processes. So nothing of a line is kept, and its path is not looked at.

use crate::maps::decimal;

/// Returns the bytes that a line maps of a file's code; 0 for any other mapping, and for what is no such line.
pub fn code_bytes(line: &[u8]) -> u64 {
    parse(line).unwrap_or(0)
}

fn parse(line: &[u8]) -> Option<u64> {
    let mut words = line.split(|&b| b == b' ');
    let (range, prot) = (words.next()?, words.next()?);
    if prot.get(2) != Some(&b'x') {
        return None;
    }
    // Offset and device are between the two.
    let inode = decimal(words.nth(2)?.trim_ascii_end())?;
    let dash = range.iter().position(|&b| b == b'-')?;
    let (start, end) = (hexadecimal(&range[..dash])?, hexadecimal(&range[dash + 1..])?);
    (inode != 0).then(|| end.saturating_sub(start))
}

fn hexadecimal(bytes: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(bytes).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn issue_33_only_code_of_files_counts() {
        let cases: [(&[u8], u64); 7] = [
            (b"00401000-00451000 r-xp 00001000 fe:00 131                  /usr/bin/a b", 0x50000),
            (b"00401000-00451000 r-xp 00001000 fe:00 131\n", 0x50000),
            (b"00400000-00401000 r--p 00000000 fe:00 131                  /usr/bin/a b", 0),
            (b"7ffd0000-7ffd2000 r-xp 00000000 00:00 0                    [vdso]", 0),
            (b"7f000000-7f020000 rwxp 00000000 00:00 0 ", 0),
            (b"00451000-00401000 r-xp 00001000 fe:00 131", 0),
            (b"00401000-00451000 r-xp 00001000", 0),
        ];
        for (line, bytes) in cases {
            assert_eq!(code_bytes(line), bytes, "{}", line.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn issue_33_no_line_hurts(line in prop::collection::vec(any::<u8>(), 0..60), at in 0usize..50) {
            let _ = code_bytes(&line);
            let mut damaged = b"00401000-00451000 r-xp 00001000 fe:00 131".to_vec();
            damaged.splice(at.min(damaged.len()).., line);
            let _ = code_bytes(&damaged);
        }
    }
}
