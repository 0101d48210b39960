// SPDX-License-Identifier: Apache-2.0
//! Whether every user may read a file.

use super::source::XFS_MAGIC;
use hugelift_core::record::Identity;
use hugelift_linux::proc::procfs::Process;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fstat};
use nix::sys::statfs::{
    BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, FsType, OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC, fstatfs,
};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// File systems on which modes and access control lists decide. A FUSE mount admits other users only if its
/// options say so, whatever the modes; a network file server decides by itself.
const MODES_DECIDE: &[FsType] = &[
    EXT4_SUPER_MAGIC, // ext2 and ext3 too
    XFS_MAGIC,
    BTRFS_SUPER_MAGIC,
    OVERLAYFS_SUPER_MAGIC,
    TMPFS_MAGIC,
    FsType(0xf2f5_2010), // F2FS
    FsType(0x7371_7368), // squashfs
    FsType(0xe0f5_e1e2), // EROFS
];

/// Who may read a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readers {
    /// Every user.
    All,
    /// Perhaps not every user.
    Some,
    /// It cannot be found out in a chroot, or with mounts of our own.
    Unknown,
}

/// Checks modes, and remembers the results for directories. It is made anew for each start, as the results
/// are soon outdated.
#[derive(Default)]
pub struct AccessCheck {
    directories: BTreeMap<PathBuf, Option<Rc<OwnedFd>>>,
    /// Processes (`None` is ours), and whether they have the mounts and root directory of process 1.
    processes: BTreeMap<Option<u32>, bool>,
}

impl AccessCheck {
    /// Returns who may read the file at `path`, as process `pid` sees it (`None`: as we see it); it must be the
    /// file with that identity. All users may if the modes of the file and of every directory above it
    /// allow it to the owner, the group and all others, if none of them has an access control list, and if
    /// modes decide on its file system.
    pub fn readers(&mut self, pid: Option<u32>, path: &Path, identity: &Identity) -> Readers {
        let mut knows =
            |pid: Option<u32>| *self.processes.entry(pid).or_insert_with(|| is_in_first_place(pid));
        if !knows(None) || !knows(pid) {
            return Readers::Unknown;
        }
        if self.is_for_all(path, identity) { Readers::All } else { Readers::Some }
    }

    fn is_for_all(&mut self, path: &Path, identity: &Identity) -> bool {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return false };
        let Some(directory) = self.directory(above) else { return false };
        let Ok(file) = openat(&*directory, name, FLAGS, Mode::empty()) else { return false };
        let is_it = |file: &OwnedFd| {
            fstat(file).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (identity.device, identity.inode))
        };
        is_it(&file) && lets_all(&file, libc::S_IFREG, 0o444)
    }

    /// Opens a directory that every user can pass through. Each name is looked up in the directory that was
    /// checked, so that no user can replace it in between.
    fn directory(&mut self, path: &Path) -> Option<Rc<OwnedFd>> {
        if let Some(known) = self.directories.get(path) {
            return known.clone();
        }
        let opened = match (path.parent(), path.file_name()) {
            (Some(above), Some(name)) => {
                self.directory(above).and_then(|above| openat(&*above, name, FLAGS, Mode::empty()).ok())
            }
            (None, _) if path == Path::new("/") => nix::fcntl::open("/", FLAGS, Mode::empty()).ok(),
            _ => None,
        };
        let found = opened.filter(|dir| lets_all(dir, libc::S_IFDIR, 0o111)).map(Rc::new);
        self.directories.insert(path.into(), found.clone());
        found
    }
}

const FLAGS: OFlag = OFlag::O_PATH.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// Returns whether the file is of that type, and every user has the rights `bits`.
fn lets_all(file: &OwnedFd, kind: libc::mode_t, bits: libc::mode_t) -> bool {
    let modes =
        fstat(file).is_ok_and(|stat| stat.st_mode & libc::S_IFMT == kind && stat.st_mode & bits == bits);
    modes && fstatfs(file).is_ok_and(|s| MODES_DECIDE.contains(&s.filesystem_type())) && !may_have_acl(file)
}

