// SPDX-License-Identifier: Apache-2.0
//! Compares the memory of two loaded objects: the original and the copy whose parts have moved.

use super::sandbox::{NotRelocated, Relocated, relocate};
use crate::loader::{loader_of, trusted};
use crate::separate::Distances;
use hugelift_core::addr::{Addr, Range, human_bytes};
use hugelift_core::elf::{Headers, Machine, Segment};
use hugelift_core::maps::{Mapping, Prot};
use hugelift_core::printable::Escape;
use hugelift_linux::elf::elf_file::ElfFile;
use hugelift_linux::elf::needed;
use hugelift_linux::machine::base_page;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Pages in which protections are compared.
const PAGE: u64 = 4096;
/// Memory is compared in pieces of this size, whole pages.
const PIECE: u64 = 1 << 20;
/// A larger file is not loaded: it takes time to compare its pages, even those that it does not have.
const LARGEST: u64 = 16 << 30;

/// What came of the comparison.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Loaded {
    /// The loader made the same of both.
    Same(Compared),
    /// Nothing was compared.
    NotLoaded(String),
}

/// What was compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Compared {
    /// Bytes of read-only memory.
    pub bytes: u64,
    /// Words of writable memory.
    pub words: u64,
    /// Words that are addresses in the object itself, and moved as they should.
    pub own: u64,
    /// Words that are addresses in other objects, and point to the same place there.
    pub others: u64,
}

/// The loader made something else of the copy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Difference {
    /// It loads only the original.
    #[error("the original loads, but not the copy: {0}")]
    Copy(String),
    /// A word of memory is not what it should be. Addresses are those of the original.
    #[error("the loaded word at {at:#x} is {found:#x}, and was {was:#x} in the original")]
    Word {
        /// Its stated address.
        at: u64,
        /// In the original's memory.
        was: u64,
        /// In the copy's memory.
        found: u64,
    },
    /// Read-only memory is not what the file holds.
    #[error("the loaded memory at {at:#x} differs from the {which}")]
    ReadOnly {
        /// Its stated address in this file.
        at: u64,
        /// Which file.
        which: &'static str,
    },
    /// A page has other protections.
    #[error("the loaded page at {at:#x} has the protection {found:?}, and {was:?} in the original")]
    Protection {
        /// Its stated address.
        at: u64,
        /// In the original's memory.
        was: Option<Prot>,
        /// In the copy's memory.
        found: Option<Prot>,
    },
}

/// Lets the file's own loader load both files, and compares the memory that it makes of them.
///
/// # Errors
/// The first [`Difference`].
pub fn compare(original: &Path, copy: &File, distances: &Distances) -> Result<Loaded, Difference> {
    let not_loaded = |why: String| Ok(Loaded::NotLoaded(why));
    let from = original.canonicalize().map_err(|e| format!("{}: {e}", original.escaped()));
    let from = from.and_then(|path| ElfFile::open(&path).map_err(|e| e.to_string()));
    let (from, to) = match (from, ElfFile::of_open(copy).map_err(|e| e.to_string())) {
        (Ok(from), Ok(to)) => (from, to),
        (Err(why), _) | (_, Err(why)) => return not_loaded(why),
    };
    if !is_of_this_machine(from.headers.machine) {
        return not_loaded("it is for another machine".into());
    }
    if !from.headers.relocatable || from.headers.dynamic.is_none() {
        return not_loaded("no loader loads it".into());
    }
    let Some(named) = loader_of(&from) else { return not_loaded("it names no loader".into()) };
    let loader = match trusted(&named) {
        Ok(loader) => loader,
        Err(why) => return not_loaded(format!("its loader {} is not run: {why}", named.escaped())),
    };
    if named.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-musl")) {
        return not_loaded("its loader is musl's, which cannot relocate without running".into());
    }
    if needs_its_folder(&from) {
        return not_loaded("it names objects that it needs by its own folder ($ORIGIN)".into());
    }
    let folders = folders(&from);
    let before = match Side::new(&loader, &from, &folders) {
        Ok(side) => side,
        Err(why) => return not_loaded(why.to_string()),
    };
    let after = match Side::new(&loader, &to, &folders) {
        Ok(side) => side,
        // Its owner is another one, or it lacks an access list.
        Err(NotRelocated::Unreadable(_)) => {
            return not_loaded(NotRelocated::Unreadable("the copy").to_string());
        }
        Err(why) => return Err(Difference::Copy(why.to_string())),
    };
    same(&before, &after, distances).map(Loaded::Same)
}

