// SPDX-License-Identifier: Apache-2.0
//! The mappings of this process that are on pages of the pool, read from /proc/self/maps without
//! allocating anything.

use crate::sys;

/// A private mapping on pages of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mapping {
    pub start: usize,
    pub end: usize,
    /// As mmap(2) has it.
    pub prot: usize,
}

/// More than these are not looked at.
pub const MAX: usize = 128;

/// Those of them that can be read, and how many.
pub fn on_pool(found: &mut [Mapping; MAX]) -> Option<usize> {
    let file = sys::open(c"/proc/self/maps")?;
    let (mut buffer, mut held, mut count) = ([0u8; 4096], 0, 0);
    loop {
        let got = sys::read(file, &mut buffer[held..]);
        held += got;
        let mut rest = &buffer[..held];
        while let Some(end) = rest.iter().position(|b| *b == b'\n') {
            if let (Some(mapping), true) = (parse(&rest[..end]), count < MAX) {
                found[count] = mapping;
                count += 1;
            }
            rest = &rest[end + 1..];
        }
        let left = rest.len();
        buffer.copy_within(held - left..held, 0);
        held = left;
        // At the end; or a line that no kernel writes.
        if got == 0 || held == buffer.len() {
            break;
        }
    }
    sys::close(file);
    Some(count)
}

/// `start-end perms offset dev inode path`, if it is such a mapping.
fn parse(line: &[u8]) -> Option<Mapping> {
    let mut words = line.split(|b| *b == b' ').filter(|w| !w.is_empty());
    let (range, perms, path) = (words.next()?, words.next()?, words.nth(3)?);
    let dash = range.iter().position(|b| *b == b'-')?;
    let (start, end) = (hexadecimal(&range[..dash])?, hexadecimal(&range[dash + 1..])?);
    let &[read, write, exec, shared, ..] = perms else { return None };
    let bit = |flag: u8, bit: usize| if flag == b'-' { 0 } else { bit };
    let prot = bit(read, 1) | bit(write, 2) | bit(exec, 4);
    let wanted = path.starts_with(b"/anon_hugepage") && shared == b'p' && prot & 1 != 0;
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
        for other in [
            &b"7f0000200000-7f0000600000 rw-s 00000000 00:10 1 /anon_hugepage (deleted)"[..],
            b"7f0000200000-7f0000600000 ---p 00000000 00:10 1 /anon_hugepage (deleted)",
            b"7f0000200000-7f0000600000 rw-p 00000000 00:10 1 /usr/bin/x",
            b"7f0000200000-7f0000600000 rw-p 00000000 00:00 0",
            b"7f0000200000 rw-p 0 0 0 /anon_hugepage",
            b"x-y rw-p 0 0 0 /anon_hugepage",
            b"",
        ] {
            assert_eq!(parse(other), None, "{}", other.escape_ascii());
        }
    }
}