/// Returns whether the file has, or may have, an access control list. Its contents are not evaluated.
fn may_have_acl(file: &OwnedFd) -> bool {
    // A descriptor that only names a file has no fgetxattr(2).
    let Ok(name) = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())) else { return true };
    let acl = c"system.posix_acl_access";
    // SAFETY: getxattr(2): both names end in NUL and live through the call; a size of 0 asks
    // for the length alone.
    let length = unsafe { libc::getxattr(name.as_ptr(), acl.as_ptr(), std::ptr::null_mut(), 0) };
    match length {
        0 => false,
        1.. => true,
        _ => !matches!(Errno::last(), Errno::ENODATA | Errno::EOPNOTSUPP),
    }
}

/// Returns whether the process has the mounts and the root directory of process 1. Otherwise a path may
/// lead to a file that other users cannot reach, and the directories above the root cannot be checked.
fn is_in_first_place(pid: Option<u32>) -> bool {
    let process = pid.map_or(Process::OWN, |pid| Process::of(pid.cast_signed()));
    let first = Process::new(1);
    let mounts = |process: Process| std::fs::read_link(process.path("ns/mnt")).ok();
    let root = |process: Process| std::fs::metadata(process.path("root/.")).map(|m| (m.dev(), m.ino())).ok();
    mounts(first).is_some_and(|first| mounts(process) == Some(first))
        && root(first).is_some_and(|first| root(process) == Some(first))
}

#[cfg(test)]
mod tests {
    use super::super::source::identity;
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn each_mode_on_the_way_counts() {
        let dir = tempfile::TempDir::new().unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        set(dir.path(), 0o755);
        let (inner, file) = (dir.path().join("inner"), dir.path().join("inner/file"));
        fs::create_dir(&inner).unwrap();
        fs::write(&file, "x").unwrap();
        set(&inner, 0o755);
        set(&file, 0o644);
        let known = identity(&fs::metadata(&file).unwrap());
        let public = |path: &Path| AccessCheck::default().is_for_all(path, &known);
        if !public(&file) {
            return println!("SKIP: not every user reaches {}", dir.path().display());
        }
        for (path, good, bad) in
            [(&file, 0o644, &[0o600, 0o640, 0o604, 0o244][..]), (&inner, 0o711, &[0o700, 0o701, 0o710])]
        {
            for mode in bad {
                set(path, *mode);
                assert!(!public(&file), "{path:?} {mode:o}");
            }
            set(path, good);
            assert!(public(&file));
        }
        // Another file of that name; a link on the way; a path that is not a file.
        assert!(!AccessCheck::default().is_for_all(&file, &Identity { inode: known.inode + 1, ..known }));
        symlink(&inner, dir.path().join("link")).unwrap();
        assert!(!public(&dir.path().join("link/file")));
        assert!(!public(&inner) && !public(Path::new("/")) && !public(Path::new("")));
        assert!(!public(&dir.path().join("inner/../inner/file")));
    }

    #[test]
    fn an_access_control_list_is_not_evaluated() {
        let dir = tempfile::TempDir::new().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        let opened = || nix::fcntl::open(&file, FLAGS, Mode::empty()).unwrap();
        assert!(!may_have_acl(&opened()));
        // Version 2; user::rw-, user:65534:---, group::r--, mask::r--, other::r-- (linux/posix_acl_xattr.h)
        let entry = |tag: u16, perm: u16, id: u32| {
            [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let none = u32::MAX;
        let list = [(1, 6, none), (2, 0, 65534), (4, 4, none), (16, 4, none), (32, 4, none)];
        let mut acl = 2_u32.to_le_bytes().to_vec();
        acl.extend(list.into_iter().flat_map(|(tag, perm, id)| entry(tag, perm, id)));
        if let Err(error) = xattr::set(&file, "system.posix_acl_access", &acl) {
            return println!("SKIP: no access control lists here: {error}");
        }
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o644);
        assert!(may_have_acl(&opened()));
    }
}