fn is_of_this_machine(machine: Machine) -> bool {
    match machine {
        Machine::X86_64 => cfg!(target_arch = "x86_64"),
        Machine::AArch64 => cfg!(target_arch = "aarch64"),
        Machine::Other(_) => false,
    }
}

/// Returns the search path of the object, with its own folder for `$ORIGIN`: the copy lies in another one.
fn folders(object: &ElfFile) -> OsString {
    let dynamic = object.dynamic();
    let origin = object.path.parent().unwrap_or(Path::new("/"));
    let lists = [dynamic.rpath, dynamic.runpath].into_iter().flatten();
    let lists = lists.filter_map(|list| object.string(&dynamic, list));
    let all = lists.flat_map(|list| needed::folders(&list, origin, object.headers.machine));
    // Others are relative to the folder in which a user starts the program.
    let all: Vec<_> = all.filter(|folder| folder.is_absolute()).map(PathBuf::into_os_string).collect();
    all.join(OsStr::new(":"))
}

/// Returns whether the name of an object that it needs depends on the folder it lies in.
fn needs_its_folder(object: &ElfFile) -> bool {
    let dynamic = object.dynamic();
    let mut names = dynamic.needed.iter().filter_map(|name| object.string(&dynamic, *name));
    names.any(|name| name.as_bytes().contains(&b'$'))
}

/// One file, loaded.
struct Side<'a> {
    process: Relocated,
    file: &'a ElfFile,
    /// What loading added to its stated addresses.
    bias: u64,
    /// The mapped files and special mappings: where each lies, with what is anonymous behind it.
    objects: Vec<(u64, u64, PathBuf)>,
}

