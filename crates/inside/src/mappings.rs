// SPDX-License-Identifier: Apache-2.0
//! The mappings of this process that are on pages of the pool, read from /proc/self/maps without
//! allocating anything.

use crate::sys;

/// A private mapping on pages of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mapping {
    pub start: usize,
    pub end: usize,
    /// The protection, as mmap(2) takes it.
    pub prot: usize,
}

/// How much of a line is kept. The line of a mapping on pages of the pool is shorter.
const LINE: usize = 256;

/// Calls `visit` for each mapping of this process that is on pages of the pool. Returns whether the list
/// could be read to its end, `None` if it could not be opened.
///
/// `visit` may replace the mapping that it is called with. The kernel goes on behind the last mapping
/// that it has written, even if it was replaced.
pub fn each_on_pool(mut visit: impl FnMut(Mapping)) -> Option<bool> {
    let file = sys::open(c"/proc/self/maps")?;
    let mut lines = Lines::default();
    let mut buffer = [0u8; 2048];
    let complete = loop {
        match sys::read(file, &mut buffer) {
            Ok(0) => break true,
            Ok(got) => lines.add(&buffer[..got], |line| {
                if let Some(mapping) = parse(line) {
                    visit(mapping);
                }
            }),
            Err(_) => break false,
        }
    };
    sys::close(file);
    Some(complete)
}

/// Joins the pieces of a file into lines. Keeps the beginning of a long line.
struct Lines {
    line: [u8; LINE],
    length: usize,
}

impl Default for Lines {
    fn default() -> Lines {
        Lines { line: [0; LINE], length: 0 }
    }
}

impl Lines {
    /// Calls `visit` for each line that `bytes` completes.
    fn add(&mut self, bytes: &[u8], mut visit: impl FnMut(&[u8])) {
        for byte in bytes {
            if *byte == b'\n' {
                visit(&self.line[..self.length]);
                self.length = 0;
            } else if let Some(place) = self.line.get_mut(self.length) {
                *place = *byte;
                self.length += 1;
            }
        }
    }
}

/// Parses `start-end perms offset dev inode path`; returns the mapping if it is on pages of the pool.
fn parse(line: &[u8]) -> Option<Mapping> {
    let mut words = line.split(|b| *b == b' ').filter(|w| !w.is_empty());
    let (range, perms, path) = (words.next()?, words.next()?, words.nth(3)?);
    let dash = range.iter().position(|b| *b == b'-')?;
    let (start, end) = (hexadecimal(&range[..dash])?, hexadecimal(&range[dash + 1..])?);
    let &[read, write, exec, shared, ..] = perms else { return None };
    let bit = |flag: u8, bit: usize| if flag == b'-' { 0 } else { bit };
    let prot = bit(read, 1) | bit(write, 2) | bit(exec, 4);
    let wanted = path.starts_with(b"/anon_hugepage") && shared == b'p';
    wanted.then_some(Mapping { start, end, prot })
}

fn hexadecimal(text: &[u8]) -> Option<usize> {
    usize::from_str_radix(core::str::from_utf8(text).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps() {
        let own = b"7f0000200000-7f0000600000 rw-p 00000000 00:10 12345                      /anon_hugepage (deleted)";
        let (start, end) = (0x7f00_0020_0000, 0x7f00_0060_0000);
        assert_eq!(parse(own), Some(Mapping { start, end, prot: 3 }));
        let closed = b"7f0000200000-7f0000600000 ---p 00000000 00:10 1 /anon_hugepage (deleted)";
        assert_eq!(parse(closed), Some(Mapping { start, end, prot: 0 }));
        for other in [
            &b"7f0000200000-7f0000600000 rw-s 00000000 00:10 1 /anon_hugepage (deleted)"[..],
            b"7f0000200000-7f0000600000 rw-p 00000000 00:10 1 /usr/bin/x",
            b"7f0000200000-7f0000600000 rw-p 00000000 00:00 0",
            b"7f0000200000 rw-p 0 0 0 /anon_hugepage",
            b"x-y rw-p 0 0 0 /anon_hugepage",
            b"",
        ] {
            assert_eq!(parse(other), None, "{}", other.escape_ascii());
        }
    }

    /// Lines are joined correctly from pieces of any size.
    #[test]
    fn lines_in_pieces() {
        let long = "x".repeat(3 * LINE);
        let text = format!("a\n\n{long}\nb c\nnot ended");
        for piece in [1, 2, 7, LINE, text.len()] {
            let (mut lines, mut seen) = (Lines::default(), Vec::new());
            for bytes in text.as_bytes().chunks(piece) {
                lines.add(bytes, |line| seen.push(String::from_utf8(line.to_vec()).unwrap()));
            }
            assert_eq!(seen, ["a", "", &long[..LINE], "b c"], "{piece}");
        }
    }
}
