// SPDX-License-Identifier: Apache-2.0
//! The memory of a process that is in none of its objects: anonymous, shared, and data files.

use super::data::{DataFile, SharedMemory, Small, Total};
use super::fragments::fragments;
use crate::addr::{Addr, PageSize, Range};
use crate::attribute::Attribute;
use crate::by_address::ByAddress;
use crate::collapse::{Area, Sharing};
use crate::maps::{FileId, Mapping};
use crate::shared_memory::{is_congruent, is_mounted};
use crate::smaps::Usage;
use crate::snapshot::{Part, Snapshot};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Returns the sums of [`Part::Anon`] or of [`Part::Jit`]. What was never touched is not liftable, nor is what the program has
/// excluded: allocators map much more than they use.
pub fn anonymous(snapshot: &Snapshot, usage: &[Usage], part: Part, page: PageSize) -> Total {
    let mut extents = snapshot.anonymous(&snapshot.extents());
    extents.retain(|extent| extent.part == part);
    let mut total = Total::default();
    for (extent, found) in extents.iter().zip(fragments(&extents, usage, page)) {
        let at = usage.partition_point(|u| u.mapping.range.end <= extent.range.start);
        let behind = usage[at..].iter().take_while(|u| u.mapping.range.start < extent.range.end);
        let liftable = behind.filter_map(|used| {
            let range = used.mapping.range.intersect(extent.range)?;
            Some(liftable(range, used, Sharing::Private, part == Part::Jit, page))
        });
        let huge: u64 = found.iter().map(|fragment| fragment.huge).sum();
        total.bytes += extent.range.len();
        total.liftable_bytes += liftable.sum::<u64>().max(huge);
        total.huge_bytes += huge;
    }
    total
}

/// Returns the bytes of `range`, a part of the mapping of `used`, that could be huge: what was touched, in whole huge pages.
fn liftable(range: Range, used: &Usage, sharing: Sharing, jit: bool, page: PageSize) -> u64 {
    let area = Area { range, prot: used.mapping.prot, sharing, jit, attributes: used.attributes.clone() };
    let touched = Addr(used.rss).align_down(page).0;
    if area.refusal(page).is_none() { range.inner(page).map_or(0, Range::len).min(touched) } else { 0 }
}

/// Returns the sums of the shared memory of a process. What it has not touched is not liftable, and nothing of it where the
/// machine denies shared memory huge pages.
pub fn shared_memory(snapshot: &Snapshot, usage: &[Usage], denied: bool, page: PageSize) -> SharedMemory {
    let usage: BTreeMap<Addr, &Usage> = usage.iter().map(|used| (used.mapping.range.start, used)).collect();
    let mut shared = SharedMemory::default();
    for mapping in snapshot.shared_memory() {
        let Some(used) = usage.get(&mapping.range.start).filter(|used| used.mapping.range == mapping.range)
        else {
            continue;
        };
        let huge = used.shmem_huge;
        let sharing = if denied { Sharing::Denied } else { Sharing::Memory(mapping.offset) };
        let total = &mut shared.total;
        total.bytes += mapping.range.len();
        total.huge_bytes += huge;
        total.liftable_bytes += liftable(mapping.range, used, sharing, false, page).max(huge);
        if !is_congruent(mapping.range, mapping.offset, page) {
            let bytes = mapping.range.inner(page).map_or(0, Range::len).min(used.rss);
            shared.incongruent_bytes += bytes;
            shared.mounted_bytes += if is_mounted(mapping) { bytes } else { 0 };
        }
    }
    shared
}

/// Returns the files that a process maps and that are no objects, those with most in memory first. Files that are smaller than a
/// huge page, and pages of a pool, are left out.
pub fn data_files(pid: u32, snapshot: &Snapshot, usage: &[Usage], page: PageSize) -> Vec<DataFile> {
    let is_data = is_data(snapshot);
    let mut files: BTreeMap<FileId, DataFile> = BTreeMap::new();
    for used in usage.iter().filter(|used| is_data(&used.mapping) && used.hugetlb() == 0) {
        let mapping = &used.mapping;
        let file = files.entry(mapping.file).or_insert_with(|| DataFile::new(mapping));
        file.bytes += mapping.range.len();
        file.resident_bytes += used.rss;
        file.huge_bytes += used.huge();
        match small(used, page) {
            // Of several reasons the one of the first mapping is told.
            Some(reason) => file.reason = file.reason.or(Some(reason)),
            None => {
                file.liftable_bytes += mapping.range.inner(page).map_or(0, Range::len);
                file.small_bytes += used.rss.saturating_sub(used.huge());
                file.liftable.push(mapping.range);
            }
        }
    }
    let mut files: Vec<DataFile> = files.into_values().filter(|file| file.bytes >= page.bytes()).collect();
    for file in &mut files {
        let is_memory = snapshot.tmpfs.contains(&(file.id.major, file.id.minor));
        let is_huge =
            file.huge_bytes + page.bytes() > (file.huge_bytes + file.small_bytes).min(file.liftable_bytes);
        if file.liftable_bytes > 0 {
            file.reason = (file.deleted && !is_huge).then_some(Small::Deleted);
        }
        // Priming alone does not help where the process maps the small pages. What lies in memory is collapsed.
        file.hint = (file.reason.is_none() && !is_huge).then(|| match is_memory {
            true => format!("hugelift prime --pid {pid}"),
            false => format!("as root: hugelift attach --parts files {pid}"),
        });
    }
    files.sort_by_key(|file| (Reverse(file.resident_bytes), file.path.clone()));
    files
}

