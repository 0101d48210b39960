// SPDX-License-Identifier: Apache-2.0
//! A process as the planner sees it: its mappings, the objects in them, and what the machine offers.
//! It is plain data, read from a live process or a file, or built in a test.

mod machine;
mod part;

use crate::addr::{Addr, Range};
use crate::attribute::Attribute;
use crate::elf::Headers;
use crate::maps::{FileId, Mapping, Prot};
use crate::mounts::Device;
use std::collections::BTreeSet;
use std::path::PathBuf;

#[cfg(test)]
pub(crate) use machine::BARE;
pub use machine::{Machine, MemoryLimit, Pool, ThpOff};
pub use part::Part;

/// An ELF file mapped in a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    /// As in `/proc/PID/maps`.
    pub path: PathBuf,
    /// The file's device and inode.
    pub file: FileId,
    /// GNU build-id in hexadecimal, if it has one.
    pub build_id: Option<String>,
    /// What loading added to the stated addresses (wrapping).
    pub bias: u64,
    /// Its program headers.
    pub headers: Headers,
    /// It is the program itself, not a shared object or the loader.
    pub executable: bool,
    /// The loader writes relocations into its text (`DT_TEXTREL`).
    pub textrel: bool,
}

impl Object {
    /// Returns where the stated range `vaddr..vaddr+size` lies in the process; `None` if that would
    /// wrap around the address space.
    pub fn loaded(&self, vaddr: u64, size: u64) -> Option<Range> {
        Range::sized(Addr(vaddr.wrapping_add(self.bias)), size)
    }
}

/// Bytes of an object that a file of the store holds for all processes to map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredCopy {
    /// The bytes in this process: whole huge pages.
    pub range: Range,
    /// Index into the store's open files ([`crate::target::Target::map_stored`]).
    pub entry: usize,
    /// The offset in that file where they start.
    pub offset: u64,
}

/// What the store has for a process; empty if the store was not asked.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Stored {
    /// Copies that can be mapped.
    pub copies: Vec<StoredCopy>,
    /// Ranges without a copy, and why.
    pub lacks: Vec<(Range, NotStored)>,
}

/// Why the store has no copy of some bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotStored {
    /// The reason in words, with the values seen.
    pub why: String,
    /// What the user can do about it.
    pub hint: Option<String>,
}

impl StoredCopy {
    /// Returns the part of it that is a copy of `range`, which lies in its own.
    pub fn part(&self, range: Range) -> Option<StoredCopy> {
        let offset = self.offset.checked_add(range.start.0.checked_sub(self.range.start.0)?)?;
        Some(StoredCopy { range, offset, ..*self })
    }
}

impl Stored {
    /// Returns why there is no copy of all of `range`, if the store was asked for one.
    pub fn lack(&self, range: Range) -> Option<&NotStored> {
        self.lacks.iter().find(|(r, _)| r.intersect(range).is_some()).map(|(_, why)| why)
    }
}

/// A process, or a program as it would be when started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// The objects, the executable first, then by address.
    pub objects: Vec<Object>,
    /// The mappings, by address.
    pub mappings: Vec<Mapping>,
    /// Mappings of code in which some pages are no longer the file's: they were written to, as
    /// debuggers and uprobes do.
    pub patched: Vec<Range>,
    /// Mappings with an attribute that a copy would not have.
    pub special: Vec<(Range, Attribute)>,
    /// Stretches of file mappings that huge page table entries can map as they are: the page cache
    /// holds them in huge folios, and address and offset agree within a huge page.
    pub cached: Vec<Range>,
    /// The devices of tmpfs of which the process maps files with `MAP_SHARED`: the shared memory
    /// ([`Snapshot::shared_memory`]).
    pub tmpfs: Vec<Device>,
    /// Where the heap begins, or will (`start_brk`, proc_pid_stat(5)): it grows into the space above.
    /// `None` if it is not known; then the space behind the executable is kept free for it.
    pub brk: Option<Addr>,
    /// What the machine offers.
    pub machine: Machine,
    /// What the store has for it.
    pub stored: Stored,
}

