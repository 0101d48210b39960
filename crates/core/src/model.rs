// SPDX-License-Identifier: Apache-2.0
//! A model of an address space that behaves as Linux does and can fail any call.
//!
//! ```text
//!   address space:  run -> (protection, kind of memory, store, offset)
//!   stores:         offset -> content; one for each anonymous mapping and each file
//! ```

use crate::addr::{Addr, PageSize, Range};
use crate::maps::Prot;
use crate::scratch::Scratch;
use crate::snapshot::{Snapshot, ThpOff};
use crate::target::{Fault, FileHandle, MapStored, Place, Source, Target};
use std::collections::BTreeMap;

mod at_exec;
mod calls;
mod runs;
mod start;
use runs::{Runs, Shift};
pub use start::Start;

/// What is behind a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Behind {
    /// The memory of the snapshot.
    Original {
        /// `MADV_HUGEPAGE` was given.
        advised: bool,
    },
    /// Anonymous memory; huge once populated, if it was advised.
    Anonymous {
        /// `MADV_HUGEPAGE` was given.
        advised: bool,
    },
    /// Pages of the pool, anonymous or of a file.
    Hugetlb(PageSize),
    /// A file of the store, on huge pages.
    Stored,
}

/// A stretch of the address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Memory {
    prot: Prot,
    behind: Behind,
    store: usize,
    offset: u64,
    /// It has been faulted in.
    resident: bool,
    /// A private mapping of a file: the first write makes it a copy.
    copy_on_write: bool,
    /// It has a memory policy of its own.
    bound: bool,
}

impl Shift for Memory {
    fn shift(self, bytes: u64) -> Memory {
        Memory { offset: self.offset + bytes, ..self }
    }
}

/// Stands for the bytes of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// Never written.
    Zero,
    /// What the program had at this address when the model was made.
    Original(u64),
}

impl Shift for Content {
    fn shift(self, bytes: u64) -> Content {
        match self {
            Content::Zero => Content::Zero,
            Content::Original(addr) => Content::Original(addr + bytes),
        }
    }
}

/// The contents of anonymous memory or a file, by offset.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Store {
    written: Runs<Content>,
    /// Pages of the pool that it holds until no mapping and no file refers to it.
    pool: Option<(PageSize, u64)>,
}

/// A file, open in the program or in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct File {
    store: usize,
    /// The pool of its pages; `None` for a file of the store.
    pool: Option<PageSize>,
    bytes: u64,
}

/// The address space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Model {
    /// Bytes of every range that are not huge though they should be: memory is fragmented.
    pub scarce: u64,
    space: Runs<Memory>,
    /// What was mapped for a lift and is still there.
    scratch: Scratch,
    stores: BTreeMap<usize, Store>,
    next_store: usize,
    files: BTreeMap<i32, File>,
    stored: BTreeMap<usize, File>,
    next_file: i32,
    base_page: PageSize,
    thp_page: Option<PageSize>,
    /// The kernel accepts `MADV_HUGEPAGE`, even if the system's switch is off.
    has_thp: bool,
    /// Size of the huge pages of files. The system's switch governs new memory alone.
    file_page: Option<PageSize>,
    /// Available pages of each pool.
    pub pools: BTreeMap<PageSize, u64>,
    /// Free memory is in small pieces: THP gets no huge page.
    pub fragmented: bool,
    /// The kernel moves hugetlb mappings.
    pub moves_hugetlb: bool,
    /// A `mremap` that is made to fail unmaps its destination first, as can happen on Linux.
    pub failed_move_unmaps: bool,
    /// Each `mremap` leaves the bytes where they are ([`Fault::Kept`]), as a running process may.
    pub keeps: bool,
    /// Bytes that one call moves: a running process is changed piece by piece.
    pub piece: u64,
    /// The program runs: as soon as scratch memory has moved away or was unmapped, it maps memory of its own there.
    pub takes_holes: bool,
    /// What it has mapped so.
    pub taken: Vec<Range>,
    /// Calls made so far.
    pub calls: usize,
    /// The call (counted from 0) that fails, with its errno.
    pub fail_at: Option<(usize, i32)>,
    /// Every call after that one fails too.
    pub fail_on: bool,
    /// The calls that were made to fail.
    pub failed: Vec<&'static str>,
    /// Some memory was writable and executable at once at some time.
    pub saw_wx: bool,
    /// Stretches whose page cache is in huge folios.
    cached: Vec<Range>,
    /// Size of these folios, if they may be mapped huge.
    folio: Option<PageSize>,
    /// How the program finds its executable, before any of it has run.
    pub start: Start,
}