/// Returns why no huge page of its file can be mapped here; `None` if one can.
fn small(used: &Usage, page: PageSize) -> Option<Small> {
    let mapping = &used.mapping;
    if !is_congruent(mapping.range, mapping.offset, page) {
        Some(Small::NotCongruent)
    } else if mapping.range.inner(page).is_none() {
        Some(Small::TooSmall)
    } else if !mapping.shared && mapping.prot.write {
        Some(Small::Private)
    } else if used.attributes.contains(&Attribute::NoHuge) {
        Some(Small::Excluded)
    } else {
        None
    }
}

/// Says of the files that could be on huge pages why they are not. `in_huge_folios` has how many bytes of each mapping, by its start,
/// are mapped and in huge folios. Where not all folios `were_read`, what was not seen is not concluded.
pub fn explain_data_files(files: &mut [DataFile], in_huge_folios: &BTreeMap<Addr, u64>, were_read: bool) {
    for file in files.iter_mut().filter(|file| file.hint.is_some()) {
        let in_folios: u64 = file.liftable.iter().filter_map(|range| in_huge_folios.get(&range.start)).sum();
        let is_mapped_small = in_folios.saturating_sub(file.huge_bytes) * 2 >= file.small_bytes;
        file.reason = match is_mapped_small {
            true => Some(Small::MappedSmall),
            false => were_read.then_some(Small::SmallFolios),
        };
    }
}