/// A stretch of one part of one object inside one mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Index into [`Snapshot::objects`].
    pub object: usize,
    /// What it holds.
    pub part: Part,
    /// Where it lies.
    pub range: Range,
    /// What its mapping allows now.
    pub prot: Prot,
    /// The bytes shown are still the file's (not anonymous memory laid over them).
    pub file_backed: bool,
}

impl Snapshot {
    /// Returns a program with nothing but these objects and mappings: nothing is patched, special, cached or
    /// stored, and where the heap begins is not known.
    pub fn new(objects: Vec<Object>, mappings: Vec<Mapping>, machine: Machine) -> Snapshot {
        Snapshot {
            objects,
            mappings,
            patched: Vec::new(),
            special: Vec::new(),
            cached: Vec::new(),
            tmpfs: Vec::new(),
            brk: None,
            machine,
            stored: Stored::default(),
        }
    }

    /// Returns every extent of every object, object by object, by address.
    ///
    /// A segment's pages are rounded out to base pages, as the kernel maps them. The page that `.data`
    /// and `.bss` share counts as data. No byte is in two extents.
    pub fn extents(&self) -> Vec<Extent> {
        let mut all = Vec::new();
        let files: BTreeSet<FileId> = self.objects.iter().map(|object| object.file).collect();
        for index in 0..self.objects.len() {
            self.extents_of(index, &files, &mut all);
        }
        self.extents_of_the_process(&mut all);
        disjoint(&mut all);
        all
    }

    fn extents_of(&self, index: usize, files: &BTreeSet<FileId>, out: &mut Vec<Extent>) {
        let object = &self.objects[index];
        let page = self.machine.base_page;
        let rounded = |vaddr: u64, size: u64| {
            let range = object.loaded(vaddr, size)?;
            Range::new(range.start.align_down(page), range.end.align_up(page)?)
        };
        // The kernel and the loader make the base pages read-only that lie wholly inside RELRO.
        let relro = object.headers.relro.and_then(|r| {
            let range = object.loaded(r.vaddr, r.size)?;
            Range::new(range.start.align_down(page), range.end.align_down(page))
        });
        let segments = &object.headers.segments;
        for (i, segment) in segments.iter().enumerate() {
            let Some(mut whole) = rounded(segment.vaddr, segment.memsz) else { continue };
            // Two segments may share a base page (a file linked for 4 kB pages, on 64 kB ones): the
            // later segment is mapped over the earlier.
            if let Some(next) = segments.get(i + 1).and_then(|s| rounded(s.vaddr, s.memsz)) {
                whole.end = whole.end.min(next.start).max(whole.start);
            }
            let mut pieces: Vec<(Part, Range)> = Vec::new();
            if segment.prot.exec {
                pieces.push((Part::Text, whole));
            } else if !segment.prot.write {
                pieces.push((Part::Rodata, whole));
            } else {
                let from_file = rounded(segment.vaddr, segment.filesz).filter(|_| segment.filesz > 0);
                let file_end = from_file.map_or(whole.start, |r| r.end);
                let data = Range { start: whole.start, end: file_end.min(whole.end) };
                let hidden = relro.and_then(|r| r.intersect(whole)).unwrap_or_default();
                pieces.extend(Some((Part::Relro, hidden)).filter(|(_, r)| !r.is_empty()));
                pieces.extend(data.minus(hidden).into_iter().map(|r| (Part::Data, r)));
                let bss = Range { start: data.end, end: whole.end };
                pieces.extend(bss.minus(hidden).into_iter().map(|r| (Part::Bss, r)));
            }
            for (part, piece) in pieces {
                let belongs = |m: &&Mapping| belongs(m, object, files);
                for mapping in overlapping(&self.mappings, piece).iter().filter(belongs) {
                    if let Some(range) = mapping.range.intersect(piece) {
                        let file_backed = mapping.file == object.file && mapping.is_file();
                        out.push(Extent { object: index, part, range, prot: mapping.prot, file_backed });
                    }
                }
            }
        }
    }

