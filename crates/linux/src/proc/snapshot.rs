// SPDX-License-Identifier: Apache-2.0
//! A [`Snapshot`] of a running process.
//!
//! The headers of an object are read from memory, where they are as the kernel mapped them: the file may
//! have been replaced since.

use crate::elf::elf_file::ElfFile;
use crate::io::read::{read_at, read_head};
use crate::machine::{base_page, nodes, probe, update_running};
use crate::proc::mapped::MappedFiles;
use crate::proc::pagemap;
use crate::proc::procfs::{ProcError, Process};
use crate::proc::status::Status;
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::attribute::Attribute;
use hugelift_core::elf::{self, HEAD_BYTES, Headers, Segment, Stretch};
use hugelift_core::maps::{FileId, Mapping};
use hugelift_core::smaps::Usage;
use hugelift_core::snapshot::{Machine, Object, Snapshot, Stored};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

/// The most that is read of a note or a dynamic section: a longer one is damaged, as no linker writes it.
const MAX_STRETCH: u64 = 64 << 10;

/// How many mappings of a file are asked where its object lies: a program may map a file that is no object thousands of
/// times.
const MAX_TRIES: u32 = 8;

/// Takes the snapshot of process `pid`; `None` is the calling process.
///
/// With `min_bytes` above 0, objects are left out if no read-only or executable mapping
/// of theirs is that large: nothing of them could be lifted, and their headers need not
/// be read. The executable is always included, if it can be found. The heap is not searched for then, and
/// attributes of memory only if something is locked.
///
/// # Errors
/// [`ProcError`] if the mappings cannot be read. An object that does not parse is left out.
pub fn live(pid: Option<u32>, min_bytes: u64) -> Result<Snapshot, ProcError> {
    let process = pid.map_or(Process::OWN, Process::new);
    let (mut machine, status) = (probe(pid), process.status()?);
    if pid.is_some_and(|pid| pid != std::process::id()) {
        update_running(&mut machine, &status);
    }
    let mut snapshot = of(process, min_bytes, machine, &status)?;
    let is_large = |m: &&Mapping| m.range.len() >= min_bytes;
    let large: Vec<&Mapping> = snapshot.mappings.iter().filter(is_large).collect();
    snapshot.patched = patched(process, &large, Checked::WholeHugePages)?;
    Ok(snapshot)
}

/// Takes a snapshot as [`live`] does, of a process at its start whose status is known already, on a machine that
/// was probed before. It does not search for code that was written to ([`find_patched`]).
///
/// # Errors
/// See [`live`].
pub fn of(
    process: Process,
    min_bytes: u64,
    machine: Machine,
    status: &Status,
) -> Result<Snapshot, ProcError> {
    let mut mappings = process.maps()?;
    process.add_bti(&mut mappings)?;
    // Without AT_ENTRY the executable is taken to be the first object: the kernel maps it
    // below the shared ones.
    let entry = process.auxv().ok().map(|a| Addr(a.entry)).filter(|a| a.0 != 0);
    let files = MappedFiles::of(process);
    let finder = Finder { process, files, page: machine.base_page, mappings: &mappings, entry, min_bytes };
    let mut objects = finder.objects();
    put_executable_first(&mut objects, entry);
    let unread = finder.unread();
    let tmpfs = if min_bytes == 0 { finder.files.tmpfs(&mappings) } else { Vec::new() };
    let mut special = if min_bytes == 0 || status.locked != Some(0) { special(process)? } else { Vec::new() };
    special.extend(unread);
    let brk = if min_bytes == 0 { start_brk(process) } else { None };
    let (patched, cached, stored) = (Vec::new(), Vec::new(), Stored::default());
    Ok(Snapshot { objects, mappings, patched, special, cached, tmpfs, brk, machine, stored })
}

