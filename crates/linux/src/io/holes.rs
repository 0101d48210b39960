// SPDX-License-Identifier: Apache-2.0
//! Which bytes of a file are data, and not holes (lseek(2), `SEEK_DATA`). A file of tmpfs has holes where it has no page.

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use std::fs::File;
use std::ops::Range;

/// Returns the stretches of `offsets` that are data, in their order. It is all of it where the file system does not know.
/// Moves the offset of `file`.
pub fn data(file: &File, offsets: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let Range { start: mut at, end } = offsets;
    std::iter::from_fn(move || {
        let start = next_data(file, at).filter(|start| *start < end)?;
        // A file that shrinks meanwhile has its end where it was.
        let stop = seek(file, start, Whence::SeekHole).unwrap_or(end).max(start + 1).min(end);
        at = stop;
        Some(start..stop)
    })
}

/// Returns the first offset from `at` on that is data; `None` if only holes follow.
fn next_data(file: &File, at: u64) -> Option<u64> {
    match seek(file, at, Whence::SeekData) {
        Ok(start) => Some(start.max(at)),
        // Only a hole follows, or the end.
        Err(Errno::ENXIO) => None,
        Err(_) => Some(at),
    }
}

fn seek(file: &File, at: u64, whence: Whence) -> Result<u64, Errno> {
    let at = i64::try_from(at).map_err(|_| Errno::ENXIO)?;
    lseek(file, at, whence).map(i64::cast_unsigned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use std::os::unix::fs::FileExt as _;

    const PAGE: u64 = 64 << 10;

    #[test]
    fn holes_are_left_out() {
        let file = File::from(memfd_create(c"holes", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(16 * PAGE).unwrap();
        assert_eq!(data(&file, 0..16 * PAGE).count(), 0);
        for at in [3, 4, 9] {
            file.write_all_at(&[1], at * PAGE).unwrap();
        }
        let found = |offsets| data(&file, offsets).map(|r| r.start / PAGE).collect::<Vec<u64>>();
        assert_eq!(found(0..16 * PAGE).first(), Some(&3));
        assert_eq!(found(5 * PAGE..16 * PAGE), [9]);
        assert_eq!(found(5 * PAGE..9 * PAGE), [0; 0]);
        assert_eq!(next_data(&file, 10 * PAGE), None);
        assert_eq!(next_data(&file, u64::MAX), None);
        let all: u64 = data(&file, 0..16 * PAGE).map(|r| r.end - r.start).sum();
        // Pages may be smaller than 64 kB.
        assert!((3..=3 * PAGE).contains(&all), "{all}");
        let mut part = data(&file, 3 * PAGE + 1..3 * PAGE + 2);
        assert_eq!((part.next(), part.next()), (Some(3 * PAGE + 1..3 * PAGE + 2), None));
    }

    #[test]
    fn a_file_that_cannot_be_asked_is_data() {
        // A pipe has no offsets.
        let (pipe, _end) = nix::unistd::pipe().unwrap();
        let pipe = File::from(pipe);
        let mut all = data(&pipe, 5..9);
        assert_eq!((all.next(), all.next()), (Some(5..9), None));
    }
}