    /// Adds heap and stack. The part of `.bss` in the mapping that the kernel calls the heap stays
    /// `.bss`.
    fn extents_of_the_process(&self, out: &mut Vec<Extent>) {
        let Some(object) = self.objects.iter().position(|o| o.executable) else { return };
        for mapping in self.mappings.iter().filter(|m| !m.shared) {
            let part = match mapping {
                m if m.is_named("[heap]") => Part::Heap,
                m if m.is_named("[stack]") => Part::Stack,
                _ => continue,
            };
            let claimed = out.iter().filter(|e| e.range.intersect(mapping.range).is_some());
            let free = claimed.fold(vec![mapping.range], |free, e| {
                free.iter().flat_map(|piece| piece.minus(e.range)).collect()
            });
            let extent = |range| Extent { object, part, range, prot: mapping.prot, file_backed: false };
            out.extend(free.into_iter().map(extent));
        }
    }

    /// Returns the extents of [`Part::Anon`] and [`Part::Jit`], by address: private anonymous memory that the process can
    /// access and that is in none of `extents`, which are those of [`Snapshot::extents`]. A plan has none of
    /// it: there is none at a start.
    pub fn anonymous(&self, extents: &[Extent]) -> Vec<Extent> {
        let Some(object) = self.objects.iter().position(|o| o.executable) else { return Vec::new() };
        let mut claimed: Vec<Range> = extents.iter().map(|e| e.range).collect();
        claimed.sort_by_key(|range| range.start);
        let is_wanted = |m: &&Mapping| {
            let Prot { read, write, exec, .. } = m.prot;
            let of_the_kernel = m.is_kernel_code() || m.is_named("[heap]") || m.is_named("[stack]");
            (read || write || exec) && !m.shared && !m.is_file() && !of_the_kernel
        };
        let mut all = Vec::new();
        for mapping in self.mappings.iter().filter(is_wanted) {
            let from = claimed.partition_point(|range| range.end <= mapping.range.start);
            let over = claimed[from..].iter().take_while(|range| range.start < mapping.range.end);
            let free = over.fold(vec![mapping.range], |free, taken| {
                free.iter().flat_map(|piece| piece.minus(*taken)).collect()
            });
            let part = if mapping.prot.exec { Part::Jit } else { Part::Anon };
            let prot = mapping.prot;
            all.extend(free.into_iter().map(|range| Extent {
                object,
                part,
                range,
                prot,
                file_backed: false,
            }));
        }
        all
    }

    /// Returns the mapping that holds `addr`.
    pub fn mapping_at(&self, addr: Addr) -> Option<&Mapping> {
        let i = self.mappings.partition_point(|m| m.range.end <= addr);
        self.mappings.get(i).filter(|m| m.range.contains(addr))
    }
}

/// Returns whether `mapping` can be a part of `object`: it is not of another object's file, not one
/// of the kernel's own pages, and not shared. `files` are those of all objects.
fn belongs(mapping: &Mapping, object: &Object, files: &BTreeSet<FileId>) -> bool {
    !mapping.shared
        && !mapping.is_kernel_code()
        && (!mapping.is_file() || mapping.file == object.file || !files.contains(&mapping.file))
}

/// Removes overlaps: headers that contradict each other can claim a byte for two objects. It stays
/// with the extent that starts first.
fn disjoint(extents: &mut Vec<Extent>) {
    let mut order: Vec<usize> = (0..extents.len()).collect();
    order.sort_by_key(|&i| (extents[i].range.start, i));
    let mut claimed = Addr(0);
    for i in order {
        let range = &mut extents[i].range;
        range.start = range.start.max(claimed).min(range.end);
        claimed = claimed.max(range.end);
    }
    extents.retain(|e| !e.range.is_empty());
}