impl<'a> Side<'a> {
    fn new(loader: &Path, file: &'a ElfFile, folders: &OsStr) -> Result<Side<'a>, NotRelocated> {
        let ends = file.headers.segments.iter().map(|s| s.vaddr.saturating_add(s.memsz));
        let size = ends.max().unwrap_or(0).saturating_sub(file.headers.first_page(PAGE));
        if size > LARGEST {
            return Err(format!("it takes {} of memory", human_bytes(size)).into());
        }
        let process = relocate(loader, file.file(), size, folders)?;
        let first = process.maps.iter().find(|m| m.path == file.path);
        let first = first.ok_or_else(|| "the loader did not map the file".to_string())?;
        let bias = first.range.start.0.wrapping_sub(file.headers.first_page(PAGE));
        let objects = objects(&process.maps);
        Ok(Side { process, file, bias, objects })
    }

    fn headers(&self) -> &Headers {
        &self.file.headers
    }

    fn read(&self, vaddr: u64, size: u64) -> Option<Vec<u8>> {
        self.process.read(self.bias.wrapping_add(vaddr), size).ok()
    }

    /// Returns whether a page of `size` bytes at `vaddr` was touched; what was not is zeros. If the kernel does not
    /// say so, it may have been.
    fn is_touched(&self, vaddr: u64, size: u64) -> bool {
        let start = Addr(self.bias.wrapping_add(vaddr));
        let end = start.checked_add(size).and_then(|end| end.align_up(base_page()));
        let range = end.and_then(|end| Range::new(start.align_down(base_page()), end));
        range.is_none_or(|range| self.process.touched(range).unwrap_or(true))
    }

    /// Returns bytes of the file that are loaded at `vaddr`, as many as there are.
    fn stored(&self, vaddr: u64, size: u64) -> Vec<u8> {
        use std::os::unix::fs::FileExt;
        let mut segments = self.headers().segments.iter();
        let Some(segment) = segments.find(|s| s.vaddr <= vaddr && vaddr - s.vaddr < s.filesz) else {
            return Vec::new();
        };
        let inside = vaddr - segment.vaddr;
        let mut bytes = vec![0; usize::try_from(size.min(segment.filesz - inside)).unwrap_or(0)];
        let read = self.file.file().read_exact_at(&mut bytes, segment.offset + inside);
        if read.is_ok() { bytes } else { Vec::new() }
    }

    /// Returns the stated address of a pointer into the object itself, or just behind it.
    fn own(&self, word: u64) -> Option<u64> {
        let vaddr = word.wrapping_sub(self.bias);
        let end = self.headers().segments.iter().map(|s| s.vaddr + s.memsz).max()?;
        (vaddr <= end && word >= self.bias).then_some(vaddr)
    }

    /// Returns what a pointer points to: which mapping, and where in it.
    fn pointer(&self, word: u64) -> Option<(&Path, u64)> {
        let (start, _, path) = self.objects.iter().find(|(start, end, _)| *start <= word && word <= *end)?;
        Some((path, word - start))
    }

    /// Returns whether a segment of code holds this address.
    fn is_code(&self, vaddr: u64) -> bool {
        let mut code = self.headers().segments.iter().filter(|s| s.prot.exec);
        code.any(|s| s.vaddr <= vaddr && vaddr - s.vaddr < s.memsz)
    }

    fn protection(&self, vaddr: u64) -> Option<Prot> {
        let at = hugelift_core::addr::Addr(self.bias.wrapping_add(vaddr));
        self.process.maps.iter().find(|m| m.range.contains(at)).map(|m| m.prot)
    }
}

/// Joins the mappings of each file, and the memory without a file that follows it.
fn objects(maps: &[Mapping]) -> Vec<(u64, u64, PathBuf)> {
    let mut all: Vec<(u64, u64, PathBuf)> = Vec::new();
    for m in maps {
        let (start, end) = (m.range.start.0, m.range.end.0);
        match all.last_mut() {
            Some(last) if m.path.as_os_str().is_empty() && last.1 == start => last.1 = end,
            Some(last) if m.is_file() && last.2 == m.path => last.1 = end,
            _ => all.push((start, end, m.path.clone())),
        }
    }
    all
}

/// Returns the image of a stated address. Between parts that move alike it moves with them.
fn image(distances: &Distances, vaddr: u64) -> Option<u64> {
    let parts = distances.parts();
    let behind = parts.partition_point(|part| part.start <= vaddr);
    let before = behind.checked_sub(1).and_then(|i| parts.get(i));
    let by = match (distances.image(vaddr), before, parts.get(behind)) {
        (Some(to), ..) => return Some(to),
        (None, Some(a), Some(b)) if a.by == b.by => a.by,
        (None, Some(a), None) => a.by,
        _ => return None,
    };
    Some(vaddr.wrapping_add(by))
}

fn same(before: &Side, after: &Side, distances: &Distances) -> Result<Compared, Difference> {
    let mut compared = Compared::default();
    for (side, which) in [(before, "original"), (after, "copy")] {
        for segment in side.headers().segments.iter().filter(|s| !s.prot.write) {
            compared.bytes += read_only(side, segment, which)?;
        }
    }
    for segment in &before.headers().segments {
        protections(before, after, distances, segment)?;
        if segment.prot.write {
            words(before, after, distances, segment, &mut compared)?;
        }
    }
    Ok(compared)
}

/// Compares read-only memory with the file.
fn read_only(side: &Side, segment: &Segment, which: &'static str) -> Result<u64, Difference> {
    let differs = |at| Difference::ReadOnly { at, which };
    for (at, size) in pieces(segment.vaddr, segment.vaddr.saturating_add(segment.filesz)) {
        let (loaded, stored) = (side.read(at, size).ok_or(differs(at))?, side.stored(at, size));
        if stored.len() != loaded.len() {
            return Err(differs(at));
        }
        if let Some(i) = loaded.iter().zip(&stored).position(|(a, b)| a != b) {
            return Err(differs(at + i as u64));
        }
    }
    Ok(segment.filesz)
}

/// Returns start and size of the pieces of a range of addresses.
fn pieces(start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    let next = move |(at, size): &(u64, u64)| {
        let at = at + size;
        (at < end).then(|| (at, (end - at).min(PIECE)))
    };
    std::iter::successors((start < end).then(|| (start, (end - start).min(PIECE))), next)
}

/// Compares the protections of the pages of a segment.
fn protections(
    before: &Side,
    after: &Side,
    distances: &Distances,
    segment: &Segment,
) -> Result<(), Difference> {
    let mut at = segment.vaddr;
    while at < segment.vaddr + segment.memsz {
        let was = before.protection(at);
        let to = distances.part(at).map(|part| at + part.by);
        let found = to.and_then(|to| after.protection(to));
        // Constants beside the code may have become part of its segment, which the proof decides.
        let with_code = |prot: Prot| prot.read && !prot.write && to.is_some_and(|to| after.is_code(to));
        let expected = was.map(|prot| if with_code(prot) { Prot { exec: true, ..prot } } else { prot });
        if expected != found || found.is_some_and(|prot| prot.write && prot.exec) {
            return Err(Difference::Protection { at, was, found });
        }
        at = (at / PAGE + 1) * PAGE;
    }
    Ok(())
}

/// A piece of writable memory of both, with the words around it.
struct Piece {
    /// Where it begins, as stated in the original.
    start: u64,
    old: Vec<u8>,
    new: Vec<u8>,
    /// What the files hold of it.
    stored: (Vec<u8>, Vec<u8>),
}

impl Piece {
    fn word(bytes: &[u8], at: usize) -> u64 {
        bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
    }

