// SPDX-License-Identifier: Apache-2.0
//! The processes that have pages of some shared memory, and the page tables of all of them.

use crate::proc::procfs::Process;
use hugelift_core::collapse::PageTables;
use hugelift_core::maps::Mapping;
use hugelift_core::shared_memory::SharedFile;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// The processes that share memory, with the bytes of their page tables.
#[derive(Debug)]
pub struct Sharers(BTreeMap<u32, u64>);

impl Sharers {
    /// Finds the processes that have pages of these files, which process `pid` maps. Those whose mappings may not be read are
    /// left out.
    pub fn of(pid: u32, files: &BTreeSet<SharedFile>) -> Sharers {
        let ids = files.iter().filter(|file| file.system_v).count();
        // Another namespace has segments with the same ids.
        let namespace = if ids > 0 { namespace(Process::new(pid)) } else { None };
        let shares = |other: &u32| {
            let process = Process::new(*other);
            let is_one = |mapping: &Mapping| {
                let file = SharedFile::of(mapping);
                mapping.shared
                    && files.contains(&file)
                    && (!file.system_v || self::namespace(process) == namespace)
            };
            // Most processes have no shared memory: of them the mappings are not read.
            let status = process.status().ok()?;
            status.shared.filter(|bytes| *bytes > 0)?;
            process.maps().ok()?.iter().any(is_one).then_some((*other, status.page_tables?))
        };
        Sharers(Process::all().unwrap_or_default().iter().filter_map(shares).collect())
    }

    /// Compares the page tables with those of now. A process that has ended meanwhile is not counted.
    pub fn compared(&self) -> PageTables {
        let now = |pid: &u32| Process::new(*pid).status().ok()?.page_tables;
        let both: Vec<(u64, u64)> =
            self.0.iter().filter_map(|(pid, before)| Some((*before, now(pid)?))).collect();
        PageTables {
            processes: both.len(),
            before: both.iter().map(|(before, _)| before).sum(),
            after: both.iter().map(|(_, after)| after).sum(),
        }
    }
}

fn namespace(process: Process) -> Option<PathBuf> {
    std::fs::read_link(process.path("ns/ipc")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::maps::FileId;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
    use std::fs::File;
    use std::num::NonZeroUsize;

    #[test]
    fn a_process_with_pages_of_the_file_is_found() {
        let own = std::process::id();
        let len = 4 << 20;
        let file = File::from(memfd_create(c"sharers", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(len as u64).unwrap();
        let size = NonZeroUsize::new(len).unwrap();
        // SAFETY: a new mapping, which is filled, and unmapped when nothing uses it any more.
        let at = unsafe {
            let at = mmap(None, size, ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED, &file, 0).unwrap();
            at.cast::<u8>().write_bytes(1, len);
            at
        };
        let mappings = Process::new(own).maps().unwrap();
        let mapping = mappings.iter().find(|m| m.range.start.0 == at.as_ptr().addr() as u64).unwrap();
        let found = Sharers::of(own, &[SharedFile::of(mapping)].into());
        let other = SharedFile { system_v: true, ..SharedFile::of(mapping) };
        let none = SharedFile { file: FileId { inode: u64::MAX, ..mapping.file }, system_v: false };
        let nobody = Sharers::of(own, &[other, none].into()).compared();
        // SAFETY: see above.
        unsafe { munmap(at, len).unwrap() };
        let tables = found.compared();
        assert_eq!((found.0.len(), tables.processes), (1, 1));
        assert!(found.0.contains_key(&own) && tables.before > 0 && tables.after > 0, "{tables:?}");
        assert_eq!(nobody, PageTables { processes: 0, before: 0, after: 0 });
    }
}
