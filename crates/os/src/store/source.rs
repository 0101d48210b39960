// SPDX-License-Identifier: Apache-2.0
//! The file that an object was loaded from: that it still is that file, what tells of a change
//! of it, and who may read it.

use super::StoreError;
use crate::procfs::Process;
use hugelift_core::record::Identity;
use hugelift_core::snapshot::Object;
use hugelift_core::symbols::{Function, functions};
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, FsType, OVERLAYFS_SUPER_MAGIC, fstatfs};
use object::read::ReadCache;
use std::ffi::CString;
use std::fs::{File, Metadata, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// File systems that note each change of a file's contents in its change time, whoever makes
/// it (statfs(2)). tmpfs is not one: writes through a mapping leave the time as it is.
const TELLING: &[FsType] = &[
    EXT4_SUPER_MAGIC,    // ext2 and ext3 too
    FsType(0x5846_5342), // XFS
    BTRFS_SUPER_MAGIC,
    OVERLAYFS_SUPER_MAGIC,
    FsType(0xf2f5_2010), // F2FS
    FsType(0x7371_7368), // squashfs
    FsType(0xe0f5_e1e2), // EROFS
];
/// These show another device in `/proc/PID/maps` than in stat(2).
const TWO_DEVICES: &[FsType] = &[BTRFS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC];

/// A file that was changed less than this ago may be changed again without another time.
const SETTLED: Duration = Duration::from_secs(3);

/// An object's file.
#[derive(Debug)]
pub struct Source {
    /// Which file, in which state.
    pub identity: Identity,
    /// As the process sees it.
    pub path: PathBuf,
    /// A change of it would show in [`Source::identity`].
    pub telling: bool,
    root: PathBuf,
    file: File,
}

/// What stat(2) says of a file.
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
    /// Finds the file of `object` in process `pid`.
    ///
    /// # Errors
    /// [`StoreError::Replaced`] if another file has taken its path.
    pub fn find(pid: u32, object: &Object) -> Result<Source, StoreError> {
        let replaced = || StoreError::Replaced { path: object.path.clone().into() };
        let root = Process::new(pid).path("root");
        let inside = object.path.strip_prefix("/").map_err(|_| replaced())?;
        // Not to be read, only to be looked at: it may be executable alone.
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(root.join(inside));
        let file = file.map_err(|_| replaced())?;
        let failed = |source| StoreError::Io { what: "stat", path: object.path.clone().into(), source };
        let meta = file.metadata().map_err(failed)?;
        let system = fstatfs(&file).map(|s| s.filesystem_type());
        let is_among = |some: &[FsType]| system.is_ok_and(|system| some.contains(&system));
        let device = (libc::major(meta.dev()), libc::minor(meta.dev()));
        let same_device = device == (object.file.major, object.file.minor) || is_among(TWO_DEVICES);
        if !meta.is_file() || meta.ino() != object.file.inode || !same_device {
            return Err(replaced());
        }
        let identity = identity(&meta);
        let telling = is_among(TELLING) && is_settled(&identity);
        Ok(Source { identity, path: object.path.clone(), telling, root, file })
    }

    /// The functions that it names: none if we may not read it.
    pub fn functions(&self) -> Vec<Function> {
        let opened = File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        let named = opened.map_err(|e| e.to_string()).and_then(|file| functions(&ReadCache::new(file)));
        named.unwrap_or_else(|error| {
            tracing::debug!(%error, path = ?self.path, "no symbols");
            Vec::new()
        })
    }

    /// Whether every user may read the file: by its mode, by that of every directory above it,
    /// and by a path that they all have. What access control lists say is not weighed: with one
    /// the answer is no.
    pub fn is_public(&self) -> bool {
        let own = PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        let all = |path: &Path, bit: u32| {
            std::fs::metadata(path).is_ok_and(|m| m.mode() & bit != 0) && !has_acl(path)
        };
        let above = self.path.ancestors().skip(1);
        let mut above = above.filter_map(|dir| Some(self.root.join(dir.strip_prefix("/").ok()?)));
        all(&own, libc::S_IROTH) && above.all(|dir| all(&dir, libc::S_IXOTH)) && in_first_namespace()
    }
}

/// Two changes in quick succession may leave one and the same time.
fn is_settled(identity: &Identity) -> bool {
    let changed = Duration::new(identity.changed.0.max(0) as u64, 0);
    let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + changed);
    age.is_ok_and(|age| age > SETTLED + Duration::from_secs(1))
}

fn has_acl(path: &Path) -> bool {
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else { return true };
    let acl = c"system.posix_acl_access";
    // SAFETY: getxattr(2): both names end in NUL and live through the call; a size of 0 asks
    // for the length alone.
    unsafe { libc::getxattr(name.as_ptr(), acl.as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

/// In a mount namespace of its own a path may lead where the others have none.
fn in_first_namespace() -> bool {
    let of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    of("1").is_some_and(|first| of("self") == Some(first))
}