const ENOENT: i32 = 2;
const ENOMEM: i32 = 12;
const EFAULT: i32 = 14;
const EBADF: i32 = 9;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;

/// The store of the snapshot's memory: its offsets are addresses.
const ORIGINAL: usize = 0;

impl Model {
    /// Returns a model with the mappings of `snapshot`, in which every byte differs from all others.
    pub fn new(snapshot: &Snapshot) -> Model {
        let machine = &snapshot.machine;
        let mut model = Model {
            scarce: 0,
            space: Runs::default(),
            scratch: Scratch::default(),
            stores: BTreeMap::from([(ORIGINAL, Store::default())]),
            next_store: ORIGINAL + 1,
            files: BTreeMap::new(),
            stored: BTreeMap::new(),
            next_file: 3,
            base_page: machine.base_page,
            thp_page: machine.thp_page.filter(|_| machine.thp_off.is_none()),
            has_thp: machine.thp_page.is_some(),
            file_page: machine.thp_page.filter(|_| machine.thp_off != Some(ThpOff::Process)),
            pools: machine.pools.iter().map(|p| (p.page, p.available())).collect(),
            fragmented: false,
            moves_hugetlb: machine.moves_hugetlb,
            failed_move_unmaps: false,
            keeps: false,
            piece: u64::MAX,
            takes_holes: false,
            taken: Vec::new(),
            calls: 0,
            fail_at: None,
            fail_on: false,
            failed: Vec::new(),
            saw_wx: false,
            cached: snapshot.cached.clone(),
            folio: machine.thp_page.filter(|_| machine.thp_off != Some(ThpOff::Process)),
            start: Start::default(),
        };
        for mapping in &snapshot.mappings {
            let memory = Memory {
                prot: mapping.prot,
                behind: Behind::Original { advised: false },
                store: ORIGINAL,
                offset: mapping.range.start.0,
                resident: true,
                copy_on_write: false,
                bound: false,
            };
            model.space.insert(mapping.range, memory);
            model.write(ORIGINAL, mapping.range, Content::Original(mapping.range.start.0));
        }
        for copy in &snapshot.stored.copies {
            let file = match model.stored.get(&copy.entry) {
                Some(file) => *file,
                None => File { store: model.new_store(), pool: None, bytes: 0 },
            };
            let bytes = file.bytes.max(copy.offset + copy.range.len());
            model.stored.insert(copy.entry, File { bytes, ..file });
            let offsets = Range::sized(Addr(copy.offset), copy.range.len()).unwrap_or_default();
            model.write(file.store, offsets, Content::Original(copy.range.start.0));
        }
        model
    }

    /// Returns what the program can see of its memory: addresses, protection, contents. It is the same
    /// for two address spaces that differ only in what is behind their mappings.
    pub fn visible(&self) -> Vec<(Range, Prot, Content)> {
        let mut out: Vec<(Range, Prot, Content)> = Vec::new();
        for (range, memory) in self.space.all() {
            for (range, content) in self.contents(range, memory) {
                match out.last_mut() {
                    Some((last, prot, before))
                        if last.end == range.start
                            && *prot == memory.prot
                            && before.shift(last.len()) == content =>
                    {
                        last.end = range.end;
                    }
                    _ => out.push((range, memory.prot, content)),
                }
            }
        }
        out
    }

    /// Returns the same without the memory in `ranges`.
    pub fn visible_outside(&self, ranges: &[Range]) -> Vec<(Range, Prot, Content)> {
        let mut rest = self.clone();
        for range in ranges {
            rest.space.remove(*range);
        }
        rest.visible()
    }

    /// Returns whether all of `range` is zeros with this protection.
    pub fn is_zero(&self, range: Range, prot: Prot) -> bool {
        let zero = |(r, m): (Range, Memory)| {
            m.prot == prot && self.contents(r, m).iter().all(|(_, content)| *content == Content::Zero)
        };
        self.space.cover(range) && self.space.within(range).into_iter().all(zero)
    }

    /// Returns whether huge pages map all of `range`.
    pub fn is_huge(&self, range: Range) -> bool {
        self.huge(range) == range.len()
    }

    /// Returns whether all of `range` is still the memory of the snapshot and advised to become huge.
    pub fn is_advised(&self, range: Range) -> bool {
        let advised = |m: &Memory| m.behind == Behind::Original { advised: true };
        self.space.cover(range) && self.space.within(range).iter().all(|(_, m)| advised(m))
    }