/// Returns the mappings that overlap `ranges` and whose code was written to. The kernel checks each page for that.
/// It takes a millisecond for 60 MB: too long for a start that lifts nothing of them.
///
/// # Errors
/// [`ProcError`] if that cannot be read.
pub fn find_patched(
    process: Process,
    snapshot: &Snapshot,
    ranges: &[Range],
) -> Result<Vec<Range>, ProcError> {
    let is_lifted = |m: &&Mapping| ranges.iter().any(|range| range.intersect(m.range).is_some());
    let lifted: Vec<&Mapping> = snapshot.mappings.iter().filter(is_lifted).collect();
    patched(process, &lifted, Checked::All)
}

/// Where to search for code that was written to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Checked {
    /// In all of a mapping.
    All,
    /// In what whole huge pages can cover, as a running process is lifted by nothing else. The last page may hold
    /// code of a borrowed thread (`hugelift_inject::caves`).
    WholeHugePages,
}

/// Returns where the heap of a process begins, or will; `None` if the kernel hides that.
fn start_brk(process: Process) -> Option<Addr> {
    Some(Addr(process.stat().ok()?.addresses?.start_brk))
}

/// Returns the mappings with attributes. smaps is slow, so [`of`] reads it only if writable parts are to be
/// lifted, on which programs set attributes, or if something is locked.
fn special(process: Process) -> Result<Vec<(Range, Attribute)>, ProcError> {
    let of = |u: Usage| {
        let range = u.mapping.range;
        u.attributes.into_iter().map(move |a| (range, a))
    };
    let usage = process.smaps()?;
    let mut special = Vec::new();
    if nodes::are_several() {
        let placed = nodes::with_own_policy(process)?;
        let ranges = usage.iter().map(|u| u.mapping.range).filter(|r| placed.contains(&r.start));
        special.extend(ranges.map(|range| (range, Attribute::Placed)));
    }
    special.extend(usage.into_iter().flat_map(of));
    Ok(special)
}

/// Returns the mappings of code among `mappings` that hold pages which are no longer the file's.
fn patched(process: Process, mappings: &[&Mapping], checked: Checked) -> Result<Vec<Range>, ProcError> {
    // All pages of a copy are its own.
    let is_file = |m: &Mapping| m.is_file() && !m.is_copy_on_pool();
    let is_code = |m: &Mapping| is_file(m) && m.prot.exec && !m.prot.write;
    let pid = process.pid().cast_signed();
    let mut patched = Vec::new();
    let base = base_page().bytes();
    let leaves_end = |m: &Mapping| checked == Checked::WholeHugePages && keeps_its_end(m);
    for mapping in mappings.iter().filter(|m| is_code(m)) {
        let mut range = mapping.range;
        if leaves_end(mapping) {
            range.end.0 -= base;
        }
        match pagemap::written_bytes(pid, range) {
            Ok(0) => {}
            Ok(_) => patched.push(mapping.range),
            // Before Linux 6.7: smaps, once for all mappings.
            Err(_) => {
                let usage = process.smaps()?;
                let in_end = |m: &Mapping| {
                    let last = Addr(m.range.end.0 - base);
                    if leaves_end(m) && pagemap::is_own(pid, last).unwrap_or(false) { base } else { 0 }
                };
                let is_one = |m: &Mapping| is_code(m) && mappings.iter().any(|one| one.range == m.range);
                let is_written = |u: &&Usage| is_one(&u.mapping) && u.anonymous > in_end(&u.mapping);
                let written = usage.iter().filter(is_written);
                return Ok(written.map(|u| u.mapping.range).collect());
            }
        }
    }
    Ok(patched)
}

/// Returns whether the last page of a mapping cannot become part of a huge page. That has 16 base pages at least
/// (64 kB on AArch64).
pub fn keeps_its_end(mapping: &Mapping) -> bool {
    !mapping.range.end.0.is_multiple_of(16 * base_page().bytes())
}

/// Returns whether an address lies in a segment of the object.
fn holds(object: &Object, addr: Addr) -> bool {
    let mut ranges = object.headers.segments.iter().filter_map(|s| object.loaded(s.vaddr, s.memsz));
    ranges.any(|r| r.contains(addr))
}

