// SPDX-License-Identifier: Apache-2.0
//! An address space in memory that behaves as Linux does, with a fault at any call.

use crate::addr::{Addr, PageSize, Range};
use crate::maps::Prot;
use crate::snapshot::Snapshot;
use crate::target::{Fault, FileHandle, Place, Source, Target};
use std::collections::BTreeMap;

/// What is behind a page of the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Behind {
    /// As the snapshot found it.
    Original,
    /// Anonymous memory; huge once populated, if it was advised.
    Anonymous {
        /// `MADV_HUGEPAGE` was given.
        advised: bool,
    },
    /// A page of the pool.
    Hugetlb(PageSize),
    /// A page of a hugetlb file, by its handle and its index in the file.
    File(FileHandle, PageSize, u64),
}

/// One base page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    /// What it allows.
    pub prot: Prot,
    /// What is behind it.
    pub behind: Behind,
    /// Stands for its bytes.
    pub content: u64,
    /// Has been faulted in.
    pub resident: bool,
}

/// The address space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Model {
    /// Base pages by page number.
    pub pages: BTreeMap<u64, Page>,
    /// Open hugetlb files: page size, and contents by base page.
    pub files: BTreeMap<i32, (PageSize, Vec<u64>)>,
    /// Handle of the next file: never used twice, as pages remember theirs.
    pub next_file: i32,
    /// Calls made so far.
    pub calls: usize,
    /// The call (counted from 0) that fails, with its errno.
    pub fail_at: Option<(usize, i32)>,
    /// The kernel moves hugetlb mappings.
    pub moves_hugetlb: bool,
    /// A page that was ever writable and executable at once.
    pub saw_wx: bool,
}

const EINVAL: i32 = 22;
const EEXIST: i32 = 17;
const EFAULT: i32 = 14;
const ENOMEM: i32 = 12;
const EBADF: i32 = 9;
const PAGE: u64 = 4096;

impl Model {
    /// The mappings of `snapshot`, each page with contents of its own.
    pub fn new(snapshot: &Snapshot) -> Model {
        let mut pages = BTreeMap::new();
        for mapping in &snapshot.mappings {
            for number in numbers(mapping.range) {
                let page =
                    Page { prot: mapping.prot, behind: Behind::Original, content: number, resident: true };
                pages.insert(number, page);
            }
        }
        let moves_hugetlb = snapshot.machine.moves_hugetlb;
        Model {
            pages,
            files: BTreeMap::new(),
            next_file: 3,
            calls: 0,
            fail_at: None,
            moves_hugetlb,
            saw_wx: false,
        }
    }

    /// Protection and contents of every page: what the program can see of its memory.
    pub fn visible(&self) -> BTreeMap<u64, (Prot, u64)> {
        self.pages.iter().map(|(&n, p)| (n, (p.prot, self.content(p)))).collect()
    }

    /// Whether huge pages map all of `range`.
    pub fn is_huge(&self, range: Range) -> bool {
        numbers(range).all(|n| self.pages.get(&n).is_some_and(|p| p.resident && huge(p.behind)))
    }

    fn content(&self, page: &Page) -> u64 {
        match page.behind {
            Behind::File(file, _, index) => {
                self.files.get(&file.0).map_or(page.content, |(_, bytes)| bytes[index as usize])
            }
            _ => page.content,
        }
    }

    /// Counts the call; fails it if it is the one that was chosen.
    fn enter(&mut self, call: &'static str, range: Range) -> Result<(), Fault> {
        let n = self.calls;
        self.calls += 1;
        match self.fail_at {
            Some((at, errno)) if at == n => Err(Fault::Call { call, range, errno }),
            _ => Ok(()),
        }
    }

    fn mapped(&self, range: Range) -> bool {
        self.pages.range(first(range)..last(range)).count() as u64 == last(range) - first(range)
    }

    fn remove(&mut self, range: Range) {
        for number in numbers(range) {
            self.pages.remove(&number);
        }
    }
}

fn first(range: Range) -> u64 {
    range.start.0 / PAGE
}

fn last(range: Range) -> u64 {
    range.end.0.div_ceil(PAGE)
}

fn numbers(range: Range) -> std::ops::Range<u64> {
    first(range)..last(range)
}

fn huge(behind: Behind) -> bool {
    matches!(behind, Behind::Hugetlb(_) | Behind::File(..) | Behind::Anonymous { advised: true })
}

fn fail<T>(call: &'static str, range: Range, errno: i32) -> Result<T, Fault> {
    Err(Fault::Call { call, range, errno })
}

impl Target for Model {
    fn mmap(&mut self, range: Range, prot: Prot, source: Source, place: Place) -> Result<(), Fault> {
        const CALL: &str = "mmap";
        // Linux unmaps what MAP_FIXED names before it finds out that there is no huge page.
        let injected = self.enter(CALL, range);
        if place == Place::Over {
            self.remove(range);
        }
        injected?;
        let any = self.pages.range(first(range)..last(range)).next().is_some();
        if place == Place::Free && any {
            return fail(CALL, range, EEXIST);
        }
        let behind = |index: u64| match source {
            Source::Anonymous => Ok(Behind::Anonymous { advised: false }),
            Source::Hugetlb(page) if range.start.is_aligned(page) && range.end.is_aligned(page) => {
                Ok(Behind::Hugetlb(page))
            }
            Source::Shared(file) | Source::Private(file) => match self.files.get(&file.0) {
                Some((page, bytes)) if (index as usize) < bytes.len() => Ok(Behind::File(file, *page, index)),
                _ => Err(EBADF),
            },
            Source::Hugetlb(_) => Err(EINVAL),
        };
        let mut fresh = Vec::new();
        for (index, number) in numbers(range).enumerate() {
            match behind(index as u64) {
                Ok(behind) => fresh.push((number, Page { prot, behind, content: 0, resident: false })),
                Err(errno) => return fail(CALL, range, errno),
            }
        }
        self.saw_wx |= prot.is_wx();
        self.pages.extend(fresh);
        Ok(())
    }