    /// Returns whether all of `range` has a memory policy of its own.
    pub fn is_bound(&self, range: Range) -> bool {
        self.space.cover(range) && self.space.within(range).iter().all(|(_, m)| m.bound)
    }

    /// Returns how many files are open.
    pub fn open_files(&self) -> usize {
        self.files.len()
    }

    fn huge(&self, range: Range) -> u64 {
        let thp = self.thp_page.filter(|_| !self.fragmented);
        let cached = |range: Range| {
            let huge = |c: &Range| c.intersect(range).zip(self.folio).and_then(|(r, page)| r.inner(page));
            self.cached.iter().filter_map(huge).map(Range::len).sum()
        };
        let file = self.file_page.filter(|_| !self.fragmented);
        let of = |(range, memory): (Range, Memory)| match memory.behind {
            Behind::Original { .. } => cached(range),
            Behind::Hugetlb(_) if memory.resident => range.len(),
            Behind::Stored if memory.resident && memory.copy_on_write => {
                file.and_then(|page| range.inner(page)).map_or(0, Range::len)
            }
            Behind::Anonymous { advised: true } if memory.resident => {
                thp.and_then(|page| range.inner(page)).map_or(0, Range::len)
            }
            _ => 0,
        };
        self.space.within(range).into_iter().map(of).sum()
    }

    /// Returns the contents of a run of memory, by address.
    fn contents(&self, range: Range, memory: Memory) -> Vec<(Range, Content)> {
        let at = |offset: u64| Addr(range.start.0 + (offset - memory.offset));
        let mut out = Vec::new();
        let mut next = range.start;
        let stored = Range::sized(Addr(memory.offset), range.len()).unwrap_or_default();
        let written = self.stores.get(&memory.store).map(|s| s.written.within(stored)).unwrap_or_default();
        for (part, content) in written {
            let part = Range { start: at(part.start.0), end: at(part.end.0) };
            out.extend(Range::new(next, part.start).map(|zero| (zero, Content::Zero)));
            out.push((part, content));
            next = part.end;
        }
        out.extend(Range::new(next, range.end).map(|zero| (zero, Content::Zero)));
        out.retain(|(range, _)| !range.is_empty());
        out
    }

    /// Returns the contents within `range`.
    fn bytes_of(&self, range: Range) -> Vec<(Range, Content)> {
        let shown = self.space.within(range);
        shown.into_iter().flat_map(|(part, memory)| self.contents(part, memory)).collect()
    }

    /// Writes `bytes`, which were read from address `from` on, to `to`.
    fn paste(&mut self, bytes: Vec<(Range, Content)>, from: Addr, to: Addr) {
        for (source, content) in bytes {
            let start = Addr(to.0 + (source.start.0 - from.0));
            for (part, memory) in self.space.within(Range { start, end: Addr(start.0 + source.len()) }) {
                let offsets = Range { start: Addr(memory.offset), end: Addr(memory.offset + part.len()) };
                self.write(memory.store, offsets, content.shift(part.start.0 - start.0));
            }
        }
    }

    fn write(&mut self, store: usize, offsets: Range, content: Content) {
        if let Some(store) = self.stores.get_mut(&store) {
            store.written.insert(offsets, content);
        }
    }

    fn new_store(&mut self) -> usize {
        let store = self.next_store;
        self.next_store += 1;
        self.stores.insert(store, Store::default());
        store
    }

    /// Reserves pool pages for a store, unless it has some.
    fn reserve(&mut self, store: usize, page: PageSize, bytes: u64) -> Result<(), i32> {
        let (Some(left), Some(store)) = (self.pools.get_mut(&page), self.stores.get_mut(&store)) else {
            return Err(EINVAL);
        };
        if store.pool.is_none() {
            let pages = bytes.div_ceil(page.bytes());
            *left = left.checked_sub(pages).ok_or(ENOMEM)?;
            store.pool = Some((page, pages));
        }
        Ok(())
    }

    /// Drops the stores to which no mapping and no file refers. Their pages go back to the pool.
    fn sweep(&mut self) {
        let mapped: Vec<usize> = self.space.all().map(|(_, m)| m.store).collect();
        let (files, stored, pools) = (&self.files, &self.stored, &mut self.pools);
        self.stores.retain(|id, store| {
            let named = || files.values().chain(stored.values()).any(|f| f.store == *id);
            let used = *id == ORIGINAL || mapped.contains(id) || named();
            if let (false, Some((page, pages))) = (used, store.pool) {
                *pools.entry(page).or_default() += pages;
            }
            used
        });
    }

