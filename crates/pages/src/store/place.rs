// SPDX-License-Identifier: Apache-2.0
//! Where a store may be: a directory on a tmpfs that allows code. Every part of its path is checked through an
//! open descriptor, so that no other user can have planted it. Small files are read and written whole.

use super::error::StoreError;
use super::names::{LOCK, MACHINE_WIDE, NEW, VARIABLE};
use hugelift_linux::io::lock::lock;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, OFlag, openat, renameat};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{FileStat, Mode, fchmod, fstat, mkdirat};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

/// How long to wait for another start that mounts the store, which takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// What to do about a directory that does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IfAbsent {
    /// Nothing: then there is no store.
    Leave,
    /// Make it; for the machine's, mount a tmpfs.
    Make,
}

/// A directory that has passed the checks.
#[derive(Debug)]
pub struct Place {
    /// Its path, as it was given.
    pub path: PathBuf,
    /// Open for reading.
    pub dir: OwnedFd,
    /// Its owner: the calling user, or root.
    pub owner: u32,
}

/// Returns the calling user's directory: what [`VARIABLE`] names, otherwise the machine's for root, and one
/// below `XDG_RUNTIME_DIR` for other users.
///
/// # Errors
/// [`StoreError::NoPlace`]
pub fn own_path() -> Result<PathBuf, StoreError> {
    let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(path) = variable(VARIABLE) {
        return Ok(path);
    }
    if geteuid().is_root() {
        return Ok(MACHINE_WIDE.into());
    }
    variable("XDG_RUNTIME_DIR").map(|dir| dir.join("hugelift/store")).ok_or(StoreError::NoPlace)
}

/// Opens the directory at `path`.
///
/// # Errors
/// The reason why it cannot be used.
pub fn open(path: &Path, if_absent: IfAbsent) -> Result<Place, StoreError> {
    if if_absent == IfAbsent::Make && path == Path::new(MACHINE_WIDE) && geteuid().is_root() {
        // The folder above has the socket of the service too: a mount there would hide it.
        let has_none = |dir: &OwnedFd| !is_tmpfs(dir) || forbids_code(dir);
        let dir = walk(path, if_absent, store_mode())?;
        if has_none(&dir) {
            // Two starts at a time would mount two, of which one hides the other. If the lock is not to be had, this one goes on
            // without it.
            let _turn = lock(dir, PATIENCE);
            let dir = walk(path, if_absent, store_mode())?;
            if has_none(&dir) {
                mount_at(&dir, path)?;
            }
        }
    } else if if_absent == IfAbsent::Make && !lies_on_tmpfs(path) {
        // This is checked before a directory is made on a file system that cannot have a store.
        return Err(StoreError::NotTmpfs { path: path.into() });
    }
    let dir = walk(path, if_absent, store_mode())?;
    let owner = check_owner(&dir, path)?;
    if !is_tmpfs(&dir) {
        return Err(StoreError::NotTmpfs { path: path.into() });
    }
    if forbids_code(&dir) {
        return Err(StoreError::NoExec { path: path.into() });
    }
    Ok(Place { path: path.into(), dir, owner })
}

