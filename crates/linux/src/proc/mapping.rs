// SPDX-License-Identifier: Apache-2.0
//! Asks for single mappings of a process, without the list of all (`PROCMAP_QUERY`, Linux 6.11, commit ed5d583a88a9,
//! Documentation/filesystems/proc.rst). A question takes less than a microsecond; `/proc/PID/maps` takes 45 for 40
//! mappings, most of it to write their paths.

use crate::proc::procfs::Process;
use hugelift_core::addr::{Addr, Range};
use hugelift_core::maps::{FileId, Mapping, Prot};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

/// `_IOWR('f', 17, struct procmap_query)`
const PROCMAP_QUERY: u64 = 0xc068_6611;
const READABLE: u64 = 0x01;
const WRITABLE: u64 = 0x02;
const EXECUTABLE: u64 = 0x04;
const SHARED: u64 = 0x08;
const COVERING_OR_NEXT: u64 = 0x10;
const FILE_BACKED: u64 = 0x20;

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

impl Query {
    /// Asks for the mapping that holds `at`, or for what the flags say.
    ///
    /// # Errors
    /// ioctl(2): ENOENT if there is no such mapping, ENOTTY before Linux 6.11, ESRCH if the process has ended.
    fn ask(maps: &File, at: Addr, flags: u64) -> io::Result<Query> {
        let mut query = Query { size: size_of::<Query>() as u64, flags, addr: at.0, ..Query::default() };
        // SAFETY: ioctl(2) PROCMAP_QUERY reads and writes the live structure alone: no name and no build-id is asked for.
        match unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) } {
            0 => Ok(query),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The list of mappings of a process, which is open, so that a question takes one system call and no memory.
#[derive(Debug)]
pub struct Mappings {
    process: Process,
    maps: File,
}

impl Mappings {
    /// Opens the list.
    ///
    /// # Errors
    /// open(2): there is no such process; EACCES.
    pub fn open(process: Process) -> io::Result<Mappings> {
        Ok(Mappings { process, maps: File::open(process.path("maps"))? })
    }

    /// Returns whether the process still has exactly this mapping ([`Mapping::is_same_as`]). Before Linux 6.11 the whole
    /// list is read, which takes longer, and memory.
    pub fn has(&self, expected: &Mapping) -> bool {
        self.is_there(expected, Mapping::is_same_as)
    }

    /// Returns whether the process still has this mapping, alone or as a part of another one ([`Mapping::is_part_of`]). As for
    /// [`Mappings::has`], the whole list may be read.
    pub fn has_part(&self, expected: &Mapping) -> bool {
        self.is_there(expected, Mapping::is_part_of)
    }

    fn is_there(&self, expected: &Mapping, is_it: fn(&Mapping, &Mapping) -> bool) -> bool {
        match mapping_at(&self.maps, expected.range.start) {
            Ok(now) => is_it(expected, &now),
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                let all = self.process.maps().unwrap_or_default();
                all.iter().any(|now| is_it(expected, now))
            }
            Err(_) => false,
        }
    }

    /// As [`Mappings::has`], without any memory; `None` before Linux 6.11.
    pub fn answers(&self, expected: &Mapping) -> Option<bool> {
        match mapping_at(&self.maps, expected.range.start) {
            Ok(now) => Some(expected.is_same_as(&now)),
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => None,
            Err(_) => Some(false),
        }
    }
}

/// Returns the mapping of process `pid` that holds `at`. It has no path, and nothing is said of
/// [`Prot::bti`].
///
/// # Errors
/// ENOENT if nothing is mapped there or there is no such process; ENOTTY before Linux 6.11; EACCES.
pub fn at(pid: i32, at: Addr) -> io::Result<Mapping> {
    mapping_at(&File::open(Process::of(pid).path("maps"))?, at)
}

fn mapping_at(maps: &File, at: Addr) -> io::Result<Mapping> {
    let query = Query::ask(maps, at, 0)?;
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

/// Returns the inodes of all files of which `process` maps code.
///
/// # Errors
/// open(2): ENOENT and EACCES. ioctl(2): ENOTTY before Linux 6.11, ESRCH if the process has ended.
pub fn inodes_of_code(process: Process) -> io::Result<BTreeSet<u64>> {
    let maps = File::open(process.path("maps"))?;
    let mut inodes = BTreeSet::new();
    let mut from = Addr(0);
    loop {
        match Query::ask(&maps, from, EXECUTABLE | COVERING_OR_NEXT | FILE_BACKED) {
            Ok(query) => {
                inodes.insert(query.inode);
                from = Addr(query.end);
            }
            // There is no further mapping.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(inodes),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evaluates to what the kernel answers, or skips the test where it knows no such question.
    macro_rules! answer {
        ($answer:expr) => {
            match $answer {
                Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                    return println!("SKIP: PROCMAP_QUERY takes Linux 6.11");
                }
                answer => answer.unwrap(),
            }
        };
    }

    #[test]
    fn each_own_mapping_is_the_one_in_the_list() {
        let own = std::process::id();
        let mut asked = 0;
        // Other tests map other files meanwhile, and this one as well.
        let exe = std::env::current_exe().unwrap();
        let list = || Process::OWN.maps().unwrap().into_iter().filter(|m| m.path == exe);
        for expected in list() {
            let found = at(own.cast_signed(), expected.range.start);
            let Mapping { range, prot, shared, offset, file, .. } = expected;
            if list().all(|now| now.range != range) {
                continue;
            }
            let found = answer!(found);
            let prot = Prot { bti: false, ..prot };
            assert_eq!((found.range, found.prot, found.shared), (range, prot, shared));
            assert_eq!((found.offset, found.file), (offset, file));
            asked += 1;
        }
        assert!(asked > 3);
        assert_eq!(at(own.cast_signed(), Addr(0)).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn inodes_of_own_code() {
        let inodes = answer!(inodes_of_code(Process::OWN));
        let maps = Process::OWN.maps().unwrap();
        let code = maps.iter().filter(|m| m.prot.exec && m.is_file()).map(|m| m.file.inode);
        assert_eq!(inodes, code.collect::<BTreeSet<u64>>());
        let (_, executable) = Process::OWN.executable().unwrap();
        assert!(inodes.contains(&executable), "{inodes:?}");
    }

    #[test]
    fn a_process_that_has_ended() {
        assert_eq!(inodes_of_code(Process::new(u32::MAX / 2)).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
