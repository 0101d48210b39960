// SPDX-License-Identifier: Apache-2.0
//! Parses `/proc/PID/smaps`, which shows the pages behind each mapping (proc_pid_smaps(5)).
//!
//! Only the counters that the kernel derives from its page tables are read. The fields
//! `KernelPageSize` and `THPeligible` do not help: a file mapping wholly on huge pages shows 4 kB and 0
//! there.

use crate::attribute::Attribute;
use crate::fields::kilobytes;
use crate::maps::{Mapping, MapsError, OVERLAPS, error, lines, parse_line};

/// One mapping with its counters, all in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Usage {
    /// The mapping itself.
    pub mapping: Mapping,
    /// Resident memory.
    pub rss: u64,
    /// Resident memory that is not, or no longer, the file's page cache.
    pub anonymous: u64,
    /// Proportional share of the resident memory.
    pub pss: u64,
    /// Resident memory that is marked as accessed, by the page tables or by the kernel.
    pub referenced: u64,
    /// Anonymous memory mapped by huge page table entries.
    pub anon_huge: u64,
    /// tmpfs and memfd pages mapped by huge page table entries.
    pub shmem_huge: u64,
    /// Page-cache pages of a file mapped by huge page table entries.
    pub file_huge: u64,
    /// hugetlb pages of this process alone.
    pub private_hugetlb: u64,
    /// hugetlb pages that other processes map too.
    pub shared_hugetlb: u64,
    /// `MADV_HUGEPAGE` was given: memory that is touched from now on becomes huge.
    pub advised: bool,
    /// `MADV_RANDOM` or `MADV_SEQUENTIAL` was given.
    pub paced: bool,
    /// Its other attributes.
    pub attributes: Vec<Attribute>,
}

impl Usage {
    fn new(mapping: Mapping) -> Usage {
        Usage {
            mapping,
            rss: 0,
            anonymous: 0,
            pss: 0,
            referenced: 0,
            anon_huge: 0,
            shmem_huge: 0,
            file_huge: 0,
            private_hugetlb: 0,
            shared_hugetlb: 0,
            advised: false,
            paced: false,
            attributes: Vec::new(),
        }
    }

    /// Returns the hugetlb bytes, shared or not.
    pub fn hugetlb(&self) -> u64 {
        self.private_hugetlb.saturating_add(self.shared_hugetlb)
    }

    /// Returns all bytes that huge page table entries map, of any backing.
    pub fn huge(&self) -> u64 {
        [self.anon_huge, self.shmem_huge, self.file_huge, self.hugetlb()]
            .into_iter()
            .fold(0, u64::saturating_add)
            .min(self.mapping.range.len())
    }
}

/// Parses all mappings with their counters, which are in the order of their addresses.
///
/// # Errors
/// Returns the first line that is neither a mapping nor a `Name: value` of one.
pub fn parse_smaps(text: &[u8]) -> Result<Vec<Usage>, MapsError> {
    let mut all: Vec<Usage> = Vec::new();
    for (i, line) in lines(text) {
        // A field line is "Name:  value"; a mapping starts with its address range.
        let word = line.split(|&b| b == b' ').next().unwrap_or(line);
        if let Some(name) = word.strip_suffix(b":") {
            let Some(usage) = all.last_mut() else {
                return Err(error(i, "counter before any mapping", line));
            };
            if name == b"VmFlags" {
                let flags = || line.split(|&b| b == b' ');
                usage.mapping.prot.bti = flags().any(|flag| flag == b"bt");
                usage.advised = flags().any(|flag| flag == b"hg");
                usage.paced = flags().any(|flag| flag == b"rr" || flag == b"sr");
                usage.attributes.extend(flags().filter_map(Attribute::of_flag));
            } else if name == b"ProtectionKey" {
                if line[word.len()..].trim_ascii() != b"0" {
                    usage.attributes.push(Attribute::Keyed);
                }
            } else if let Some(slot) = field(usage, name) {
                *slot = kilobytes(&line[word.len()..]).ok_or_else(|| error(i, "bad counter", line))?;
            }
        } else {
            let mapping = parse_line(line).map_err(|what| error(i, what, line))?;
            if all.last().is_some_and(|last| last.mapping.range.end > mapping.range.start) {
                return Err(error(i, OVERLAPS, line));
            }
            all.push(Usage::new(mapping));
        }
    }
    Ok(all)
}

fn field<'a>(usage: &'a mut Usage, name: &[u8]) -> Option<&'a mut u64> {
    Some(match name {
        b"Rss" => &mut usage.rss,
        b"Pss" => &mut usage.pss,
        b"Referenced" => &mut usage.referenced,
        b"Anonymous" => &mut usage.anonymous,
        b"AnonHugePages" => &mut usage.anon_huge,
        b"ShmemPmdMapped" => &mut usage.shmem_huge,
        b"FilePmdMapped" => &mut usage.file_huge,
        b"Private_Hugetlb" => &mut usage.private_hugetlb,
        b"Shared_Hugetlb" => &mut usage.shared_hugetlb,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REAL: &[u8] = b"\
00400000-00c00000 r-xp 00000000 fe:00 131                                /usr/bin/node
Size:               8192 kB
KernelPageSize:        4 kB
MMUPageSize:           4 kB
Rss:                6144 kB
Pss:                3072 kB
Referenced:         2048 kB
Anonymous:             0 kB
AnonHugePages:         0 kB
ShmemPmdMapped:        0 kB
FilePmdMapped:      4096 kB
Shared_Hugetlb:        0 kB
Private_Hugetlb:       0 kB
THPeligible:           0
VmFlags: rd ex mr mw me sd bt lo dd
01000000-01400000 r-xp 00000000 00:00 0 
Rss:                   0 kB
Private_Hugetlb:    4096 kB
ProtectionKey:         3
";

    #[test]
    fn counters_are_read_in_bytes() {
        let all = parse_smaps(REAL).unwrap();
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].rss, all[0].file_huge, all[0].huge()), (6 << 20, 4 << 20, 4 << 20));
        assert_eq!((all[0].pss, all[0].referenced), (3 << 20, 2 << 20));
        assert_eq!((all[1].hugetlb(), all[1].huge()), (4 << 20, 4 << 20));
        assert_eq!((all[0].mapping.prot.bti, all[1].mapping.prot.bti), (true, false));
        assert_eq!(all[0].attributes, [Attribute::Locked, Attribute::NoDump]);
        assert_eq!(all[1].attributes, [Attribute::Keyed]);
    }

    #[test]
    fn hostile_counters_are_errors() {
        assert!(parse_smaps(b"Rss: 1 kB\n").is_err());
        assert!(parse_smaps(b"1000-2000 r--p 0 0:0 0\nRss: x kB\n").is_err());
        assert!(parse_smaps(b"1000-2000 r--p 0 0:0 0\nRss: +1 kB\n").is_err());
        assert!(parse_smaps(b"1000-2000 r--p 0 0:0 0\nRss: 99999999999999999999 kB\n").is_err());
    }
}
