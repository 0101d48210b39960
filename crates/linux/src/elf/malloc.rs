// SPDX-License-Identifier: Apache-2.0
//! Which allocators a program contains. Shared objects are known by their names; an allocator in the
//! executable itself is known by a string that no other code has.

use crate::elf::elf_file::{ElfFile, MAX_STRETCH};
use crate::elf::needed::needed;
use hugelift_core::elf::Stretch;
use hugelift_core::malloc::Allocator;
use memchr::memmem;
use std::path::Path;

/// How many bytes of an executable are searched for strings, data first.
const SEARCHED: u64 = 64 << 20;
/// How many bytes are read at a time: the watcher beside a program keeps what the launcher has allocated.
const PIECE: u64 = MAX_STRETCH - OVERLAP;
/// What two pieces have in common: more than a mark and the bytes beside it.
const OVERLAP: u64 = 64;

/// Returns the allocators of the program at `path`; none if it is not an ELF file.
pub fn allocators(path: &Path) -> Vec<Allocator> {
    let Ok(executable) = ElfFile::open(path) else { return Vec::new() };
    let mut found = inside(&executable);
    let program = needed(executable);
    let names = program.files.iter().skip(1).filter_map(|f| f.path.file_name()?.to_str());
    found.extend(names.filter_map(Allocator::of_library));
    found.sort_unstable();
    found.dedup();
    found
}

/// Returns the allocators that are linked into the file.
fn inside(file: &ElfFile) -> Vec<Allocator> {
    // Strings are among the code only where a linker has put both into one segment.
    let mut segments: Vec<_> = file.headers.segments.iter().collect();
    segments.sort_by_key(|s| s.prot.exec);
    let mut left = SEARCHED;
    let mut found = Vec::new();
    for segment in segments {
        let size = segment.filesz.min(left);
        left -= size;
        for start in (0..size).step_by(PIECE as usize) {
            // A mark at the edge of two pieces is whole in one of them.
            let before = start.min(OVERLAP);
            let offset = segment.offset.saturating_add(start - before);
            let size = (size - start).min(PIECE) + before;
            let Some(bytes) = file.read(Stretch { offset, vaddr: segment.vaddr, size }) else { break };
            found.extend(Allocator::ALL.iter().filter(|a| holds(&bytes, a.mark(), before == 0)));
        }
    }
    found
}

/// Returns whether `mark` is in `bytes` as a string of its own. Only the first piece of a segment has nothing before it
/// (`is_first`).
fn holds(bytes: &[u8], mark: &[u8], is_first: bool) -> bool {
    memmem::find_iter(bytes, mark).filter(|at| is_first || *at > 0).any(|at| {
        let before = at.checked_sub(1).and_then(|i| bytes.get(i));
        // Linkers merge strings with a common end, so the byte before need not be zero. But
        // JE_MALLOC_CONF also ends in MALLOC_CONF.
        let own_start = before.is_none_or(|b| !b.is_ascii_alphanumeric() && *b != b'_');
        own_start && bytes.get(at + mark.len()) == Some(&0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_stands_alone() {
        assert!(holds(b"x\0MALLOC_CONF\0", b"MALLOC_CONF", true));
        assert!(holds(b"MALLOC_CONF\0", b"MALLOC_CONF", true));
        assert!(!holds(b"JE_MALLOC_CONF\0", b"MALLOC_CONF", true));
        assert!(!holds(b"\0MALLOC_CONFIG\0", b"MALLOC_CONF", true));
        assert!(!holds(b"\0MALLOC_CONF", b"MALLOC_CONF", true));
        assert!(holds(b"JE_MALLOC_CONF\0MALLOC_CONF\0", b"MALLOC_CONF", true));
        assert!(!holds(b"MALLOC_CONF\0", b"MALLOC_CONF", false));
    }

    #[test]
    fn this_program_has_glibc() {
        let own = allocators(Path::new("/proc/self/exe"));
        let musl = cfg!(target_env = "musl");
        assert_eq!(own.contains(&Allocator::Glibc), !musl, "{own:?}");
    }

    #[test]
    fn what_is_no_program_has_none() {
        assert_eq!(allocators(Path::new("/etc/passwd")), []);
        assert_eq!(allocators(Path::new("/nonexistent")), []);
    }
}