    fn munmap(&mut self, range: Range) -> Result<(), Fault> {
        self.enter("munmap", range)?;
        self.remove(range);
        Ok(())
    }

    fn mprotect(&mut self, range: Range, prot: Prot) -> Result<(), Fault> {
        const CALL: &str = "mprotect";
        self.enter(CALL, range)?;
        if !self.mapped(range) {
            return fail(CALL, range, ENOMEM);
        }
        self.saw_wx |= prot.is_wx();
        for (_, page) in self.pages.range_mut(first(range)..last(range)) {
            if let Behind::Hugetlb(size) | Behind::File(_, size, _) = page.behind
                && !(range.start.is_aligned(size) && range.end.is_aligned(size))
            {
                return fail(CALL, range, EINVAL);
            }
            page.prot = prot;
        }
        Ok(())
    }

    fn mremap(&mut self, from: Range, to: Addr) -> Result<(), Fault> {
        const CALL: &str = "mremap";
        self.enter(CALL, from)?;
        let hugetlb = |p: &Page| matches!(p.behind, Behind::Hugetlb(_) | Behind::File(..));
        let some_hugetlb = self.pages.range(first(from)..last(from)).any(|(_, p)| hugetlb(p));
        if !self.mapped(from) || (some_hugetlb && !self.moves_hugetlb) {
            return fail(CALL, from, EINVAL);
        }
        let moved: Vec<Page> = numbers(from).filter_map(|n| self.pages.remove(&n)).collect();
        let base = to.0 / PAGE;
        for (page, number) in moved.into_iter().zip(base..) {
            self.pages.insert(number, page);
        }
        Ok(())
    }

    fn advise_huge(&mut self, range: Range) -> Result<(), Fault> {
        self.enter("madvise(MADV_HUGEPAGE)", range)?;
        for (_, page) in self.pages.range_mut(first(range)..last(range)) {
            if let Behind::Anonymous { advised } = &mut page.behind {
                *advised = true;
            }
        }
        Ok(())
    }

    fn populate(&mut self, range: Range, _page: PageSize) -> Result<(), Fault> {
        const CALL: &str = "madvise(MADV_POPULATE_WRITE)";
        self.enter(CALL, range)?;
        if !self.mapped(range) {
            return fail(CALL, range, ENOMEM);
        }
        for (_, page) in self.pages.range_mut(first(range)..last(range)) {
            if !page.prot.write {
                return fail(CALL, range, EINVAL);
            }
            page.resident = true;
        }
        Ok(())
    }

    fn copy(&mut self, from: Range, to: Addr) -> Result<(), Fault> {
        const CALL: &str = "copy";
        self.enter(CALL, from)?;
        for (source, number) in numbers(from).zip(to.0 / PAGE..) {
            let Some(source) = self.pages.get(&source) else { return fail(CALL, from, EFAULT) };
            let content = self.content(source);
            let Some(page) = self.pages.get_mut(&number).filter(|p| p.prot.write) else {
                return fail(CALL, from, EFAULT);
            };
            page.resident = true;
            match page.behind {
                Behind::File(file, _, index) => {
                    if let Some((_, bytes)) = self.files.get_mut(&file.0) {
                        bytes[index as usize] = content;
                    }
                }
                _ => page.content = content,
            }
        }
        // A file's page keeps its bytes when its last handle is closed.
        for page in self.pages.values_mut() {
            if let Behind::File(file, _, index) = page.behind
                && let Some((_, bytes)) = self.files.get(&file.0)
            {
                page.content = bytes[index as usize];
            }
        }
        Ok(())
    }

    fn huge_bytes(&mut self, range: Range) -> Result<u64, Fault> {
        self.enter("smaps", range)?;
        let huge = |n: &u64| self.pages.get(n).is_some_and(|p| p.resident && huge(p.behind));
        Ok(numbers(range).filter(huge).count() as u64 * PAGE)
    }

    fn memfd(&mut self, page: PageSize, bytes: u64) -> Result<FileHandle, Fault> {
        self.enter("memfd_create", Range::sized(Addr(0), bytes).unwrap_or_default())?;
        let handle = self.next_file;
        self.next_file += 1;
        self.files.insert(handle, (page, vec![0; bytes.div_ceil(PAGE) as usize]));
        Ok(FileHandle(handle))
    }

    fn close(&mut self, file: FileHandle) -> Result<(), Fault> {
        self.enter("close", Range::default())?;
        // Private read-only mappings of it are now the only way to its pages.
        for page in self.pages.values_mut() {
            if let Behind::File(of, _, index) = page.behind
                && of == file
                && let Some((_, bytes)) = self.files.get(&file.0)
            {
                page.content = bytes[index as usize];
                page.resident = true;
            }
        }
        self.files.remove(&file.0);
        Ok(())
    }
}
