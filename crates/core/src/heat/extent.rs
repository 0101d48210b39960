// SPDX-License-Identifier: Apache-2.0
//! How much data a process has on small pages, beside what the TLBs for data hold.
//!
//! It bounds from above what huge pages could do for data: memory that is resident need not be in use.

use crate::addr::human_bytes;
use crate::smaps::Usage;
use serde::Serialize;
use std::os::unix::ffi::OsStrExt as _;

/// Pages that the last TLB for data holds at least: 64 in the first Atoms, 128 in Silvermont, 512 and more in most others.
const FEWEST: u64 = 64;
/// Pages that it holds at most: the 4096 entries of Zen 5, if each holds the four pages that lie side by side; on AArch64 as many, if
/// each holds a contiguous block of sixteen.
const MOST: u64 = if cfg!(target_arch = "aarch64") { 16 * 4096 } else { 4 * 4096 };

/// The resident data of a process, by where it comes from.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Extents {
    /// What it alone can write to: heap, stacks, what its allocators mapped, its variables.
    pub anonymous: Extent,
    /// Memory that it may share with other processes: System V, memfd_create(2), anonymous, files in /dev/shm.
    pub shared: Extent,
    /// Files that are not code.
    pub files: Extent,
}

/// One kind of data, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Extent {
    /// In memory and mapped by the process.
    pub resident_bytes: u64,
    /// What of that is on huge pages.
    pub huge_bytes: u64,
}

impl Extent {
    fn add(&mut self, resident: u64, huge: u64) {
        self.resident_bytes = self.resident_bytes.saturating_add(resident);
        self.huge_bytes = self.huge_bytes.saturating_add(huge.min(resident));
    }

    /// Returns the bytes on small pages.
    pub fn small(self) -> u64 {
        self.resident_bytes.saturating_sub(self.huge_bytes)
    }

    /// Returns "412 MB, of it 4 MB huge".
    fn says(self) -> String {
        match self.huge_bytes {
            0 => human_bytes(self.resident_bytes),
            huge => format!("{}, of it {} huge", human_bytes(self.resident_bytes), human_bytes(huge)),
        }
    }
}

impl Extents {
    /// Sums up the mappings of a process, as smaps shows them.
    pub fn of(usages: &[Usage]) -> Extents {
        // The constants of a file that is code too, and what hugelift has put in their place, are not data.
        let code: Vec<_> = usages.iter().filter(|u| u.mapping.prot.exec).map(|u| u.mapping.file).collect();
        let mut all = Extents::default();
        for usage in usages.iter().filter(|usage| !usage.mapping.prot.exec && !usage.mapping.is_kernel_code())
        {
            let mapping = &usage.mapping;
            // smaps does not count pages of a pool as resident.
            let resident = usage.rss.saturating_add(usage.hugetlb());
            if mapping.shared {
                let kind = if is_shared_memory(usage) { &mut all.shared } else { &mut all.files };
                kind.add(resident, usage.huge());
            } else if !mapping.is_file() || mapping.is_anonymous_hugetlb() {
                if mapping.prot.write {
                    all.anonymous.add(resident, usage.huge());
                }
            } else {
                all.anonymous.add(usage.anonymous, usage.anon_huge);
                if !code.contains(&mapping.file) {
                    all.files.add(usage.rss.saturating_sub(usage.anonymous), usage.file_huge);
                }
            }
        }
        all
    }

    /// Returns all bytes on small pages.
    pub fn small(self) -> u64 {
        [self.anonymous, self.shared, self.files].into_iter().map(Extent::small).fold(0, u64::saturating_add)
    }

    /// Returns "anonymous 412 MB, of it 4 MB huge; shared 0 B; files 35 MB".
    pub fn says(self) -> String {
        let Extents { anonymous, shared, files } = self;
        format!("anonymous {}; shared {}; files {}", anonymous.says(), shared.says(), files.says())
    }

    /// Returns what huge pages may do for the data, with the bytes that the TLBs for data hold of it, in small pages of this
    /// size. Where the CPU does not say that, as in many guests, what every CPU holds and what none holds decide.
    pub fn verdict(self, reach: Option<u64>, page_bytes: u64) -> DataVerdict {
        let pages = |count: u64| count.saturating_mul(page_bytes);
        let (least, most) = reach.map_or((pages(FEWEST), pages(MOST)), |reach| (reach, reach));
        match self.small() {
            small if small <= least => DataVerdict::Little,
            small if small > most => DataVerdict::Perhaps,
            _ => DataVerdict::CannotTell,
        }
    }
}

/// What huge pages may do for data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataVerdict {
    /// The TLBs hold all that is on small pages.
    Little,
    /// They do not; how much of it is in use decides.
    Perhaps,
    /// This CPU does not say what its TLBs hold.
    CannotTell,
}

impl DataVerdict {
    /// Returns the verdict in a sentence, with the bytes on small pages and what the TLBs hold.
    pub fn says(self, small: u64, reach: Option<u64>) -> String {
        let small = human_bytes(small);
        match (self, reach.map(human_bytes)) {
            (DataVerdict::Little, Some(reach)) => {
                format!(
                    "little to gain: {small} are on small pages, and the TLBs for data hold the entries of {reach}"
                )
            }
            (DataVerdict::Perhaps, Some(reach)) => format!(
                "perhaps: {small} are on small pages, and the TLBs for data hold the entries of only {reach}; the process \
                 gains if it uses more than that all the time"
            ),
            (DataVerdict::Little, None) => {
                format!(
                    "little to gain: {small} are on small pages, and the TLBs for data of any CPU hold that"
                )
            }
            (DataVerdict::Perhaps, None) => format!(
                "perhaps: {small} are on small pages. This CPU does not say what its TLBs for data hold, but no known CPU's \
                 hold so much; it gains if it uses more than they hold all the time"
            ),
            (DataVerdict::CannotTell, _) => {
                format!(
                    "cannot tell: {small} are on small pages, and this CPU does not say what its TLBs hold"
                )
            }
        }
    }
}