/// Marks the object whose segments hold `entry` and puts it before the others.
fn put_executable_first(objects: &mut [Object], entry: Option<Addr>) {
    let found = entry.and_then(|addr| objects.iter().position(|o| holds(o, addr)));
    let index = if entry.is_some() { found } else { (!objects.is_empty()).then_some(0) };
    if let Some(index) = index {
        objects[index].executable = true;
        objects[..=index].rotate_right(1);
    }
}

struct Finder<'a> {
    process: Process,
    files: MappedFiles,
    page: PageSize,
    mappings: &'a [Mapping],
    entry: Option<Addr>,
    min_bytes: u64,
}

impl Finder<'_> {
    /// Returns every object, in the order of their addresses.
    fn objects(&self) -> Vec<Object> {
        let (wanted, unread): (HashSet<FileId>, HashSet<FileId>) =
            self.wanted().into_iter().partition(|file| self.files.may_be_read(*file));
        let mut started: HashSet<FileId> = HashSet::new();
        let mut objects: Vec<Object> =
            unread.into_iter().filter_map(|file| self.unread_object(file)).collect();
        let of_files = self.mappings.iter().filter(|m| m.may_be_of_object() && wanted.contains(&m.file));
        for mapping in of_files.clone().filter(|m| m.offset == 0) {
            if let Some(object) = self.read_from_memory(mapping) {
                started.insert(mapping.file);
                objects.push(object);
            }
        }
        // The first page of an object that was lifted is not the file's any more. What is
        // left of the file's mappings tells where the object lies.
        let mut tries: HashMap<FileId, u32> = HashMap::new();
        for mapping in of_files.filter(|m| m.offset != 0) {
            let tries = tries.entry(mapping.file).or_default();
            *tries += 1;
            if *tries <= MAX_TRIES
                && !started.contains(&mapping.file)
                && let Some(object) = self.read_from_file(mapping)
            {
                started.insert(mapping.file);
                objects.push(object);
            }
        }
        let is_found = |entry: Addr| objects.iter().any(|object| holds(object, entry));
        objects.extend(self.entry.filter(|entry| !is_found(*entry)).and_then(|entry| self.executable(entry)));
        objects.sort_by_key(|o| o.loaded(o.headers.first_page(self.page.bytes()), 0).map(|r| r.start));
        objects
    }

    /// Returns the mappings of files that may not be read.
    fn unread(&self) -> Vec<(Range, Attribute)> {
        let of_files = self.mappings.iter().filter(|m| m.is_file() && !self.files.may_be_read(m.file));
        of_files.map(|m| (m.range, Attribute::Unread)).collect()
    }

    /// Describes an object of which neither the file nor the memory may be read: its mappings stand for its segments.
    /// Returns `None` for a file of which no code is mapped.
    fn unread_object(&self, file: FileId) -> Option<Object> {
        let mappings = || self.mappings.iter().filter(|m| m.file == file && m.may_be_of_object());
        let first = mappings().next().filter(|_| mappings().any(|m| m.prot.exec))?;
        let segment = |m: &Mapping| Segment {
            prot: m.prot,
            vaddr: m.range.start.0,
            memsz: m.range.len(),
            filesz: m.range.len(),
            offset: m.offset,
            align: self.page.bytes(),
        };
        let headers = Headers {
            machine: elf::Machine::Other(0),
            relocatable: false,
            entry: 0,
            segments: mappings().map(segment).collect(),
            relro: None,
            interp: None,
            dynamic: None,
            notes: Vec::new(),
        };
        let path = first.path.clone();
        Some(Object { path, file, build_id: None, bias: 0, headers, executable: false, textrel: false })
    }

    /// Returns the files with a mapping that is large enough, or that holds the entry point.
    fn wanted(&self) -> HashSet<FileId> {
        let large = |m: &&Mapping| {
            let is_entry = self.entry.is_some_and(|e| m.range.contains(e));
            is_entry || (m.range.len() >= self.min_bytes && (!m.prot.write || self.min_bytes == 0))
        };
        self.mappings.iter().filter(|m| m.is_file()).filter(large).map(|m| m.file).collect()
    }

    /// Returns the object of which `mapping` maps the first page.
    fn read_from_memory(&self, mapping: &Mapping) -> Option<Object> {
        let head = self.head(mapping.range.start)?;
        let deeper = |offset, size| self.at_offset(mapping.file, offset, size);
        let headers = Headers::parse_with(&head, deeper).ok()?;
        let bias = mapping.range.start.0.wrapping_sub(headers.first_page(self.page.bytes()));
        self.object(mapping.path.clone(), mapping.file, headers, &head, bias)
    }

    /// Returns the object of which `mapping` maps a later page, with the headers that its file has.
    fn read_from_file(&self, mapping: &Mapping) -> Option<Object> {
        let file = self.files.find(mapping).and_then(|found| found.open()).ok()?;
        let head = read_head(&file).ok()?;
        let deeper = |offset, size| read_at(&file, offset, size);
        let headers = Headers::parse_with(&head, deeper).ok()?;
        let page = self.page.bytes();
        // Two segments may share a page of the file: one ends in it, and the next begins.
        let holds = |s: &&elf::Segment| {
            let first = s.offset & !(page - 1);
            s.filesz > 0 && first <= mapping.offset && mapping.offset < s.offset.saturating_add(s.filesz)
        };
        let bias = |s: &elf::Segment| {
            let stated = s.vaddr.wrapping_sub(s.offset).wrapping_add(mapping.offset);
            mapping.range.start.0.wrapping_sub(stated)
        };
        // Another file may have taken the path meanwhile.
        let is_there = |bias: &u64| {
            let in_memory = self.head(Addr(headers.first_page(page).wrapping_add(*bias)));
            in_memory.is_some_and(|bytes| {
                !bytes.is_empty() && bytes.iter().zip(&head).all(|(here, there)| here == there)
            })
        };
        let bias = headers.segments.iter().filter(holds).map(bias).find(is_there)?;
        self.object(mapping.path.clone(), mapping.file, headers, &head, bias)
    }

    /// Returns the executable if no mapping shows where it lies: none of its segments has the ELF header, or huge pages
    /// have replaced all mappings of its file. The kernel's link leads to that file, and the entry point tells the bias.
    fn executable(&self, entry: Addr) -> Option<Object> {
        let file = self.files.executable().ok()?;
        let ElfFile { path, id, headers, .. } = ElfFile::of_open(&file).ok()?;
        let head = read_head(&file).ok()?;
        // Some file systems show another device in maps than in stat(2).
        let shown = self.mappings.iter().find(|m| m.is_file() && m.file.inode == id.inode && m.path == path);
        let bias = entry.0.wrapping_sub(headers.entry);
        self.object(path, shown.map_or(id, |mapping| mapping.file), headers, &head, bias)
    }

    /// Returns `size` bytes at `offset` of a file, from any mapping of them: BOLT moves the program headers
    /// behind everything else.
    fn at_offset(&self, file: FileId, offset: u64, size: usize) -> Option<Vec<u8>> {
        let holds = |m: &&Mapping| m.file == file && (m.offset..m.offset + m.range.len()).contains(&offset);
        let mapping = self.mappings.iter().find(holds)?;
        let mut bytes = vec![0; size];
        let addr = mapping.range.start.checked_add(offset - mapping.offset)?;
        (self.process.read_memory(addr, &mut bytes).ok()? == size).then_some(bytes)
    }

    fn head(&self, addr: Addr) -> Option<Vec<u8>> {
        let mut head = vec![0; HEAD_BYTES];
        let got = self.process.read_memory(addr, &mut head).ok()?;
        head.truncate(got);
        Some(head)
    }

    fn object(
        &self,
        path: PathBuf,
        file: FileId,
        headers: Headers,
        head: &[u8],
        bias: u64,
    ) -> Option<Object> {
        let read = |stretch: Stretch| {
            let end = usize::try_from(stretch.offset.checked_add(stretch.size)?).ok()?;
            if let Some(bytes) = head.get(usize::try_from(stretch.offset).ok()?..end) {
                return Some(bytes.to_vec());
            }
            let mut bytes = vec![0; usize::try_from(stretch.size.min(MAX_STRETCH)).ok()?];
            let addr = Addr(stretch.vaddr.wrapping_add(bias));
            let got = self.process.read_memory(addr, &mut bytes).ok()?;
            bytes.truncate(got);
            Some(bytes)
        };
        let object = describe(path, file, headers, bias, &read);
        self.is_loaded(&object).then_some(object)
    }

    /// Returns whether the code of `object` is mapped as code. A program may also map an ELF file only to
    /// read it.
    fn is_loaded(&self, object: &Object) -> bool {
        object.headers.segments.iter().all(|segment| {
            let Some(range) = object.loaded(segment.vaddr, segment.memsz) else { return false };
            let i = self.mappings.partition_point(|m| m.range.end <= range.start);
            let mapping = self.mappings.get(i).filter(|m| m.range.contains(range.start));
            mapping.is_some_and(|m| m.prot.exec || !segment.prot.exec)
        })
    }
}