impl Place {
    /// Reads the file `name`, if it is a regular one of the directory's owner that no other user can write
    /// to, of at most `most` bytes.
    pub(super) fn read(&self, name: &str, most: u64) -> Option<(Vec<u8>, File)> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let mut file = File::from(openat(&self.dir, name, flags, Mode::empty()).ok()?);
        let meta = file.metadata().ok()?;
        let sound = meta.is_file() && meta.uid() == self.owner && meta.mode() & OTHERS_WRITE == 0;
        if !sound || meta.len() > most {
            return None;
        }
        let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).ok()?);
        file.read_to_end(&mut bytes).ok()?;
        Some((bytes, file))
    }

    /// Replaces the file `name` by one with `bytes`, wholly or not at all. The caller has the lock.
    ///
    /// # Errors
    /// [`StoreError::Io`]
    pub(super) fn replace(&self, name: &str, bytes: &[u8], mode: Mode) -> Result<(), StoreError> {
        let temporary = format!("{name}{NEW}");
        let failed = |e| StoreError::here("write a record", e);
        // A temporary file that exists while we have the lock was left by a killed start.
        self.remove(&temporary)?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let mut file = File::from(openat(&self.dir, temporary.as_str(), flags, mode).map_err(failed)?);
        let written =
            file.set_permissions(Permissions::from_mode(mode.bits())).and_then(|()| file.write_all(bytes));
        let named = written
            .map_err(|e| StoreError::here_io("write a record", e))
            .and_then(|()| renameat(&self.dir, temporary.as_str(), &self.dir, name).map_err(failed));
        if named.is_err() {
            self.remove(&temporary)?;
        }
        named
    }

    /// Takes the lock, without which no files are made or dropped.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if another process holds it for longer than `patience`.
    pub(super) fn lock(&self, patience: Duration) -> Result<Flock<OwnedFd>, StoreError> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let failed = |e| StoreError::here("lock a file", e);
        let until = Instant::now() + patience;
        loop {
            let file = openat(&self.dir, LOCK, flags, Mode::S_IRUSR | Mode::S_IWUSR).map_err(failed)?;
            let left = until.saturating_duration_since(Instant::now());
            let held = lock(file, left).map_err(|e| StoreError::here_io("lock a file", e))?;
            let held = held.ok_or(StoreError::Busy)?;
            // Whoever held it before may have removed the file with the whole store. The next process makes another one.
            let inode = fstat(&*held).map_err(failed)?.st_ino;
            if stat_at(&self.dir, LOCK).is_ok_and(|stat| stat.st_ino == inode) {
                return Ok(held);
            }
            if Instant::now() > until {
                return Err(StoreError::Busy);
            }
        }
    }

    /// Takes all rights on a file of the directory's owner from others, if it exists, and removes it. It may
    /// have another name, and a process that holds it only by `O_PATH` must not read it later.
    ///
    /// # Errors
    /// [`StoreError::Io`]
    pub(super) fn close(&self, name: &str) -> Result<(), StoreError> {
        let failed = |e| StoreError::io("close to others", &self.path.join(name), e);
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        if let Ok(file) = openat(&self.dir, name, flags, Mode::empty()) {
            let stat = fstat(&file).map_err(failed)?;
            let is_open = stat.st_mode & (libc::S_IRWXG | libc::S_IRWXO) != 0;
            if stat.st_mode & libc::S_IFMT == libc::S_IFREG && stat.st_uid == self.owner && is_open {
                fchmod(&file, Mode::from_bits_truncate(stat.st_mode) & Mode::S_IRWXU).map_err(failed)?;
            }
        }
        self.remove(name)
    }

    /// Removes a file, if it is there.
    ///
    /// # Errors
    /// [`StoreError::Io`]
    pub(super) fn remove(&self, name: &str) -> Result<(), StoreError> {
        match unlinkat(&self.dir, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(e) => Err(StoreError::io("remove", &self.path.join(name), e)),
        }
    }

    /// Returns the names of all files.
    ///
    /// # Errors
    /// [`StoreError::Io`]
    pub(super) fn names(&self) -> Result<Vec<String>, StoreError> {
        let failed = |e| StoreError::io("read", &self.path, e);
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut dir = Dir::openat(&self.dir, ".", flags, Mode::empty()).map_err(failed)?;
        let names = dir.iter().filter_map(|e| Some(e.ok()?.file_name().to_str().ok()?.to_string()));
        Ok(names.collect())
    }

    /// Removes the directory itself.
    ///
    /// # Errors
    /// [`StoreError::Io`]: there are other files in it.
    pub(super) fn remove_dir(&self) -> Result<(), StoreError> {
        let failed =
            |source: io::Error| StoreError::Io { what: "remove", path: self.path.clone().into(), source };
        std::fs::remove_dir(&self.path).map_err(failed)
    }
}

