// SPDX-License-Identifier: Apache-2.0
//! A [`Snapshot`] of a program that does not run: its objects are laid out as the kernel and the loader
//! would do it, at assumed addresses.
//!
//! ```text
//!   stated          0x555555400000    0x7f0000000000 + ...                    stack
//!   |executable|     |executable|      |loader| |libc| |...|                  |--|
//!    (not PIE)         (PIE)           each biased by whole huge pages
//! ```

use crate::elf::elf_file::{ElfFile, FileError, open_head};
use crate::elf::needed::needed;
use crate::machine::probe;
use crate::proc::snapshot::describe;
use crate::script::{MAX_SCRIPTS, interpreter};
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::elf::Headers;
use hugelift_core::loading::{self, anonymous};
use hugelift_core::maps::{Mapping, Prot};
use hugelift_core::printable::Untrusted;
use hugelift_core::relocate::base::Base;
use hugelift_core::snapshot::{Object, Snapshot};
use std::path::{Path, PathBuf};

/// A program as it would be when started.
#[derive(Debug)]
pub struct ExecStopped {
    /// Its objects at assumed addresses.
    pub snapshot: Snapshot,
    /// Names of shared objects that its loader would not find.
    pub missing: Vec<Untrusted>,
}

/// Roughly where x86-64 and AArch64 kernels place things without randomization.
const PIE: u64 = 0x5555_5540_0000;
const SHARED: u64 = 0x7f00_0000_0000;
const STACK: u64 = 0x7fff_ff00_0000;
const STACK_BYTES: u64 = 1 << 20;

/// Takes the snapshot that the program (or the interpreter of the script) at `path` would
/// give when started. A position-independent executable is at the base that `base` returns for it, or where it would be
/// by itself.
///
/// # Errors
/// [`FileError`] for the program; shared objects that cannot be read count as missing.
pub fn of_file(path: &Path, base: impl FnOnce(&ElfFile) -> Option<Base>) -> Result<ExecStopped, FileError> {
    let program = needed(ElfFile::open(&executable(path)?)?);
    let machine = probe(None);
    let huge = machine.thp_page.unwrap_or(PageSize::MB2);
    let base = program.files.first().and_then(base);
    let mut layout = Layout { page: machine.base_page, huge, base, mappings: Vec::new(), next: SHARED };
    let mut objects = Vec::new();
    for (i, file) in program.files.iter().enumerate() {
        let no_room = || FileError::NoRoom { path: file.path.clone().into() };
        objects.push(layout.load(file, i == 0).ok_or_else(no_room)?);
    }
    let stack = Range { start: Addr(STACK), end: Addr(STACK + STACK_BYTES) };
    // Its size is not known, so it is not a part: it only marks the end of the address space.
    layout.mappings.push(anonymous(stack, Prot::RW, ""));
    layout.mappings.sort_by_key(|m| m.range.start);
    // The heap begins behind the executable's last huge page, at a random distance that is not known.
    let own = objects.first().map(|o: &Object| (o.headers.segments.last(), o));
    let end = own.and_then(|(last, o)| o.loaded(last?.vaddr, last?.memsz)?.end.align_up(huge));
    Ok(ExecStopped {
        snapshot: Snapshot { brk: end, ..Snapshot::new(objects, layout.mappings, machine) },
        missing: program.missing,
    })
}

/// Leaves the base of an executable to the kernel, for [`of_file`].
pub fn by_itself(_: &ElfFile) -> Option<Base> {
    None
}

/// Returns the ELF file that the kernel executes for `path`, which may be a script.
///
/// # Errors
/// [`FileError`] of the first that cannot be read.
pub fn executable(path: &Path) -> Result<PathBuf, FileError> {
    Ok(executable_head(path)?.0)
}

/// Returns the same file, and its program headers.
///
/// # Errors
/// [`FileError`] of the first that cannot be read, or is no ELF program.
pub fn executable_headers(path: &Path) -> Result<(PathBuf, Headers), FileError> {
    let (path, head) = executable_head(path)?;
    match Headers::parse(&head) {
        Ok(headers) => Ok((path, headers)),
        Err(source) => Err(FileError::Elf { path: path.into(), source }),
    }
}

