// SPDX-License-Identifier: Apache-2.0
//! Finds out whether an object of this process is worth a lift.

use crate::libc::{Header, Object, each_object};
use core::ffi::c_int;

const PT_LOAD: u32 = 1;
const PF_W: u32 = 2;

/// The condition under which a program is worth a lift ([`crate::names::CHILDREN`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Worth {
    /// Size of the huge page that a segment must hold; 0 if every program is worth it.
    pub page: usize,
    /// Writable segments count.
    pub writable: bool,
}

impl Worth {
    /// Parses the first word of the variable.
    pub fn parse(text: &[u8]) -> Option<Worth> {
        let word = text.split(|b| *b == b' ').next()?;
        let digits = word.iter().take_while(|b| b.is_ascii_digit()).count();
        let page = core::str::from_utf8(&word[..digits]).ok()?.parse().ok()?;
        let writable = match &word[digits..] {
            b"r" => false,
            b"rw" => true,
            _ => return None,
        };
        Some(Worth { page, writable })
    }

    /// Returns whether this process is worth it.
    pub fn is_met(self) -> bool {
        let mut worth = self;
        // SAFETY: `look` gets the data that it expects.
        self.page == 0 || unsafe { each_object(look, (&raw mut worth).cast()) } != 0
    }

    fn holds(self, header: &Header, bias: usize) -> bool {
        let start = bias.wrapping_add(header.vaddr as usize);
        let inner = start.checked_next_multiple_of(self.page).and_then(|i| i.checked_add(self.page));
        header.kind == PT_LOAD
            && (self.writable || header.flags & PF_W == 0)
            && inner.is_some_and(|inner| inner <= start.saturating_add(header.memsz as usize))
    }
}

unsafe extern "C" fn look(object: *const Object, _size: usize, data: *mut u8) -> c_int {
    // SAFETY: dl_iterate_phdr(3) passes a live object, `is_met` its data.
    let (object, worth) = unsafe { (&*object, *data.cast::<Worth>()) };
    if object.headers.is_null() {
        return 0;
    }
    // SAFETY: the object's program headers, as it states them.
    let headers = unsafe { core::slice::from_raw_parts(object.headers, object.count.into()) };
    c_int::from(headers.iter().any(|h| worth.holds(h, object.bias)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    fn header(flags: u32, vaddr: u64, memsz: u64) -> Header {
        Header { kind: PT_LOAD, flags, offset: 0, vaddr, paddr: 0, filesz: 0, memsz, align: 4096 }
    }

    #[test]
    fn a_segment_with_a_whole_huge_page() {
        let worth = Worth { page: 2 << 20, writable: false };
        assert!(worth.holds(&header(5, 0, 2 * MB), 0));
        assert!(!worth.holds(&header(5, 0, 2 * MB), 4096), "not aligned");
        assert!(worth.holds(&header(4, 4096, 4 * MB), 0));
        assert!(!worth.holds(&header(6, 0, 8 * MB), 0), "written");
        assert!(Worth { writable: true, ..worth }.holds(&header(6, 0, 8 * MB), 0));
        assert!(!worth.holds(&Header { kind: 2, ..header(5, 0, 8 * MB) }, 0), "not loaded");
        assert!(!worth.holds(&header(5, u64::MAX - 1, u64::MAX), usize::MAX), "nonsense");
    }

    #[test]
    fn the_variable() {
        assert_eq!(Worth::parse(b"2097152r --backing thp"), Some(Worth { page: 2 << 20, writable: false }));
        assert_eq!(Worth::parse(b"0rw"), Some(Worth { page: 0, writable: true }));
        for bad in [&b""[..], b"r", b"12", b"12x", b"-1r", b"99999999999999999999999r"] {
            assert_eq!(Worth::parse(bad), None, "{}", bad.escape_ascii());
        }
    }
}
