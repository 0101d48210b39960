// SPDX-License-Identifier: Apache-2.0
//! An entry: a file on huge pages that holds whole huge pages of one object, and the names of the
//! functions in them.
//!
//! It is named by a BLAKE3 hash of its contents: the fastest cryptographic hash, and one start has to wait for
//! it. For an entry that not every user may read, the hash is keyed with a secret of the store. Otherwise
//! others could confirm a guess of its contents by its name, and it would have the name of a public entry of
//! the same bytes.

use super::error::StoreError;
use super::source::identity;
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::entry_elf::Names;
use hugelift_core::record::{EntryFile, Identity, Record, StoredSpan};
use hugelift_linux::faultpoint;
use hugelift_linux::machine::own_node::{Preferred, nodes_of_own};
use hugelift_linux::proc::memory::{self, MADV_COLLAPSE};
use hugelift_linux::proc::pagemap;
use hugelift_linux::proc::reservation::Reservation;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, fallocate, openat};
use nix::sys::stat::Mode;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};

/// How often `MADV_COLLAPSE` is tried while the kernel returns EAGAIN or EBUSY.
const TRIES: usize = 8;
/// Bytes that are compared or hashed at a time.
const CHUNK: usize = 1 << 20;
/// Pages of each span that a warm start compares, besides the first and the last.
const SAMPLES: u64 = 2;

/// A new entry, complete, with no name yet.
pub struct Fresh {
    /// The file.
    pub file: File,
    /// The name that its contents give it.
    pub name: String,
}

/// The secret in the names of those entries of a store that not every user may read.
pub type Key = [u8; 32];

/// What an entry's name depends on, besides its bytes.
pub struct Naming<'a> {
    /// Its spans.
    pub spans: &'a [StoredSpan],
    /// How many bytes name its functions, before and behind the spans.
    pub names: (u64, u64),
    /// The object's build-id.
    pub build_id: Option<&'a str>,
    /// The size of its huge pages.
    pub page: PageSize,
    /// The secret of the store, unless every user may read the entry.
    pub key: Option<&'a Key>,
    /// The memory node that it is for, if it is for one.
    pub node: Option<u32>,
}

/// Copies `ranges` of process `pid` into a nameless file in `dir`, laid out as `naming` says, with
/// `names`. If the calling process ends before it has a name, it is gone.
///
/// # Errors
/// No memory, no huge pages, or bytes that cannot be read.
pub fn fill(
    dir: &OwnedFd,
    pid: u32,
    ranges: &[Range],
    names: &Names,
    naming: &Naming,
) -> Result<Fresh, StoreError> {
    let page = naming.page;
    let _preferred = prefer(naming.node)?;
    faultpoint::pass(pid.cast_signed());
    let flags = OFlag::O_TMPFILE | OFlag::O_RDWR | OFlag::O_CLOEXEC;
    let file = openat(dir, ".", flags, Mode::S_IRUSR | Mode::S_IWUSR);
    let file = File::from(file.map_err(|e| StoreError::here("make a file", e))?);
    let bytes: u64 = naming.spans.iter().map(|s| s.bytes).sum();
    // While the file is this short, the kernel gives it no huge page for these few bytes.
    write_names(&file, &names.head, 0)?;
    file.set_len(page.bytes() + bytes).map_err(|e| StoreError::here_io("make a file", e))?;
    let mut map = Map::of(&file, page, bytes)?;
    allocate(&file, &map, page, bytes)?;
    faultpoint::pass(pid.cast_signed());
    let mut at = 0;
    for range in ranges {
        let len = range.len() as usize;
        let into = map.bytes().get_mut(at..at + len).ok_or(StoreError::Unreadable)?;
        read_all(pid, range.start, into)?;
        at += len;
    }
    faultpoint::pass(pid.cast_signed());
    if map.huge() < bytes {
        // The kernel can still collapse the pages that are not huge.
        map.collapse();
        let got = map.huge();
        if got < bytes {
            return Err(StoreError::NotHuge { got, want: bytes });
        }
    }
    if let Some(node) = naming.node {
        check_node(&map, node, page)?;
    }
    write_names(&file, &names.tail, page.bytes() + bytes)?;
    let mut hasher = hasher(naming);
    hasher.update(&names.head).update(map.bytes()).update(&names.tail);
    Ok(Fresh { file, name: hasher.finalize().to_hex().to_string() })
}