/// Returns whether a shared mapping is memory, not a file of a disk (proc_pid_maps(5), mm/shmem.c).
fn is_shared_memory(usage: &Usage) -> bool {
    let path = usage.mapping.path.as_os_str().as_bytes();
    let names: [&[u8]; 5] = [b"/dev/zero", b"/SYSV", b"/memfd:", b"/dev/shm/", b"/anon_hugepage"];
    !usage.mapping.is_file() || names.iter().any(|name| path.starts_with(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smaps::parse_smaps;

    const SMAPS: &str = "\
00400000-00600000 r-xp 00000000 08:01 7                                  /usr/bin/server
Rss:                2048 kB
FilePmdMapped:      2048 kB
00600000-00700000 r--p 00200000 08:01 7                                  /usr/bin/server
Rss:                1024 kB
00700000-00800000 rw-p 00300000 08:01 7                                  /usr/bin/server
Rss:                1024 kB
Anonymous:           512 kB
01000000-02000000 rw-p 00000000 00:00 0                                  [heap]
Rss:               16384 kB
Anonymous:         16384 kB
AnonHugePages:      4096 kB
10000000-10200000 r-xp 00000000 00:00 0 
Rss:                2048 kB
Anonymous:          2048 kB
7f0000000000-7f0004000000 rw-s 00000000 00:01 33                         /dev/zero (deleted)
Rss:               32768 kB
ShmemPmdMapped:     2048 kB
7f0010000000-7f0014000000 r--s 00000000 08:01 99                         /var/lib/db/data.mdb
Rss:               65536 kB
FilePmdMapped:     40960 kB
7f0020000000-7f0024000000 r--p 00000000 08:01 98                         /usr/share/words
Rss:                8192 kB
7f0030000000-7f0030400000 rw-p 00000000 00:0f 5                          /anon_hugepage (deleted)
Rss:                   0 kB
Private_Hugetlb:    4096 kB
7ffff0000000-7ffff0001000 r--p 00000000 00:00 0                          [vvar]
Rss:                   4 kB
";

    #[test]
    fn issue_31_5_data_are_counted_by_kind() {
        const MB: u64 = 1 << 20;
        let all = Extents::of(&parse_smaps(SMAPS.as_bytes()).unwrap());
        let extent = |resident_bytes, huge_bytes| Extent { resident_bytes, huge_bytes };
        assert_eq!(all.anonymous, extent(MB / 2 + 20 * MB, 8 * MB));
        assert_eq!(all.shared, extent(32 * MB, 2 * MB));
        assert_eq!(all.files, extent(72 * MB, 40 * MB));
        assert_eq!(all.small(), 12 * MB + MB / 2 + 30 * MB + 32 * MB);
        assert_eq!(
            all.says(),
            "anonymous 20.5 MB, of it 8 MB huge; shared 32 MB, of it 2 MB huge; files 72 MB, of it 40 MB huge"
        );
    }

    #[test]
    fn issue_31_5_the_verdict_on_data_promises_nothing() {
        const MB: u64 = 1 << 20;
        let all =
            Extents { anonymous: Extent { resident_bytes: 8 * MB, huge_bytes: 0 }, ..Extents::default() };
        let says = |reach| all.verdict(reach, 4096).says(all.small(), reach);
        assert_eq!(all.verdict(Some(8 * MB), 4096), DataVerdict::Little);
        assert!(says(Some(8 * MB)).starts_with("little to gain: 8 MB are on small pages"));
        assert!(says(Some(6 * MB)).starts_with(
            "perhaps: 8 MB are on small pages, and the TLBs for data hold the entries of only 6 MB"
        ));
        assert!(says(None).starts_with("cannot tell: 8 MB"));
    }

    #[test]
    fn issue_31_5_a_cpu_that_says_nothing_leaves_only_the_middle_open() {
        let of = |small, page| {
            let anonymous = Extent { resident_bytes: small, huge_bytes: 0 };
            let all = Extents { anonymous, ..Extents::default() };
            let verdict = all.verdict(None, page);
            (verdict, verdict.says(small, None))
        };
        const MB: u64 = 1 << 20;
        assert_eq!(of(MB / 4, 4096).0, DataVerdict::Little);
        assert_eq!(of(MB / 4 + 4096, 4096).0, DataVerdict::CannotTell);
        assert_eq!(of(64 * MB, 4096).0, DataVerdict::CannotTell);
        let (verdict, says) = of(1000 * MB, 4096);
        assert_eq!(verdict, DataVerdict::Perhaps);
        assert!(says.starts_with("perhaps: 1000 MB are on small pages. This CPU does not say"), "{says}");
        assert!(of(MB / 4, 4096).1.starts_with("little to gain: 256 kB are on small pages"));
        // Pages of 64 kB: the same number of them.
        assert_eq!(of(240 * MB, 65536).0, DataVerdict::CannotTell);
        assert_eq!(of(4 * MB, 65536).0, DataVerdict::Little);
    }
}
