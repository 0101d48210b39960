// SPDX-License-Identifier: Apache-2.0
//! The file that an object was loaded from: which one it is, and how a change of it is detected.

use super::error::StoreError;
use crate::pagecache::prime::open_for_writing;
use hugelift_core::elf::Headers;
use hugelift_core::maps::Mapping;
use hugelift_core::record::{Evidence, Identity, StoredSpan};
use hugelift_core::snapshot::Object;
use hugelift_core::symbols::{Function, functions};
use hugelift_linux::io::open;
use hugelift_linux::io::read::{read_at, read_head};
use hugelift_linux::io::write_back::write_back;
use hugelift_linux::machine::base_page;
use hugelift_linux::proc::mapped::MappedFiles;
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, FsType, fstatfs};
use object::read::ReadCache;
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

pub(super) const XFS_MAGIC: FsType = FsType(0x5846_5342); // linux/magic.h; not in nix for every C library
/// File systems that move a file's change time before its contents change, once fsync(2) has made
/// its pages clean. That also holds for a store through a mapping: a clean page is mapped without
/// write permission, and the fault updates the time. `crates/cli/tests/safety/store/stale.rs` tries
/// it on each of them.
///
/// Others do not, or not surely: tmpfs, whose fsync does nothing; overlayfs, whose fsync does not reach the
/// lower layer (or, if mounted `volatile`, the upper one); and squashfs and EROFS: their times are what
/// the maker of the image chose, so two images on one loop device may have files that differ in
/// their contents alone.
const TELLING: &[FsType] = &[
    EXT4_SUPER_MAGIC, // ext2 and ext3 too
    XFS_MAGIC,
    BTRFS_SUPER_MAGIC,
];

/// A file that was changed less than this ago may be changed again and keep its time: the
/// clocks of file systems are coarse, some count whole seconds.
const SETTLED: Duration = Duration::from_secs(3);
/// How long a start waits for the disk to take a file's changed pages.
const PATIENCE: Duration = Duration::from_secs(1);

/// An object's file.
#[derive(Debug)]
pub struct Source {
    /// Which file, in which state.
    pub identity: Identity,
    /// Its path, as the process sees it.
    pub path: PathBuf,
    /// Whether it is certainly the file that is mapped.
    proven: bool,
    /// Whether its file system is one of [`TELLING`].
    telling: bool,
    file: File,
}

/// Returns the identity of a file from what stat(2) says.
pub(super) fn identity(meta: &Metadata) -> Identity {
    Identity {
        device: meta.dev(),
        inode: meta.ino(),
        bytes: meta.size(),
        modified: (meta.mtime(), meta.mtime_nsec()),
        changed: (meta.ctime(), meta.ctime_nsec()),
    }
}

impl Source {
    /// Finds the file of `object` in a process that has these mappings.
    ///
    /// # Errors
    /// [`StoreError::Replaced`] if another file has taken its path, and it cannot be found otherwise.
    pub fn find(files: &MappedFiles, object: &Object, mappings: &[Mapping]) -> Result<Source, StoreError> {
        let found = files.find_any(object.file, mappings).map_err(|error| {
            tracing::debug!(%error, path = ?object.path, "the file of an object");
            StoreError::Replaced { path: object.path.clone().into() }
        })?;
        let (identity, proven) = (identity(&found.meta), found.proven);
        let file = found.into_seen();
        let telling = fstatfs(&file).is_ok_and(|system| TELLING.contains(&system.filesystem_type()));
        Ok(Source { identity, path: object.path.clone(), proven, telling, file })
    }

    /// Returns whether its identity and times show that it is unchanged since a copy was made: it is certainly the file
    /// that is mapped, and its file system moves the times at each change. Whoever serves or makes a file system can
    /// give a file any identity.
    pub fn is_known_by_its_times(&self) -> bool {
        self.proven && self.telling
    }

    /// Returns whether it is certainly the file that is mapped.
    pub fn is_proven(&self) -> bool {
        self.proven
    }

    /// Finds out whether every later change of the file will move its times. The caller asks this
    /// before it reads the bytes, and afterwards whether [`Source::is_unchanged`].
    ///
    /// That is so if four things hold. The file system updates the times at each change. The last change is
    /// so old that the next one gets another time. No process has the file open for writing, as far as the
    /// kernel shows: a write(2) that takes long updates the time when it begins. And no page is dirty: only
    /// the first store to a clean page moves the times.
    pub fn evidence(&self) -> Evidence {
        if self.telling && is_settled(&self.identity) && self.is_clean() && self.is_unchanged() {
            Evidence::Times
        } else {
            Evidence::Bytes
        }
    }

    /// Makes all pages clean and so write-protected; false if a process has the file open for writing.
    fn is_clean(&self) -> bool {
        let Ok(file) = open::again(&self.file) else { return false };
        open_for_writing(&file) != Some(true)
            && write_back(&file, PATIENCE)
                .inspect_err(|error| tracing::debug!(%error, path = ?self.path, "fsync"))
                .is_ok()
    }

    /// Returns whether the file's identity and times are still those that were found first.
    pub fn is_unchanged(&self) -> bool {
        self.file.metadata().is_ok_and(|meta| identity(&meta) == self.identity)
    }

    /// Returns whether `copy` has, behind its first page, what the file has at these stated addresses, one span after the
    /// other. What the process has mapped where does not count, nor do the headers in its memory: other programs run the
    /// copy, where the file's own headers say.
    pub fn holds(&self, spans: &[StoredSpan], copy: &File) -> bool {
        const CHUNK: u64 = 256 << 10;
        let Ok(file) = open::again(&self.file) else { return false };
        let Ok(head) = read_head(&file) else { return false };
        let deeper = |offset, size| read_at(&file, offset, size);
        let Ok(headers) = Headers::parse_with(&head, deeper) else { return false };
        spans.iter().all(|span| {
            let Some(here) = headers.offset_of(span.vaddr, span.bytes, base_page().bytes()) else {
                return false;
            };
            (0..span.bytes).step_by(CHUNK as usize).all(|at| {
                let len = CHUNK.min(span.bytes - at) as usize;
                let (mut one, mut two) = (vec![0; len], vec![0; len]);
                let read = file.read_exact_at(&mut one, here + at);
                read.and_then(|()| copy.read_exact_at(&mut two, span.offset + at)).is_ok() && one == two
            })
        })
    }

    /// Reads the functions that its symbol table names; none if it cannot be read.
    pub fn functions(&self) -> Vec<Function> {
        let opened = open::again(&self.file);
        let named = opened.map_err(|e| e.to_string()).and_then(|file| functions(&ReadCache::new(file)));
        named.unwrap_or_else(|error| {
            tracing::debug!(%error, path = ?self.path, "no symbols");
            Vec::new()
        })
    }
}

/// Returns whether the last change is so old that a further one gets another time.
fn is_settled(identity: &Identity) -> bool {
    let changed = Duration::new(identity.changed.0.max(0) as u64, 0);
    let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + changed);
    age.is_ok_and(|age| age > SETTLED + Duration::from_secs(1))
}