/// Returns the mappings that overlap `range`; `mappings` is sorted by address.
pub fn overlapping(mappings: &[Mapping], range: Range) -> &[Mapping] {
    let from = mappings.partition_point(|m| m.range.end <= range.start);
    let to = mappings.partition_point(|m| m.range.start < range.end);
    mappings.get(from..to).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::PageSize;
    use crate::elf::{self, Segment, Stretch};

    const FILE: FileId = FileId { major: 8, minor: 1, inode: 7 };

    fn r(start: u64, end: u64) -> Range {
        Range { start: Addr(start), end: Addr(end) }
    }

    fn mapping(range: Range, prot: Prot, inode: u64) -> Mapping {
        let file = FileId { inode, ..FILE };
        Mapping { range, prot, shared: false, offset: 0, file, path: "/o".into(), deleted: false }
    }

    fn object(bias: u64, segments: &[(Prot, u64, u64, u64)], relro: Option<(u64, u64)>) -> Object {
        let segment = |&(prot, vaddr, memsz, filesz): &(Prot, u64, u64, u64)| Segment {
            prot,
            vaddr,
            memsz,
            filesz,
            offset: vaddr,
            align: 4096,
        };
        let headers = elf::Headers {
            machine: elf::Machine::X86_64,
            relocatable: true,
            entry: 0,
            segments: segments.iter().map(segment).collect(),
            relro: relro.map(|(vaddr, size)| Stretch { offset: vaddr, vaddr, size }),
            interp: None,
            dynamic: None,
            notes: vec![],
        };
        let path = "/o".into();
        Object { path, file: FILE, build_id: None, bias, headers, executable: true, textrel: false }
    }

    fn snapshot(base: u64, objects: Vec<Object>, mappings: Vec<Mapping>) -> Snapshot {
        let machine = Machine { base_page: PageSize::new(base).unwrap(), thp_page: None, ..BARE };
        Snapshot::new(objects, mappings, machine)
    }

    fn extents(base: u64, objects: Vec<Object>, mappings: Vec<Mapping>) -> Vec<(usize, Part, Range)> {
        snapshot(base, objects, mappings).extents().iter().map(|e| (e.object, e.part, e.range)).collect()
    }

    #[test]
    fn a_writable_segment_has_relro_data_and_bss() {
        let o = object(0x100000, &[(Prot::RW, 0x1800, 0x5000, 0x2000)], Some((0x1800, 0x0900)));
        let m = mapping(r(0x101000, 0x107000), Prot::RW, 7);
        let expected = vec![
            (0, Part::Relro, r(0x101000, 0x102000)),
            (0, Part::Data, r(0x102000, 0x104000)),
            (0, Part::Bss, r(0x104000, 0x107000)),
        ];
        assert_eq!(extents(4096, vec![o], vec![m]), expected);
    }

    #[test]
    fn a_segment_without_bytes_in_the_file_is_all_bss() {
        let o = object(0, &[(Prot::RW, 0x1800, 0x5000, 0)], None);
        let m = mapping(r(0x1000, 0x7000), Prot::RW, 0);
        assert_eq!(extents(4096, vec![o], vec![m]), vec![(0, Part::Bss, r(0x1000, 0x7000))]);
    }

    #[test]
    fn anonymous_memory_is_what_no_part_has() {
        let o = object(0, &[(Prot::RW, 0x1800, 0x5000, 0)], None);
        let nameless = |start, end, prot| {
            let file = FileId::default();
            Mapping { file, path: PathBuf::new(), ..mapping(r(start, end), prot, 0) }
        };
        let named = |start, end, name: &str| Mapping { path: name.into(), ..nameless(start, end, Prot::RW) };
        let shared = Mapping { shared: true, ..nameless(0x30000, 0x31000, Prot::RW) };
        let mappings = vec![
            // The kernel has merged the bss with what the program has mapped behind it.
            nameless(0x1000, 0x9000, Prot::RW),
            named(0x10000, 0x12000, "[heap]"),
            nameless(0x20000, 0x21000, Prot::NONE),
            shared,
            nameless(0x40000, 0x41000, Prot::R),
            named(0x50000, 0x51000, "[anon:arena]"),
            mapping(r(0x60000, 0x61000), Prot::RW, 9),
            named(0x70000, 0x71000, "[vvar]"),
            named(0x80000, 0x81000, "[stack]"),
        ];
        let all = snapshot(4096, vec![o], mappings.clone());
        let found = all.anonymous(&all.extents());
        assert!(found.iter().all(|e| (e.object, e.part, e.file_backed) == (0, Part::Anon, false)));
        let ranges: Vec<Range> = found.iter().map(|e| e.range).collect();
        assert_eq!(ranges, [r(0x7000, 0x9000), r(0x40000, 0x41000), r(0x50000, 0x51000)]);
        assert!(snapshot(4096, vec![], mappings).anonymous(&[]).is_empty(), "no object can have it");
    }

    /// A file linked for 4 kB pages, on pages of 64 kB.
    #[test]
    fn a_page_of_two_segments_belongs_to_the_later() {
        let o = object(0, &[(Prot::RX, 0x10000, 0x18000, 0x18000), (Prot::R, 0x28000, 0x8000, 0x8000)], None);
        let m = vec![mapping(r(0x10000, 0x20000), Prot::RX, 7), mapping(r(0x20000, 0x30000), Prot::R, 7)];
        let expected = vec![(0, Part::Text, r(0x10000, 0x20000)), (0, Part::Rodata, r(0x20000, 0x30000))];
        assert_eq!(extents(65536, vec![o], m), expected);
    }

    #[test]
    fn mappings_of_other_files_or_of_the_kernel_are_no_part_of_an_object() {
        let o = object(0, &[(Prot::RX, 0x1000, 0x6000, 0x6000)], None);
        let mut other = object(0x100000, &[(Prot::RX, 0x1000, 0x1000, 0x1000)], None);
        other.file.inode = 8;
        let mut maps: Vec<Mapping> =
            (1..7).map(|n| mapping(r(n << 12, (n + 1) << 12), Prot::RX, 7)).collect();
        maps[1].file.inode = 8; // of the other object
        maps[2].shared = true;
        (maps[3].file, maps[3].path) = (FileId::default(), "[vdso]".into());
        maps[4].file.inode = 9; // of no object: put there by a lift
        let expected = vec![
            (0, Part::Text, r(0x1000, 0x2000)),
            (0, Part::Text, r(0x5000, 0x6000)),
            (0, Part::Text, r(0x6000, 0x7000)),
        ];
        assert_eq!(extents(4096, vec![o, other], maps), expected);
    }

    #[test]
    fn segments_at_the_top_of_the_address_space_are_ignored() {
        let top = u64::MAX - 0x1000;
        let o = object(top, &[(Prot::RX, 0, 0x800, 0x800), (Prot::RX, 0x900, 0x8000, 0x8000)], None);
        let m = mapping(r(!0xfff - 0x1000, !0xfff), Prot::RX, 7);
        let pieces = extents(65536, vec![o], vec![m]);
        assert!(pieces.is_empty(), "{pieces:?}");
        assert_eq!(object(u64::MAX, &[], None).loaded(0x1001, 0x1000), Some(r(0x1000, 0x2000)));
    }

    #[test]
    fn pools_count_available_pages() {
        let pool = Pool { page: PageSize::MB2, total: 9, free: 5, reserved: 2, surplus: 1, overcommit: 4 };
        assert_eq!((pool.unpromised(), pool.available()), (3, 6));
        let odd = Pool { free: 1, reserved: 2, surplus: 9, ..pool };
        assert_eq!(odd.available(), 0);
        assert_eq!(Pool { overcommit: u64::MAX, ..pool }.available(), u64::MAX);
    }
}
