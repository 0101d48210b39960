// SPDX-License-Identifier: Apache-2.0
//! Reads the list of a process's mappings while the process changes them.
//!
//! The kernel prints as many whole mappings as fit into a page, lets the process go on, and begins the next page at the
//! first mapping that ends behind the last one that it printed (fs/seq_file.c, fs/proc/task_mmu.c). If the last one of
//! a page grows meanwhile, it is printed twice. A process whose heap grows all the time waits for that moment: where
//! its heap is the last mapping of a page, each reading is torn there. So each further reading lets the pages begin
//! elsewhere: a first read(2) of few bytes makes the kernel print no more mappings than these bytes need.

use crate::io::open;
use hugelift_core::maps::MapsError;
use nix::fcntl::OFlag;
use std::io::{self, Read};
use std::path::Path;

/// How often a list is read again. A list is torn if a mapping changes just where a page ends. In a row that is rare
/// even in a program whose threads map memory all the time.
const MORE: usize = 20;
/// By so many bytes each further first read(2) is longer: a mapping takes about 100 of maps, and 700 of smaps.
const LATER: usize = 250;

/// Reads and parses a list of mappings. A list that changed while it was read is read again.
///
/// # Errors
/// The outer error says that the file cannot be read. The inner error comes from `parse`.
pub fn parse_unchanged<T>(
    path: &Path,
    parse: impl Fn(&[u8]) -> Result<T, MapsError>,
) -> io::Result<Result<T, MapsError>> {
    parse_again(|first| read_in_two(path, first), parse)
}

/// Does the same with the bytes that `read` returns. The argument of `read` is how many bytes its first read(2) reads.
fn parse_again<T, E>(
    mut read: impl FnMut(usize) -> Result<Vec<u8>, E>,
    parse: impl Fn(&[u8]) -> Result<T, MapsError>,
) -> Result<Result<T, MapsError>, E> {
    for again in 0..MORE {
        match parse(&read(again * LATER)?) {
            Err(error) if error.changed_meanwhile() => tracing::debug!("{error}; reading it again"),
            parsed => return Ok(parsed),
        }
    }
    Ok(parse(&read(MORE * LATER)?))
}

/// Reads a whole file: at most `first` bytes by the first read(2), if that is not 0.
fn read_in_two(path: &Path, first: usize) -> io::Result<Vec<u8>> {
    let mut file = open::with(path, OFlag::O_RDONLY)?;
    let mut bytes = Vec::with_capacity(16 << 10);
    if first > 0 {
        bytes.resize(first, 0);
        let read = file.read(&mut bytes)?;
        bytes.truncate(read);
    }
    file.take(u64::MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::procfs::Process;
    use hugelift_core::maps::parse_maps;
    use hugelift_core::smaps::parse_smaps;

    /// Two readings, as the kernel printed them while the second mapping grew: its first line is from before.
    const TORN: &[u8] = b"1000-2000 rw-p 00000000 00:00 0\n3000-5000 rw-p 00000000 00:00 0\n\
                          3000-6000 rw-p 00000000 00:00 0\n";
    const WHOLE: &[u8] = b"1000-2000 rw-p 00000000 00:00 0\n3000-6000 rw-p 00000000 00:00 0\n";

    #[test]
    fn a_list_that_changed_meanwhile_is_read_again() {
        let mut readings = [TORN, TORN, WHOLE].into_iter();
        let read = |_| readings.next().map(<[u8]>::to_vec).ok_or("a fourth time");
        let found = parse_again(read, parse_maps).unwrap().unwrap();
        assert_eq!(found, parse_maps(WHOLE).unwrap());

        // Another error is not tried again.
        let mut readings = [&b"nonsense"[..], WHOLE].into_iter();
        let read = |_| readings.next().map(<[u8]>::to_vec).ok_or("never");
        assert!(!parse_again(read, parse_maps).unwrap().unwrap_err().changed_meanwhile());

        // A process that never keeps still is an error, not a hang.
        let mut times = 0;
        let read = |_| {
            times += 1;
            Ok::<_, ()>(TORN.to_vec())
        };
        assert!(parse_again(read, parse_maps).unwrap().unwrap_err().changed_meanwhile());
        assert_eq!(times, 21);
    }

    /// A thread grows and shrinks mappings everywhere, as allocators do, while another one reads them.
    #[test]
    fn mappings_that_grow_meanwhile_are_no_error() {
        use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
        use std::num::NonZeroUsize;
        use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
        const PAGES: usize = 2048;
        let page = crate::machine::base_page().bytes() as usize;
        let len = NonZeroUsize::new(PAGES * page).unwrap();
        // SAFETY: a new mapping of our own, which nothing reads or writes.
        let all = unsafe { mmap_anonymous(None, len, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE).unwrap() };
        let start = all.as_ptr() as usize;
        let set = |at: usize, prot| {
            let at = std::ptr::NonNull::new((start + at * page) as *mut std::ffi::c_void).unwrap();
            // SAFETY: a page of the mapping above.
            unsafe { mprotect(at, page, prot).unwrap() };
        };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let rw = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
                while !stop.load(Relaxed) {
                    for prot in [rw, ProtFlags::PROT_NONE] {
                        (0..PAGES).step_by(4).for_each(|at| set(at, ProtFlags::PROT_READ));
                        (1..PAGES).step_by(4).for_each(|at| set(at, prot));
                    }
                }
            });
            let failed = (0..50).find_map(|_| Process::OWN.smaps().err());
            stop.store(true, Relaxed);
            assert!(failed.is_none(), "{failed:?}");
        });
        // SAFETY: the mapping made above; the thread that used it has ended.
        unsafe { munmap(all, len.get()).unwrap() };
    }

    /// Prints mappings as the kernel does: as many as fit into a page, or as a first read(2) of `first` bytes needs. A mapping
    /// that is the last of a page grows before the next one, and is printed again.
    fn printed(lines: &[String], grows: usize, first: usize) -> Vec<u8> {
        const PAGE: usize = 4096;
        let (mut text, mut page, mut is_first) = (String::new(), 0, first > 0);
        for (at, line) in lines.iter().enumerate() {
            if page + line.len() > PAGE || is_first && page >= first {
                (page, is_first) = (0, false);
                if at == grows + 1 {
                    text += &lines[grows].replace("000 rw-p", "800 rw-p");
                    page = lines[grows].len();
                }
            }
            text += line;
            page += line.len();
        }
        text.into_bytes()
    }

    #[test]
    fn a_mapping_that_grows_before_each_page_is_no_error() {
        // A mapping of maps has one line, and one of smaps some 25 lines.
        for more in [0, 1, 28, 31] {
            let line = |n: usize| {
                let line = format!("{:x}-{:x} rw-p 00000000 00:00 0\n", n << 16, (n << 16) + 0x1000);
                line + &"Rss:               4 kB\n".repeat(more)
            };
            let lines: Vec<String> = (1..400).map(line).collect();
            let mut torn = 0;
            for grows in 0..lines.len() - 1 {
                torn += usize::from(parse_smaps(&printed(&lines, grows, 0)).is_err());
                let read = |first| Ok::<_, ()>(printed(&lines, grows, first));
                assert!(parse_again(read, parse_smaps).unwrap().is_ok(), "{grows}, {more} lines");
            }
            assert!(torn > 0, "{more} lines");
        }
    }
}