/// Describes the object that results from loading a file with `bias`; `read` reads a stretch of it, from
/// memory or from the file.
pub fn describe(
    path: PathBuf,
    file: FileId,
    headers: Headers,
    bias: u64,
    read: &dyn Fn(Stretch) -> Option<Vec<u8>>,
) -> Object {
    let build_id = headers.notes.iter().find_map(|&note| elf::build_id(&read(note)?));
    let textrel = headers.dynamic.and_then(read).is_some_and(|bytes| elf::dynamic(&bytes).textrel);
    Object { path, file, build_id, bias, headers, executable: false, textrel }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::snapshot::Part;

    #[test]
    fn own_process() {
        let snapshot = live(None, 0).unwrap();
        let own = std::env::current_exe().unwrap();
        assert!(snapshot.objects[0].executable);
        assert_eq!(snapshot.objects[0].path, own);
        assert_eq!(snapshot.objects.iter().filter(|o| o.executable).count(), 1);
        assert!(snapshot.objects.len() > 2, "libc and the loader at least: {snapshot:?}");
        let here = Addr(own_process as fn() as usize as u64);
        let extents = snapshot.extents();
        let extent = extents.iter().find(|e| e.range.contains(here)).unwrap();
        assert_eq!((extent.object, extent.part), (0, Part::Text));
        assert!(snapshot.objects.iter().any(|o| o.build_id.as_ref().is_some_and(|b| b.len() == 40)));
    }

    #[test]
    fn small_objects_are_left_out_when_asked() {
        let all = live(None, 0).unwrap();
        let large = live(None, 1 << 40).unwrap();
        assert_eq!(large.objects, all.objects[..1], "only the executable");
        let some = live(None, 1 << 20).unwrap();
        assert!(some.objects.iter().all(|o| all.objects.contains(o)));
    }

    #[test]
    fn a_file_that_is_mapped_only_to_be_read_is_no_object() {
        let own = std::env::current_exe().unwrap();
        let file = std::fs::File::open(&own).unwrap();
        let len = std::num::NonZeroUsize::new(file.metadata().unwrap().len() as usize).unwrap();
        let flags = nix::sys::mman::MapFlags::MAP_PRIVATE;
        let prot = nix::sys::mman::ProtFlags::PROT_READ;
        // SAFETY: mmap(2) at an address of the kernel's choice.
        let addr = unsafe { nix::sys::mman::mmap(None, len, prot, flags, &file, 0).unwrap() };
        let snapshot = live(None, 0).unwrap();
        assert_eq!(snapshot.objects.iter().filter(|o| o.path == own).count(), 1);
        // SAFETY: munmap(2) of the mapping made above.
        unsafe { nix::sys::mman::munmap(addr, len.get()).unwrap() };
    }
}
