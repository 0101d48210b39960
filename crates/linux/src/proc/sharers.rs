// SPDX-License-Identifier: Apache-2.0
//! The processes that have pages of some shared memory, and the page tables of all of them.

use crate::proc::clock::cpu_time_of_thread;
use crate::proc::procfs::Process;
use crate::proc::shared_memory::shares_memory;
use hugelift_core::collapse::PageTables;
use hugelift_core::maps::Mapping;
use hugelift_core::proc_stat::{Addresses, Stat};
use hugelift_core::shared_memory::SharedFile;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

/// The processes that share memory, with the bytes of their page tables.
#[derive(Debug)]
pub struct Sharers(BTreeMap<u32, Sharer>);

#[derive(Debug)]
struct Sharer {
    page_tables: u64,
    /// When it was started, and where its program lies: another process or program has other page tables.
    start: u64,
    parent: u32,
    addresses: Option<Addresses>,
}

impl Sharer {
    fn of(process: Process) -> Option<Sharer> {
        let page_tables = process.status().ok()?.page_tables?;
        let Stat { start, parent, addresses, .. } = process.stat().ok()?;
        Some(Sharer { page_tables, start, parent, addresses })
    }
}

impl Sharers {
    /// Finds process `pid` and those that have pages of the files, which it maps. Processes of other users, and those whose
    /// mappings may not be read, are left out. Returns `None` if that takes more CPU time than `time`.
    pub fn of(pid: u32, files: &BTreeSet<SharedFile>, time: Duration) -> Option<Sharers> {
        let (began, own) = (cpu_time_of_thread(), Process::new(pid));
        let user = own.status().ok()?.uid;
        let ids = files.iter().filter(|file| file.system_v).count();
        // Another namespace has segments with the same ids.
        let namespace = if ids > 0 { namespace(own) } else { None };
        let mut found = BTreeMap::from([(pid, Sharer::of(own)?)]);
        for other in Process::all().unwrap_or_default().into_iter().filter(|other| *other != pid) {
            if cpu_time_of_thread().saturating_sub(began) > time {
                return None;
            }
            let process = Process::new(other);
            let is_one = |mapping: &Mapping| {
                let file = SharedFile::of(mapping);
                mapping.shared
                    && files.contains(&file)
                    && (!file.system_v || self::namespace(process) == namespace)
            };
            // Most processes have no shared memory: of them the mappings are not read.
            let Ok(status) = process.status() else { continue };
            if status.uid != user || status.shared.is_none_or(|bytes| bytes == 0) {
                continue;
            }
            let is_one = process.maps().is_ok_and(|mappings| mappings.iter().any(is_one));
            if let Some(sharer) = Sharer::of(process).filter(|_| is_one) {
                found.insert(other, sharer);
            }
        }
        // A child of vfork(2) has the page tables of its parent until it executes its program.
        let parents: BTreeSet<u32> = found.keys().copied().collect();
        found.retain(|pid, sharer| {
            let parent = sharer.parent;
            !(parents.contains(&parent) && shares_memory(*pid, parent) == Ok(true))
        });
        Some(Sharers(found))
    }

    /// Compares the page tables with those of now. A process that has ended meanwhile, or executes another program, is not counted;
    /// `None` if none is left.
    pub fn compared(&self) -> Option<PageTables> {
        let both = |(pid, before): (&u32, &Sharer)| {
            let now = Sharer::of(Process::new(*pid))?;
            let is_same = (now.start, now.addresses) == (before.start, before.addresses);
            is_same.then_some((before.page_tables, now.page_tables))
        };
        let both: Vec<(u64, u64)> = self.0.iter().filter_map(both).collect();
        (!both.is_empty()).then(|| PageTables {
            processes: both.len(),
            before: both.iter().map(|(before, _)| before).sum(),
            after: both.iter().map(|(_, after)| after).sum(),
        })
    }
}

fn namespace(process: Process) -> Option<PathBuf> {
    std::fs::read_link(process.path("ns/ipc")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let file = SharedFile::of(mapping);
        const PLENTY: Duration = Duration::from_secs(60);
        let found = Sharers::of(own, &[file].into(), PLENTY).unwrap();
        let in_time = Sharers::of(own, &[file].into(), Duration::ZERO);
        // SAFETY: see above.
        unsafe { munmap(at, len).unwrap() };
        // Also while another test starts a program, which has the memory of this process until its execve(2).
        let tables = found.compared().unwrap();
        assert_eq!((found.0.len(), tables.processes), (1, 1));
        assert!(found.0.contains_key(&own) && tables.before > 0 && tables.after > 0, "{tables:?}");
        assert!(in_time.is_none(), "{in_time:?}");
        let mut other = Sharer::of(Process::OWN).unwrap();
        other.start += 1;
        assert_eq!(Sharers(BTreeMap::from([(own, other)])).compared(), None, "it is another process");
        let ended = Sharer::of(Process::OWN).unwrap();
        assert_eq!(Sharers(BTreeMap::from([(u32::MAX, ended)])).compared(), None, "it has ended");
    }
}