    /// Takes what has moved away or was unmapped out of the scratch memory. The program may map its own there.
    fn give_up(&mut self, range: Range) {
        self.scratch.give_up(range);
        if self.takes_holes {
            let store = self.new_store();
            let offset = range.start.0;
            let (prot, behind) = (Prot::RW, Behind::Anonymous { advised: false });
            let memory =
                Memory { prot, behind, store, offset, resident: true, copy_on_write: false, bound: false };
            self.space.insert(range, memory);
            self.write(store, range, Content::Original(range.start.0));
            self.taken.push(range);
        }
    }

    /// Returns whether the program has all that it has mapped itself.
    pub fn has_taken(&self) -> bool {
        let is_own = |(range, memory): (Range, Memory)| {
            memory.prot == Prot::RW
                && self.contents(range, memory) == [(range, Content::Original(range.start.0))]
        };
        let has =
            |range: &Range| self.space.cover(*range) && self.space.within(*range).into_iter().all(is_own);
        self.taken.iter().all(has)
    }

    /// Counts the call, and makes it fail if it was chosen to fail.
    fn enter(&mut self, call: &'static str, range: Range) -> Result<(), Fault> {
        let n = self.calls;
        self.calls += 1;
        match self.fail_at {
            Some((at, errno)) if at == n || (self.fail_on && at < n) => {
                self.failed.push(call);
                fail(call, range, errno)
            }
            _ => Ok(()),
        }
    }

    /// Returns whether `range` begins and ends at pages, as Linux demands: base pages, and pages of the
    /// pool where it has some.
    fn is_aligned(&self, range: Range) -> bool {
        let pages = self.space.within(range).into_iter().filter_map(|(_, m)| match m.behind {
            Behind::Hugetlb(page) => Some(page),
            _ => None,
        });
        let aligned = |page| range.start.is_aligned(page) && range.end.is_aligned(page);
        !range.is_empty() && pages.chain([self.base_page]).all(aligned)
    }

    /// Returns the memory of a new mapping.
    fn make(&mut self, range: Range, prot: Prot, source: Source) -> Result<Memory, i32> {
        let aligned = |page| range.start.is_aligned(page) && range.end.is_aligned(page);
        let (behind, store, offset, private) = match source {
            Source::Anonymous => (Behind::Anonymous { advised: false }, self.new_store(), 0, false),
            Source::Hugetlb(page) if aligned(page) => {
                let store = self.new_store();
                self.reserve(store, page, range.len())?;
                (Behind::Hugetlb(page), store, 0, false)
            }
            Source::Shared(handle) | Source::Private(handle, _) => {
                let file = *self.files.get(&handle.0).ok_or(EBADF)?;
                let offset = if let Source::Private(_, offset) = source { Some(offset) } else { None };
                let from = offset.unwrap_or_default();
                if !aligned(file.pool.unwrap_or(self.base_page))
                    || from.checked_add(range.len()).is_none_or(|end| end > file.bytes)
                {
                    return Err(EINVAL);
                }
                if let (None, Some(page)) = (offset, file.pool) {
                    self.reserve(file.store, page, file.bytes)?;
                }
                let behind = file.pool.map_or(Behind::Stored, Behind::Hugetlb);
                (behind, file.store, from, offset.is_some())
            }
            Source::Hugetlb(_) => return Err(EINVAL),
        };
        // The pages of a private mapping of a file are those of the file, which exist.
        Ok(Memory { prot, behind, store, offset, resident: private, copy_on_write: private, bound: false })
    }
}

impl Model {
    fn map_copy(&mut self, copy: &MapStored) -> Result<(), Fault> {
        let file = self.open_stored(copy.entry)?;
        let mapped = self.mmap(copy.range, copy.prot, Source::Private(file, copy.offset), Place::Free);
        // Closes it even if the first attempt is made to fail.
        let _ = self.close(file).or_else(|_| self.close(file));
        mapped
    }

    fn open_stored(&mut self, entry: usize) -> Result<FileHandle, Fault> {
        const CALL: &str = "openat";
        self.enter(CALL, Range::default())?;
        let Some(file) = self.stored.get(&entry).copied() else {
            return fail(CALL, Range::default(), ENOENT);
        };
        let handle = self.next_file;
        self.next_file += 1;
        self.files.insert(handle, file);
        Ok(FileHandle(handle))
    }
}

fn fail<T>(call: &'static str, range: Range, errno: i32) -> Result<T, Fault> {
    Err(Fault::Call { call, range, errno })
}