/// Unmounts the tmpfs that [`open`] has mounted, if there is one. An earlier version has mounted it one folder above.
///
/// # Errors
/// [`StoreError::Io`]
pub fn unmount() -> Result<(), StoreError> {
    let count = |point: &Path| {
        let is_it = |line: &&str| {
            let mut words = line.split(' ');
            words.next() == Some(SOURCE) && words.next() == point.to_str()
        };
        std::fs::read_to_string("/proc/self/mounts").unwrap_or_default().lines().filter(is_it).count()
    };
    // We have made the mount point and the folder above too; they stay if there is anything in them.
    for point in Path::new(MACHINE_WIDE).ancestors().take(2) {
        // Earlier versions mounted two where two starts came at the same time.
        for _ in 0..count(point) {
            match nix::mount::umount2(point, nix::mount::MntFlags::MNT_DETACH) {
                // The list also names a mount that another one hides.
                Ok(()) | Err(Errno::EINVAL) => {}
                Err(e) => return Err(StoreError::io("unmount", point, e)),
            }
        }
        let _ = std::fs::remove_dir(point);
    }
    Ok(())
}

/// The name that our mount has in /proc/mounts.
const SOURCE: &str = "hugelift";

fn mount_at(dir: &OwnedFd, path: &Path) -> Result<(), StoreError> {
    // This is the directory that was checked, whatever the path leads to by now.
    let point = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let with = |options: &str| mount(Some(SOURCE), &point, Some("tmpfs"), flags, Some(options));
    // With huge pages at the first touch, MADV_COLLAPSE is not needed, which kernels before 6.1 do not have.
    with("mode=0711,huge=within_size")
        .or_else(|_| with("mode=0711"))
        .map_err(|e| StoreError::io("mount a tmpfs on", path, e))
}

/// Returns whether a directory that is made at `path` will be on a tmpfs. True if that cannot be found out:
/// [`walk`] then reports the reason.
fn lies_on_tmpfs(path: &Path) -> bool {
    let there = path.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
    let opened = nix::fcntl::open(there, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty());
    opened.map_or(true, |dir| is_tmpfs(&dir))
}

fn is_tmpfs(dir: &OwnedFd) -> bool {
    fstatfs(dir).is_ok_and(|s| s.filesystem_type() == TMPFS_MAGIC)
}

fn forbids_code(dir: &OwnedFd) -> bool {
    fstatvfs(dir).is_ok_and(|s| s.flags().contains(FsFlags::ST_NOEXEC))
}

/// Goes down `path` name by name, following no symbolic link. If the last directory is made, it
/// gets the mode `last_mode`.
fn walk(path: &Path, if_absent: IfAbsent, last_mode: Mode) -> Result<OwnedFd, StoreError> {
    let absolute = std::path::absolute(path).map_err(|source| StoreError::Io {
        what: "find",
        path: path.into(),
        source,
    })?;
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let failed = |at: &Path, e: Errno| match e {
        Errno::ENOENT => StoreError::Missing { path: path.into() },
        e => StoreError::io("open", at, e),
    };
    let mut at = PathBuf::from("/");
    let mut dir = nix::fcntl::open("/", flags, Mode::empty()).map_err(|e| failed(&at, e))?;
    for component in absolute.components() {
        let name = match component {
            Component::RootDir | Component::CurDir => continue,
            Component::Normal(name) => name,
            _ => return Err(StoreError::hostile(path, "is named with '..'")),
        };
        at.push(name);
        let opened = match openat(&dir, name, flags, Mode::empty()) {
            Err(Errno::ENOENT) if if_absent == IfAbsent::Make => {
                let mode = if at == absolute { last_mode } else { directory_above() };
                match mkdirat(&dir, name, mode) {
                    // Another start may have made it meanwhile: `check_step` checks it.
                    Ok(()) | Err(Errno::EEXIST) => openat(&dir, name, flags, Mode::empty()),
                    Err(e) => return Err(StoreError::io("make", &at, e)),
                }
            }
            other => other,
        };
        dir = opened.map_err(|e| failed(&at, e))?;
        check_step(&dir, &at)?;
    }
    let last = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    match openat(&dir, ".", last, Mode::empty()) {
        // Root's store: users can open a file whose name they know, but cannot list the directory.
        Err(Errno::EACCES) => Ok(dir),
        other => other.map_err(|e| failed(&at, e)),
    }
}

/// Returns the mode of directories that are made above a store: root's are for all users, a user's are
/// private.
fn directory_above() -> Mode {
    if geteuid().is_root() { Mode::from_bits_truncate(0o755) } else { Mode::S_IRWXU }
}

