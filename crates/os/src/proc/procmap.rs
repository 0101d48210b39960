// SPDX-License-Identifier: Apache-2.0
//! `PROCMAP_QUERY` (Linux 6.11, commit ed5d583a88a9): asks for single mappings of a process. It takes less than a
//! microsecond each; `/proc/PID/maps` takes 45 for 40 mappings, most of it to write their paths.

use crate::proc::procfs::Process;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `struct procmap_query` (linux/fs.h)
#[derive(Default)]
#[repr(C)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

const _: () = assert!(size_of::<Query>() == 104);

/// `_IOWR('f', 17, struct procmap_query)`
const PROCMAP_QUERY: u64 = 3 << 30 | (size_of::<Query>() as u64) << 16 | (b'f' as u64) << 8 | 17;
const EXECUTABLE: u64 = 0x04;
const COVERING_OR_NEXT: u64 = 0x10;
const FILE_BACKED: u64 = 0x20;

/// Returns the inodes of all files of which `process` maps code.
///
/// # Errors
/// open(2): ENOENT and EACCES. ioctl(2): ENOTTY before Linux 6.11, ESRCH if the process has ended.
pub fn inodes_of_code(process: Process) -> io::Result<BTreeSet<u64>> {
    let maps = File::open(process.path("maps"))?;
    let mut inodes = BTreeSet::new();
    let mut address = 0;
    loop {
        let flags = EXECUTABLE | COVERING_OR_NEXT | FILE_BACKED;
        let mut query = Query { size: size_of::<Query>() as u64, flags, address, ..Query::default() };
        // SAFETY: ioctl(2) PROCMAP_QUERY reads and writes `query`, which lives through the call. Without room for a
        // name and a build id it writes neither.
        if unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) } == 0 {
            inodes.insert(query.inode);
            address = query.end;
            continue;
        }
        let error = io::Error::last_os_error();
        // There is no further mapping.
        return if error.raw_os_error() == Some(libc::ENOENT) { Ok(inodes) } else { Err(error) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_code() {
        let inodes = match inodes_of_code(Process::OWN) {
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                return println!("SKIP: PROCMAP_QUERY takes Linux 6.11");
            }
            inodes => inodes.unwrap(),
        };
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
