// SPDX-License-Identifier: Apache-2.0
//! Shared memory of a process, and which of it huge pages can map.
//!
//! Anonymous `MAP_SHARED`, shmget(2), memfd_create(2) and /dev/shm are files of tmpfs. The first three lie in a tmpfs that the
//! kernel has mounted for itself. A huge page of such a file is mapped as one where address and offset agree:
//!
//! ```text
//!   file     |--2 MB--|--2 MB--|        |--2 MB--|--2 MB--|
//!   mapping  |--2 MB--|--2 MB--|            |--2 MB--|--2 MB--|
//!            congruent                  not congruent: base pages only
//! ```
//!
//! The kernel aligns new mappings for that unless `shmem_enabled` is `never`, which is the default. For a tmpfs that is mounted,
//! as /dev/shm, its option `huge=` counts instead (`shmem_get_unmapped_area`).

use crate::addr::{PageSize, Range};
use crate::maps::{FileId, Mapping};
use crate::snapshot::Snapshot;
use std::os::unix::ffi::OsStrExt as _;

/// The file in which a piece of shared memory lies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SharedFile {
    /// Device and inode. A segment of System V has its id in the place of the inode; another file may have the same inode.
    pub file: FileId,
    /// shmget(2)
    pub system_v: bool,
}

impl SharedFile {
    /// Returns the file of a mapping of shared memory.
    pub fn of(mapping: &Mapping) -> SharedFile {
        SharedFile { file: mapping.file, system_v: mapping.path.as_os_str().as_bytes().starts_with(b"/SYSV") }
    }
}

/// Returns whether a mapping of shared memory is of a file of a tmpfs that is mounted, and not of the kernel's own one.
pub fn is_mounted(mapping: &Mapping) -> bool {
    let path = mapping.path.as_os_str().as_bytes();
    let is_unnamed = path == b"/dev/zero" || path.starts_with(b"/SYSV") || path.starts_with(b"/memfd:");
    !(mapping.deleted && is_unnamed)
}

/// Returns whether huge pages of the file can map a range that begins at this offset.
pub fn is_congruent(range: Range, offset: u64, page: PageSize) -> bool {
    range.start.0.wrapping_sub(offset) & (page.bytes() - 1) == 0
}

impl Snapshot {
    /// Returns the mappings of shared memory that the process can access, by address.
    pub fn shared_memory(&self) -> impl Iterator<Item = &Mapping> {
        self.mappings.iter().filter(|m| {
            let is_accessible = m.prot.read || m.prot.write || m.prot.exec;
            m.shared && is_accessible && self.tmpfs.contains(&(m.file.major, m.file.minor))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Addr;
    use crate::maps::Prot;
    use crate::snapshot::BARE;

    fn mapping(start: u64, device: u32, path: &str) -> Mapping {
        Mapping {
            range: Range { start: Addr(start), end: Addr(start + (4 << 20)) },
            prot: Prot::RW,
            shared: true,
            offset: 0,
            file: FileId { major: 0, minor: device, inode: 7 },
            path: path.into(),
            deleted: true,
        }
    }

    #[test]
    fn shared_memory_is_what_lies_in_tmpfs() {
        let all = vec![
            mapping(1 << 30, 1, "/dev/zero"),
            Mapping { prot: Prot::NONE, ..mapping(2 << 30, 1, "/dev/zero") },
            Mapping { shared: false, ..mapping(3 << 30, 1, "/memfd:x") },
            mapping(4 << 30, 2, "/memfd:pool"),
            mapping(5 << 30, 1, "/SYSV00000000"),
        ];
        let mut snapshot = Snapshot::new(Vec::new(), all, BARE);
        assert_eq!(snapshot.shared_memory().count(), 0, "no device is known");
        snapshot.tmpfs = vec![(0, 1)];
        let found: Vec<u64> = snapshot.shared_memory().map(|m| m.range.start.0 >> 30).collect();
        assert_eq!(found, [1, 5]);
    }

    #[test]
    fn a_segment_of_system_v_is_no_other_file_with_its_number() {
        let [memory, segment] =
            ["/memfd:x", "/SYSV0000162e"].map(|path| SharedFile::of(&mapping(0, 1, path)));
        assert_eq!(memory.file, segment.file);
        assert_ne!(memory, segment);
    }

    #[test]
    fn files_of_a_mounted_tmpfs_are_told_apart() {
        assert!(!is_mounted(&mapping(0, 1, "/memfd:heap")) && !is_mounted(&mapping(0, 1, "/SYSV00000000")));
        assert!(is_mounted(&mapping(0, 2, "/dev/shm/PostgreSQL.1")));
        assert!(is_mounted(&Mapping { deleted: false, ..mapping(0, 2, "/memfd:heap") }));
    }

    #[test]
    fn congruence_is_of_address_and_offset() {
        let at = |start| Range { start: Addr(start), end: Addr(start + (8 << 20)) };
        assert!(is_congruent(at(6 << 20), 2 << 20, PageSize::MB2));
        assert!(is_congruent(at((6 << 20) + 4096), (2 << 20) + 4096, PageSize::MB2));
        assert!(!is_congruent(at((6 << 20) + 4096), 0, PageSize::MB2));
        assert!(is_congruent(at(0), 2 << 20, PageSize::MB2));
    }
}