/// Returns the mode of a new store. In root's, every user can open the entry of a file that they may see, and
/// cannot find out which other files root runs, when, and how large they are.
fn store_mode() -> Mode {
    if geteuid().is_root() { Mode::from_bits_truncate(0o711) } else { Mode::S_IRWXU }
}

const OTHERS_WRITE: u32 = libc::S_IWGRP | libc::S_IWOTH;

fn stat_of(dir: &OwnedFd, path: &Path) -> Result<FileStat, StoreError> {
    fstat(dir).map_err(|e| StoreError::io("stat", path, e))
}

/// Checks a directory on the way to the store: others may be able to make names in it only if they cannot
/// remove ours.
fn check_step(dir: &OwnedFd, path: &Path) -> Result<(), StoreError> {
    let stat = stat_of(dir, path)?;
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFDIR => {}
        libc::S_IFLNK => return Err(StoreError::hostile(path, "is a symbolic link")),
        _ => return Err(StoreError::hostile(path, "is not a directory")),
    }
    check_user(&stat, path)?;
    if stat.st_mode & OTHERS_WRITE != 0 && stat.st_mode & libc::S_ISVTX == 0 {
        return Err(StoreError::hostile(path, "can be written by others"));
    }
    Ok(())
}

/// Checks the store itself, in which others must not be able to make anything; returns its owner.
fn check_owner(dir: &OwnedFd, path: &Path) -> Result<u32, StoreError> {
    let stat = stat_of(dir, path)?;
    check_user(&stat, path)?;
    if stat.st_mode & OTHERS_WRITE != 0 {
        return Err(StoreError::hostile(path, "can be written by others"));
    }
    Ok(stat.st_uid)
}

fn check_user(stat: &FileStat, path: &Path) -> Result<(), StoreError> {
    if stat.st_uid != 0 && stat.st_uid != geteuid().as_raw() {
        return Err(StoreError::hostile(path, "belongs to another user"));
    }
    Ok(())
}

/// Calls stat(2) for a name in a directory; a symbolic link is not followed.
pub(super) fn stat_at(dir: &OwnedFd, name: &str) -> Result<FileStat, Errno> {
    nix::sys::stat::fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn tmpfs() -> Option<tempfile::TempDir> {
        let dir = tempfile::TempDir::new_in("/dev/shm").ok()?;
        open(dir.path(), IfAbsent::Leave).is_ok().then_some(dir)
    }

    fn why(path: &Path, if_absent: IfAbsent) -> String {
        open(path, if_absent).unwrap_err().to_string()
    }

    #[test]
    fn only_what_is_ours_alone_is_a_place() {
        let Some(dir) = tmpfs() else { return println!("SKIP: no /dev/shm of ours that allows code") };
        let store = dir.path().join("a/store");
        assert!(matches!(open(&store, IfAbsent::Leave), Err(StoreError::Missing { .. })));
        let made = open(&store, IfAbsent::Make).unwrap();
        assert_eq!((made.owner, made.path.as_path()), (geteuid().as_raw(), store.as_path()));
        let link = dir.path().join("link");
        symlink(dir.path().join("a"), &link).unwrap();
        assert!(why(&link.join("store"), IfAbsent::Make).contains("is a symbolic link"));
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(why(&dir.path().join("file/store"), IfAbsent::Make).contains("not a directory"));
        assert!(why(&dir.path().join("a/../a/store"), IfAbsent::Leave).contains(".."));
        for (mode, path) in [(0o770, &store), (0o777, &store), (0o1777, &store)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert!(why(path, IfAbsent::Leave).contains("by others"), "{mode:o}");
        }
    }

    #[test]
    fn a_disk_is_no_place() {
        let dir = tempfile::TempDir::new().unwrap();
        if fstatfs(std::fs::File::open(dir.path()).unwrap()).is_ok_and(|s| s.filesystem_type() == TMPFS_MAGIC)
        {
            return println!("SKIP: temporary files are on tmpfs here");
        }
        assert!(matches!(open(dir.path(), IfAbsent::Leave), Err(StoreError::NotTmpfs { .. })));
    }
}