/// Makes the calling thread prefer a node until the result is dropped. It only prefers it: with a strict policy a node
/// without memory makes the kernel kill processes (mbind(2)).
fn prefer(node: Option<u32>) -> Result<Option<Preferred>, StoreError> {
    let preferred = node.map(Preferred::set).transpose();
    preferred.map_err(|e| StoreError::here_io("use the memory of a node", e))
}

/// Checks that every huge page has come from the node.
fn check_node(map: &Map, node: u32, page: PageSize) -> Result<(), StoreError> {
    let nodes =
        nodes_of_own(map.range(), page).map_err(|e| StoreError::here_io("find the node of a page", e))?;
    let here = nodes.iter().filter(|of| **of == Some(node)).count() as u64;
    match nodes.len() as u64 - here {
        0 => Ok(()),
        elsewhere => Err(StoreError::OtherNode { node, bytes: elsewhere * page.bytes() }),
    }
}

fn write_names(file: &File, bytes: &[u8], at: u64) -> Result<(), StoreError> {
    file.write_all_at(bytes, at).map_err(|e| match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            StoreError::Full { need: bytes.len() as u64 }
        }
        _ => StoreError::here_io("write a file", e),
    })
}

/// Allocates the memory before it is written to, so that a lack of it is an error and not SIGBUS.
fn allocate(file: &File, map: &Map, page: PageSize, bytes: u64) -> Result<(), StoreError> {
    let want = |offset: u64, len: u64| {
        fallocate(file, FallocateFlags::empty(), offset as i64, len as i64).map_err(|e| match e {
            Errno::ENOSPC | Errno::EDQUOT | Errno::ENOMEM => StoreError::Full { need: bytes },
            e => StoreError::here("allocate a file", e),
        })
    };
    // Collapsing a huge page copies only the small pages that are present: here only one.
    for offset in (page.bytes()..page.bytes() + bytes).step_by(page.bytes() as usize) {
        want(offset, 1)?;
    }
    map.collapse();
    want(page.bytes(), bytes)
}

fn read_all(pid: u32, from: Addr, into: &mut [u8]) -> Result<(), StoreError> {
    let mut done = 0;
    while done < into.len() {
        match memory::read(pid.cast_signed(), Addr(from.0 + done as u64), &mut into[done..]) {
            Ok(n) if n > 0 => done += n,
            _ => return Err(StoreError::Unreadable),
        }
    }
    Ok(())
}

fn hasher(naming: &Naming) -> blake3::Hasher {
    let mut hasher = naming.key.map_or_else(blake3::Hasher::new, blake3::Hasher::new_keyed);
    let id = naming.build_id.unwrap_or_default();
    hasher.update(&(id.len() as u64).to_le_bytes()).update(id.as_bytes());
    // The addresses of the spans are included, as they determine where the huge pages begin.
    let numbers = naming.spans.iter().flat_map(|s| [s.vaddr, s.bytes]);
    let lengths = [naming.page.bytes(), naming.spans.len() as u64, naming.names.0, naming.names.1];
    for number in lengths.into_iter().chain(numbers) {
        hasher.update(&number.to_le_bytes());
    }
    // Entries of the same bytes on several nodes are several files.
    if let Some(node) = naming.node {
        hasher.update(b"node").update(&node.to_le_bytes());
    }
    hasher
}