    /// Returns whether an address of a packed structure lies across the word at `at` and the one beside it.
    fn is_across(&self, at: usize, kind: impl Fn(u64, u64) -> Option<Kind>) -> bool {
        let mut near = (at.saturating_sub(7)..at + 8).filter(|i| i % 8 != at % 8);
        near.any(|i| {
            let rest = (at..i).all(|j| self.old.get(j) == self.new.get(j));
            let behind = (i + 8..at + 8).all(|j| self.old.get(j) == self.new.get(j));
            let kind = kind(Piece::word(&self.old, i), Piece::word(&self.new, i));
            rest && behind && matches!(kind, Some(Kind::Own | Kind::Other))
        })
    }
}

/// Compares the words of a writable segment.
fn words(
    before: &Side,
    after: &Side,
    distances: &Distances,
    segment: &Segment,
    compared: &mut Compared,
) -> Result<(), Difference> {
    let by = image(distances, segment.vaddr).unwrap_or(segment.vaddr).wrapping_sub(segment.vaddr);
    let end = segment.vaddr.saturating_add(segment.memsz);
    let stored_end = segment.vaddr.saturating_add(segment.filesz);
    // What is before the first word, or behind the last, holds no address.
    let first = segment.vaddr.next_multiple_of(8).min(end);
    let last = first.max(end / 8 * 8);
    let piece = |start: u64, size: u64| {
        let to = start.wrapping_add(by);
        let lost = || Difference::Copy(format!("the memory at {start:#x} cannot be read"));
        let old = before.read(start, size).ok_or_else(lost)?;
        let new = after.read(to, size).ok_or_else(lost)?;
        Ok(Piece { start, old, new, stored: (before.stored(start, size), after.stored(to, size)) })
    };
    for (start, behind) in [(segment.vaddr, first), (last, end)] {
        let edge = piece(start, behind - start)?;
        for (i, (was, found)) in edge.old.iter().zip(&edge.new).enumerate() {
            if was != found {
                let (was, found) = (u64::from(*was), u64::from(*found));
                return Err(Difference::Word { at: start + i as u64, was, found });
            }
        }
    }
    for (start, size) in pieces(first, last) {
        compared.words += size / 8;
        let touched = || before.is_touched(start, size) || after.is_touched(start.wrapping_add(by), size);
        if start >= stored_end && !touched() {
            continue;
        }
        // With the words beside it: an address may lie across two.
        let from = start.saturating_sub(8).max(first);
        let with = piece(from, (start + size + 8).min(last) - from)?;
        words_of(before, after, distances, &with, (start, size), compared)?;
    }
    Ok(())
}

/// Compares the words of a piece, `size` bytes from `start`.
fn words_of(
    before: &Side,
    after: &Side,
    distances: &Distances,
    piece: &Piece,
    (start, size): (u64, u64),
    compared: &mut Compared,
) -> Result<(), Difference> {
    let kind = |was, found| kind(before, after, distances, was, found);
    for address in (start..start + size).step_by(8) {
        let at = (address - piece.start) as usize;
        let (was, found) = (Piece::word(&piece.old, at), Piece::word(&piece.new, at));
        match kind(was, found) {
            Some(Kind::Equal) => {}
            Some(Kind::Own) => compared.own += 1,
            Some(Kind::Other) => compared.others += 1,
            // What the loader leaves as it is stated was compared with the file: its own tables, and the first
            // word of the table of offsets.
            None if was == Piece::word(&piece.stored.0, at) && found == Piece::word(&piece.stored.1, at) => {}
            None if piece.is_across(at, kind) => compared.own += 1,
            None => return Err(Difference::Word { at: address, was, found }),
        }
    }
    Ok(())
}

enum Kind {
    Equal,
    Own,
    Other,
}

/// Returns what a word is, if it is the same in both.
fn kind(before: &Side, after: &Side, distances: &Distances, was: u64, found: u64) -> Option<Kind> {
    if let Some(vaddr) = before.own(was) {
        let to = image(distances, vaddr).map(|to| to.wrapping_add(after.bias));
        return (to == Some(found)).then_some(Kind::Own);
    }
    if was == found {
        return Some(Kind::Equal);
    }
    let same = before.pointer(was).is_some_and(|old| after.pointer(found) == Some(old));
    same.then_some(Kind::Other)
}