/// Returns the same file, and its first bytes.
fn executable_head(path: &Path) -> Result<(PathBuf, Vec<u8>), FileError> {
    let mut at = path.to_path_buf();
    for _ in 0..=MAX_SCRIPTS {
        let (_, head, _) = open_head(&at)?;
        match interpreter(&head) {
            Some(next) => at = next,
            None => return Ok((at, head)),
        }
    }
    Err(FileError::Scripts { path: path.into() })
}

struct Layout {
    page: PageSize,
    huge: PageSize,
    /// The base of a position-independent executable; whole huge pages if it does not matter.
    base: Option<Base>,
    mappings: Vec<Mapping>,
    /// Where the next shared object may go.
    next: u64,
}

impl Layout {
    /// Gives the object a place; returns `None` if it does not fit into the address space.
    fn load(&mut self, file: &ElfFile, executable: bool) -> Option<Object> {
        let headers = &file.headers;
        let first = headers.first_page(self.page.bytes());
        let last = headers.segments.last()?;
        let end = Addr(last.vaddr.checked_add(last.memsz)?).align_up(self.huge)?.0;
        let bias = match (headers.relocatable, executable) {
            (false, _) => 0,
            (true, true) => match self.base {
                Some(base) => Addr(PIE).align_up(base.page)?.0.wrapping_add(base.residue),
                None => self.bias(PIE, first)?,
            },
            (true, false) => self.bias(self.next, first)?,
        };
        let top = end.wrapping_add(bias);
        // Executables must end below the shared objects, shared objects below the stack.
        let (from, to) = if executable { (0, SHARED) } else { (self.next, STACK) };
        let start = first.wrapping_add(bias);
        if !(from <= start && start < top && top <= to) {
            return None;
        }
        if !executable {
            self.next = top;
        }
        let begin = self.mappings.len();
        self.mappings.extend(loading::mappings(headers, bias, self.page, file.id, &file.path)?);
        if !executable {
            self.close_holes(begin, file);
        }
        // /proc/PID/maps shows paths without symbolic links.
        let path = std::fs::canonicalize(&file.path).unwrap_or_else(|_| file.path.clone());
        let mut object = describe(path, file.id, headers.clone(), bias, &|stretch| file.read(stretch));
        object.executable = executable;
        Some(object)
    }

    /// Returns the bias of whole huge pages that brings the stated `first` to `base` or just above.
    fn bias(&self, base: u64, first: u64) -> Option<u64> {
        let stated = Addr(first).align_down(self.huge).0;
        Some(Addr(base).align_up(self.huge)?.0.wrapping_sub(stated))
    }

    /// Maps the gaps between the segments of a shared object, as glibc's loader does.
    fn close_holes(&mut self, begin: usize, file: &ElfFile) {
        let mut own: Vec<Range> = self.mappings[begin..].iter().map(|m| m.range).collect();
        own.sort();
        let holes = own.windows(2).filter_map(|w| Range::new(w[0].end, w[1].start));
        let holes = holes.filter(|r| !r.is_empty()).map(|range| anonymous(range, Prot::NONE, &file.path));
        self.mappings.extend(holes.collect::<Vec<_>>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::snapshot::{Extent, Part};
    use std::collections::BTreeMap;

    /// Returns the bytes of each part of each object that a file determines.
    fn sizes(snapshot: &Snapshot) -> BTreeMap<(PathBuf, Part), u64> {
        let mut sizes = BTreeMap::new();
        let of_a_file = |e: &Extent| !matches!(e.part, Part::Heap | Part::Stack);
        for extent in snapshot.extents().into_iter().filter(of_a_file) {
            let path = snapshot.objects[extent.object].path.clone();
            *sizes.entry((path, extent.part)).or_default() += extent.range.len();
        }
        sizes
    }

    #[test]
    fn a_program_is_laid_out_as_it_runs() {
        let path = std::env::current_exe().unwrap();
        let assumed = of_file(&path, by_itself).unwrap();
        assert_eq!(assumed.missing, Vec::<Untrusted>::new());
        let live = crate::proc::snapshot::live(None, 0).unwrap();
        assert_eq!(sizes(&assumed.snapshot), sizes(&live));
        assert!(assumed.snapshot.objects[0].executable);
        assert_eq!(assumed.snapshot.objects[0].build_id, live.objects[0].build_id);
        let ordered = assumed.snapshot.mappings.windows(2).all(|w| w[0].range.end <= w[1].range.start);
        assert!(ordered, "{:#?}", assumed.snapshot.mappings);
    }
}