impl<'a> Naming<'a> {
    /// Returns what an entry of a record is named by; `key` is the secret of the store.
    ///
    /// # Errors
    /// The page size is invalid, or the secret is missing.
    pub fn of(entry: &'a EntryFile, record: &'a Record, key: Option<&'a Key>) -> io::Result<Naming<'a>> {
        let page = PageSize::new(record.page).ok_or(io::ErrorKind::InvalidData)?;
        let key = match (record.public, key) {
            (true, _) => None,
            (false, Some(key)) => Some(key),
            (false, None) => return Err(io::ErrorKind::NotFound.into()),
        };
        let build_id = record.build_id.as_deref();
        Ok(Naming { spans: &entry.spans, names: entry.names, build_id, page, key, node: record.node })
    }
}

/// Computes the name of an entry from its file's contents, to be compared with the name that it has.
///
/// # Errors
/// read(2)
pub fn name_of(file: &File, naming: &Naming) -> io::Result<String> {
    let mut hasher = hasher(naming);
    let mut chunk = vec![0; CHUNK];
    let start = naming.page.bytes();
    let behind = start + naming.spans.iter().map(|s| s.bytes).sum::<u64>() + naming.names.1;
    for (mut at, end) in [(0, naming.names.0), (start, behind)] {
        while at < end {
            let n = CHUNK.min((end - at) as usize);
            file.read_exact_at(&mut chunk[..n], at)?;
            hasher.update(&chunk[..n]);
            at += n as u64;
        }
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// Opens the file `name` in the directory of `owner`; `None` unless it is a regular file of that owner, and
/// its mode lets no user write to it.
pub fn open(dir: &OwnedFd, name: &str, owner: u32) -> Option<(File, Identity)> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = File::from(openat(dir, name, flags, Mode::empty()).ok()?);
    let meta = file.metadata().ok()?;
    let sound = meta.is_file() && meta.uid() == owner && meta.mode() & 0o222 == 0;
    sound.then(|| (file, identity(&meta)))
}

/// Returns the mode of an entry's file.
pub fn mode(public: bool) -> u32 {
    if public { 0o444 } else { 0o400 }
}

/// How much of an entry a start compares with the program's own bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compare {
    /// The ends and a few pages drawn at random, of those that the program has touched.
    Some,
    /// Every byte.
    All,
}

/// Returns whether `file` holds from `offset` on what process `pid` has at `range`.
pub fn is_same(file: &File, offset: u64, pid: u32, range: Range, how: Compare) -> bool {
    let (mut here, mut there) = (Vec::new(), Vec::new());
    let mut same = |at: u64, len: usize| {
        here.resize(len, 0);
        there.resize(len, 0);
        read_all(pid, Addr(range.start.0 + at), &mut here).is_ok()
            && file.read_exact_at(&mut there, offset + at).is_ok()
            && here == there
    };
    match how {
        Compare::All => {
            (0..range.len()).step_by(CHUNK).all(|at| same(at, CHUNK.min((range.len() - at) as usize)))
        }
        Compare::Some => {
            let page = PageSize::SMALL.bytes();
            let pages = range.len() / page;
            let wanted = [0, pages.saturating_sub(1)].into_iter().chain(random().map(|n| n % pages.max(1)));
            let pagemap = pagemap::open(pid.cast_signed()).ok();
            // A page that the program has not touched might have to be read from the disk.
            let near = |n: u64| match Range::new(Addr(range.start.0 + n * page), range.end) {
                Some(rest) => match pagemap::first_present(pagemap.as_ref()?, rest) {
                    Ok(found) => found.map(|addr| (addr.0 - range.start.0) / page),
                    Err(_) => Some(n),
                },
                None => None,
            };
            let mut samples: Vec<u64> = wanted.filter_map(near).collect();
            samples.sort_unstable();
            samples.dedup();
            let samples = if samples.is_empty() { vec![0] } else { samples };
            samples.into_iter().all(|n| same(n * page, page as usize))
        }
    }
}

/// Makes a new secret.
///
/// # Errors
/// getrandom(2)
pub fn new_key() -> io::Result<Key> {
    let mut key = Key::default();
    // SAFETY: getrandom(2) writes at most the given number of bytes to the array.
    let got = unsafe { libc::getrandom(key.as_mut_ptr().cast(), key.len(), libc::GRND_NONBLOCK) };
    match usize::try_from(got) {
        Ok(n) if n == key.len() => Ok(key),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Returns numbers that the author of a file could not predict.
fn random() -> impl Iterator<Item = u64> {
    let mut numbers = [0u64; SAMPLES as usize];
    // SAFETY: getrandom(2) writes at most the given number of bytes to the array. If it fails, zeros are
    // good enough.
    unsafe { libc::getrandom(numbers.as_mut_ptr().cast(), size_of_val(&numbers), libc::GRND_NONBLOCK) };
    numbers.into_iter()
}

/// Returns the bytes of an entry's file that are on huge pages.
///
/// # Errors
/// [`StoreError`]
pub fn huge_bytes(file: &File, entry: &EntryFile, page: PageSize) -> Result<u64, StoreError> {
    let map = Map::with(file, page, entry.bytes(), libc::PROT_READ)?;
    Ok(map.huge())
}

/// An entry's file, without its first huge page, mapped in this process at an aligned address.
struct Map {
    _reserved: Reservation,
    start: *mut u8,
    len: usize,
    writable: bool,
}

impl Map {
    fn of(file: &File, page: PageSize, bytes: u64) -> Result<Map, StoreError> {
        Map::with(file, page, bytes, libc::PROT_READ | libc::PROT_WRITE)
    }

    fn with(file: &File, page: PageSize, bytes: u64, prot: libc::c_int) -> Result<Map, StoreError> {
        let failed = |error| StoreError::here_io("map a file", error);
        let len = bytes as usize;
        let mut reserved = Reservation::new(len, page).map_err(failed)?;
        let start = reserved.map_file(0, len, prot, libc::MAP_SHARED, file, page.bytes()).map_err(failed)?;
        Ok(Map { _reserved: reserved, start, len, writable: prot & libc::PROT_WRITE != 0 })
    }

    /// Returns the bytes; none if it was not mapped writable.
    fn bytes(&mut self) -> &mut [u8] {
        let len = if self.writable { self.len } else { 0 };
        // SAFETY: the mapping is ours, writable, len bytes long, and lives as long as self. The file has no
        // name and is open nowhere else, so nothing else writes or truncates it.
        unsafe { std::slice::from_raw_parts_mut(self.start, len) }
    }

    /// Asks the kernel to make the pages huge. [`Map::huge`] shows the result.
    fn collapse(&self) {
        // The kernel returns EAGAIN for pages that are locked just now. Those before them are collapsed and
        // stay so.
        for _ in 0..TRIES {
            // SAFETY: madvise(2) of our own mapping; MADV_COLLAPSE does not change contents.
            let done = unsafe { libc::madvise(self.start.cast(), self.len, MADV_COLLAPSE) };
            if done == 0 || !matches!(Errno::last(), Errno::EAGAIN | Errno::EBUSY) {
                break;
            }
        }
    }

    fn range(&self) -> Range {
        Range::sized(Addr(self.start.addr() as u64), self.len as u64).unwrap_or_default()
    }

    /// Faults everything in, and returns the bytes that huge pages map.
    fn huge(&self) -> u64 {
        // SAFETY: madvise(2) of our own mapping.
        let done = unsafe { libc::madvise(self.start.cast(), self.len, libc::MADV_POPULATE_READ) };
        // Before Linux 5.14. A file that is shorter than it should be is another error.
        if done != 0 && Errno::last() == Errno::EINVAL {
            for at in (0..self.len).step_by(PageSize::SMALL.bytes() as usize) {
                // SAFETY: inside the mapping, which is readable; volatile, as only the fault counts.
                unsafe { self.start.add(at).read_volatile() };
            }
        }
        pagemap::huge_bytes_at_least(std::process::id().cast_signed(), self.range()).unwrap_or(0)
    }
}

/// Returns the size of a file system and its free space, in bytes.
pub fn room(dir: &OwnedFd) -> (u64, u64) {
    let Ok(stat) = nix::sys::statvfs::fstatvfs(dir) else { return (0, 0) };
    let block = stat.fragment_size();
    (stat.blocks().saturating_mul(block), stat.blocks_available().saturating_mul(block))
}
