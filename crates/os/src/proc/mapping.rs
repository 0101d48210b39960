// SPDX-License-Identifier: Apache-2.0
//! One mapping of a process, without the list of all (`PROCMAP_QUERY`, Linux 6.11,
//! Documentation/filesystems/proc.rst).

use crate::proc::procfs::Process;
use hugelift_core::addr::{Addr, Range};
use hugelift_core::maps::{FileId, Mapping, Prot};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

/// `_IOWR('f', 17, struct procmap_query)`
const PROCMAP_QUERY: u64 = 0xc068_6611;
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const EXECUTABLE: u64 = 4;
const SHARED: u64 = 8;

/// `struct procmap_query` (linux/fs.h)
#[derive(Default)]
#[repr(C)]
struct Query {
    size: u64,
    flags: u64,
    addr: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    major: u32,
    minor: u32,
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// Returns the mapping of process `pid` that holds `at`. It has no path, and nothing is said of
/// [`Prot::bti`].
///
/// # Errors
/// ENOENT if nothing is mapped there; ENOTTY before Linux 6.11; EACCES.
pub fn at(pid: i32, at: Addr) -> io::Result<Mapping> {
    let file = File::open(Process::of(pid).path("maps"))?;
    let mut query = Query { size: size_of::<Query>() as u64, addr: at.0, ..Query::default() };
    // SAFETY: ioctl(2) PROCMAP_QUERY reads and writes the live structure alone: no name and no build-id is asked for.
    if unsafe { libc::ioctl(file.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let has = |flag: u64| query.vma_flags & flag != 0;
    let prot = Prot { read: has(READABLE), write: has(WRITABLE), exec: has(EXECUTABLE), bti: false };
    let range = Range::new(Addr(query.start), Addr(query.end));
    Ok(Mapping {
        range: range.ok_or(io::ErrorKind::InvalidData)?,
        prot,
        shared: has(SHARED),
        offset: query.offset,
        file: FileId { major: query.major, minor: query.minor, inode: query.inode },
        path: Default::default(),
        deleted: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_own_mapping_is_the_one_in_the_list() {
        let own = std::process::id();
        let mut asked = 0;
        // Other tests map other files meanwhile.
        let exe = std::env::current_exe().unwrap();
        for expected in Process::new(own).maps().unwrap().into_iter().filter(|m| m.path == exe) {
            let found = match at(own.cast_signed(), expected.range.start) {
                Err(e) if e.raw_os_error() == Some(libc::ENOTTY) => {
                    return println!("SKIP: no PROCMAP_QUERY before Linux 6.11");
                }
                found => found.unwrap(),
            };
            let Mapping { range, prot, shared, offset, file, .. } = expected;
            let prot = Prot { bti: false, ..prot };
            assert_eq!((found.range, found.prot, found.shared), (range, prot, shared));
            assert_eq!((found.offset, found.file), (offset, file));
            asked += 1;
        }
        assert!(asked > 3);
        assert_eq!(at(own.cast_signed(), Addr(0)).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    }
}