/// Returns what says of a mapping whether it is of a file that is no object.
pub fn is_data(snapshot: &Snapshot) -> impl Fn(&Mapping) -> bool {
    let objects: ByAddress<()> = snapshot.extents().into_iter().map(|extent| (extent.range, ())).collect();
    move |mapping| {
        let is_path = mapping.path.starts_with("/") && !mapping.path.starts_with("/dev");
        let is_memory = mapping.shared && snapshot.tmpfs.contains(&(mapping.file.major, mapping.file.minor));
        let is_of_an_object = snapshot.objects.iter().any(|object| object.file == mapping.file);
        mapping.is_file()
            && is_path
            && !is_memory
            && !is_of_an_object
            && objects.over(mapping.range).next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::Prot;
    use crate::smaps;
    use crate::snapshot::BARE;

    const MB: u64 = 1 << 20;

    const SMAPS: &str = "\
40000000-40800000 rw-s 00000000 00:01 7    /dev/zero (deleted)
Rss:                8192 kB
ShmemPmdMapped:     4096 kB
VmFlags: rd wr sh mr mw me ms
41001000-41801000 rw-s 00000000 00:01 8    /dev/zero (deleted)
Rss:                6144 kB
ShmemPmdMapped:        0 kB
VmFlags: rd wr sh mr mw me ms
42000000-44000000 r--s 00000000 08:01 100    /srv/d b
Rss:               20480 kB
FilePmdMapped:      4096 kB
VmFlags: rd sh mr me ms
44000000-45000000 r--p 02000000 08:01 100    /srv/d b
Rss:                4096 kB
FilePmdMapped:         0 kB
VmFlags: rd mr mw me
46001000-47001000 r--s 00000000 08:01 101    /srv/skewed
Rss:                4096 kB
FilePmdMapped:         0 kB
VmFlags: rd sh mr me ms
47100000-47200000 r--s 00000000 08:01 102    /srv/small
Rss:                1024 kB
FilePmdMapped:         0 kB
VmFlags: rd sh mr me ms
48000000-49000000 rw-p 00000000 00:10 9    /anon_hugepage (deleted)
Rss:                   0 kB
Private_Hugetlb:   16384 kB
VmFlags: rd wr mr mw me ht
";

    fn seen() -> (Snapshot, Vec<Usage>) {
        let usage = smaps::parse_smaps(SMAPS.as_bytes()).unwrap();
        let mappings = usage.iter().map(|used| used.mapping.clone()).collect();
        (Snapshot { tmpfs: vec![(0, 1)], ..Snapshot::new(Vec::new(), mappings, BARE) }, usage)
    }

    #[test]
    fn issue_32_2_shared_memory_is_summed() {
        let (snapshot, usage) = seen();
        let shared = shared_memory(&snapshot, &usage, false, PageSize::MB2);
        let total = Total { bytes: 16 * MB, liftable_bytes: 8 * MB, huge_bytes: 4 * MB };
        assert_eq!(shared, SharedMemory { total, incongruent_bytes: 6 * MB, mounted_bytes: 0 });
        let denied = shared_memory(&snapshot, &usage, true, PageSize::MB2);
        assert_eq!(denied.total.liftable_bytes, 4 * MB, "what is huge");
        assert_eq!(usage[0].mapping.prot, Prot::RW);
    }

    #[test]
    fn issue_32_1_data_files_are_listed_with_what_helps() {
        let (snapshot, usage) = seen();
        let mut files = data_files(7, &snapshot, &usage, PageSize::MB2);
        let of = |file: &DataFile| {
            let sums = [file.bytes, file.resident_bytes, file.liftable_bytes, file.huge_bytes];
            (file.path.to_string(), sums.map(|bytes| bytes / MB), file.hint.clone(), file.reason)
        };
        let found: Vec<_> = files.iter().map(of).collect();
        let hint = Some("as root: hugelift attach --parts files 7".to_string());
        let skewed = ("/srv/skewed".to_string(), [16, 4, 0, 0], None, Some(Small::NotCongruent));
        assert_eq!(found, [("/srv/d b".into(), [48, 24, 48, 4], hint, None), skewed.clone()]);
        // 4 MB of it are mapped huge, and 20 MB small.
        let [small, mapped] = [Small::SmallFolios, Small::MappedSmall].map(Some);
        for (cached, were_read, reason) in
            [(4, true, small), (12, true, small), (4, false, None), (14, true, mapped), (14, false, mapped)]
        {
            let cached_of = BTreeMap::from([(Addr(0x4200_0000), cached * MB), (Addr(0x4600_1000), 99 * MB)]);
            explain_data_files(&mut files, &cached_of, were_read);
            assert_eq!(files[0].reason, reason, "{cached}");
            assert_eq!(of(&files[1]), skewed);
        }
    }

    #[test]
    fn issue_32_1_what_no_command_helps_has_its_reason() {
        let of = |mapping: &str, flags: &str| {
            let smaps = format!("{mapping} 00000000 08:01 100    /srv/d\nRss: 8192 kB\nVmFlags: {flags}\n");
            let usage = smaps::parse_smaps(smaps.as_bytes()).unwrap();
            let mappings = usage.iter().map(|used| used.mapping.clone()).collect();
            let files = data_files(7, &Snapshot::new(Vec::new(), mappings, BARE), &usage, PageSize::MB2);
            (files[0].reason, files[0].hint.is_some())
        };
        assert_eq!(of("42000000-42800000 r--s", "rd sh mr me ms"), (None, true));
        assert_eq!(of("42000000-42800000 r--p", "rd mr mw me"), (None, true));
        assert_eq!(of("42000000-42800000 rw-p", "rd wr mr mw me ac"), (Some(Small::Private), false));
        assert_eq!(of("42000000-42800000 r--s", "rd sh mr me ms nh"), (Some(Small::Excluded), false));
        assert_eq!(of("42001000-42801000 r--s", "rd sh mr me ms"), (Some(Small::NotCongruent), false));
        // Windows of 1 MB, of which each has the address that its offset asks for.
        let windows = "42000000-42100000 r--s 00000000 08:01 100    /srv/d\nRss: 1024 kB\nVmFlags: rd sh\n\
                       42300000-42400000 r--s 00300000 08:01 100    /srv/d\nRss: 1024 kB\nVmFlags: rd sh\n";
        let usage = smaps::parse_smaps(windows.as_bytes()).unwrap();
        let mappings = usage.iter().map(|used| used.mapping.clone()).collect();
        let files = data_files(7, &Snapshot::new(Vec::new(), mappings, BARE), &usage, PageSize::MB2);
        assert_eq!((files[0].reason, &files[0].hint), (Some(Small::TooSmall), &None));
    }

    #[test]
    fn issue_32_1_a_file_in_memory_is_collapsed_by_prime() {
        let (mut snapshot, usage) = seen();
        snapshot.tmpfs.push((8, 1));
        let usage: Vec<Usage> = usage.into_iter().filter(|used| !used.mapping.shared).collect();
        let files = data_files(7, &snapshot, &usage, PageSize::MB2);
        assert_eq!(files[0].hint.as_deref(), Some("hugelift prime --pid 7"));
    }

    #[test]
    fn issue_32_1_a_deleted_file_is_left_alone() {
        let (mut snapshot, mut usage) = seen();
        snapshot.mappings.iter_mut().for_each(|mapping| mapping.deleted = true);
        usage.iter_mut().for_each(|used| used.mapping.deleted = true);
        let files = data_files(7, &snapshot, &usage, PageSize::MB2);
        assert_eq!((files[0].reason, &files[0].hint), (Some(Small::Deleted), &None));
    }
}
