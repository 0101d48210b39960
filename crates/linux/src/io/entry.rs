// SPDX-License-Identifier: Apache-2.0
//! A name in a directory that is held open.
//!
//! Between two steps by path another user may put a symbolic link where a directory was. All steps
//! on an [`Entry`] (open, create, link, rename, remove) go relative to one descriptor of the
//! directory and follow no link, so they stay in that directory, whatever its path has become.

use crate::io::open::{self, own_path};
use hugelift_core::printable::Untrusted;
use nix::NixPath;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat, renameat};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

/// As many symbolic links as the kernel follows (path_resolution(7)).
const MAX_LINKS: u32 = 40;
/// How often the name of a file is exchanged back, if newer files take it all the time.
const EXCHANGES: u32 = 100;
/// A directory to go through or to work in.
const DIRECTORY: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);
/// Any file, referred to but not opened.
const HOLD: OFlag = OFlag::O_PATH.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// Why a path was not followed.
#[derive(Debug, thiserror::Error)]
enum NotFollowed {
    /// The owner of the link decides where it leads.
    #[error(
        "{link} is a symbolic link that user {uid} can change, and is not followed; \
         give the path that it leads to: {target}"
    )]
    Link { link: Untrusted, uid: u32, target: Untrusted },
}

/// A name in a directory that is held open.
#[derive(Clone, Debug)]
pub struct Entry {
    directory: Rc<File>,
    folder: PathBuf,
    name: OsString,
    /// The directories on the way here.
    way: Way,
    /// A link of procfs, which leads to an open file and not to a path: `/dev/stdout`.
    is_magic: bool,
}

/// Returns whether a file of this owner can be trusted as the caller's own: it is the caller's, or root's.
/// In a user namespace root may have another number: the number of the root directory's owner.
pub fn is_trusted(uid: u32) -> bool {
    let is_roots = || std::fs::metadata("/").is_ok_and(|root| root.uid() == uid);
    uid == 0 || uid == nix::unistd::geteuid().as_raw() || is_roots()
}

/// Returns whether root and the caller alone may write to a file or directory of this owner and this mode (inode(7)).
pub fn is_written_by_trusted_alone(uid: u32, mode: u32) -> bool {
    is_trusted(uid) && mode & (libc::S_IWGRP | libc::S_IWOTH) == 0
}

/// Returns whether only root and the caller can change a file or directory. A group may write to a sticky
/// directory: it cannot change the names of others there.
fn is_ours_alone(stat: &FileStat) -> bool {
    let mode = stat.st_mode;
    let is_sticky = mode & libc::S_IFMT == libc::S_IFDIR && mode & libc::S_ISVTX != 0;
    is_trusted(stat.st_uid) && mode & libc::S_IWOTH == 0 && (mode & libc::S_IWGRP == 0 || is_sticky)
}

/// What others can do to the directories on the way to an entry.
#[derive(Clone, Debug)]
struct Way {
    /// Only root and the caller can change any of them.
    is_safe: bool,
    /// The first in which others can change names of root and the caller.
    exposed: Option<PathBuf>,
}

impl Way {
    fn new() -> Way {
        Way { is_safe: true, exposed: None }
    }

    /// Goes through a directory.
    fn pass(&mut self, path: &Path, stat: &FileStat) {
        self.is_safe &= is_ours_alone(stat);
        if self.exposed.is_none() && !keeps_names(stat) {
            self.exposed = Some(path.to_path_buf());
        }
    }
}

/// Returns whether others cannot change what root and the caller have in a directory. In a sticky one they can only
/// make and change names of their own (inode(7), `S_ISVTX`).
fn keeps_names(stat: &FileStat) -> bool {
    let is_sticky = stat.st_mode & libc::S_ISVTX != 0;
    is_trusted(stat.st_uid) && (is_sticky || stat.st_mode & (libc::S_IWGRP | libc::S_IWOTH) == 0)
}

impl Entry {
    /// Follows `path` and opens the directory of its last name, which need not exist.
    ///
    /// Symbolic links are followed where they are root's or the caller's own, also at the end.
    /// A link of another user is not followed: it may lead to any file, now or in the next moment.
    ///
    /// # Errors
    /// The errors of open(2) for the directory; also an error if a link is not followed.
    pub fn find(path: &Path) -> io::Result<Entry> {
        Entry::find_by(path, true)
    }

    /// Follows the folders of `path`, as [`Entry::find`] does, and not its last name, which may be a link.
    ///
    /// # Errors
    /// As [`Entry::find`].
    pub fn find_name(path: &Path) -> io::Result<Entry> {
        Entry::find_by(path, false)
    }

    fn find_by(path: &Path, follows_last: bool) -> io::Result<Entry> {
        let mut left: VecDeque<OsString> = words(path);
        let (mut at, mut shown) = start(path)?;
        let mut way = Way::new();
        way.pass(&shown, &fstat(&at)?);
        let mut links = 0;
        while let Some(name) = left.pop_front() {
            if name == ".." {
                at = openat(&at, "..", DIRECTORY, Mode::empty())?.into();
                shown.pop();
                way.pass(&shown, &fstat(&at)?);
                continue;
            }
            let is_last = left.is_empty();
            let held: File = match openat(&at, name.as_os_str(), HOLD, Mode::empty()) {
                Err(Errno::ENOENT) if is_last => return Ok(Entry::new(at, shown, name, way, false)),
                held => held?.into(),
            };
            let stat = fstat(&held)?;
            match stat.st_mode & libc::S_IFMT {
                libc::S_IFLNK if is_last && !follows_last => {
                    return Ok(Entry::new(at, shown, name, way, false));
                }
                libc::S_IFLNK => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::ELOOP.into());
                    }
                    let target = PathBuf::from(readlinkat(&held, "")?);
                    let is_alone = is_ours_alone(&fstat(&at)?);
                    // With hard links, another user may have put root's link here.
                    if !is_trusted(stat.st_uid) || (stat.st_nlink > 1 && !is_alone) {
                        let (link, target) = (shown.join(&name).into(), target.into());
                        return Err(io::Error::other(NotFollowed::Link { link, uid: stat.st_uid, target }));
                    }
                    if is_last && is_of_proc(&held) {
                        return Ok(Entry::new(at, shown, name, way, true));
                    }
                    if target.has_root() {
                        (at, shown) = start(&target)?;
                    }
                    let mut more = words(&target);
                    more.append(&mut left);
                    left = more;
                }
                _ if is_last => return Ok(Entry::new(at, shown, name, way, false)),
                libc::S_IFDIR => {
                    at = held;
                    shown.push(&name);
                    way.pass(&shown, &stat);
                }
                _ => return Err(Errno::ENOTDIR.into()),
            }
        }
        // "/", "..": a directory without a name.
        Err(Errno::EISDIR.into())
    }

    fn new(directory: File, folder: PathBuf, name: OsString, way: Way, is_magic: bool) -> Entry {
        Entry { directory: Rc::new(directory), folder, name, way, is_magic }
    }

    /// Returns another name in the same directory.
    pub fn sibling(&self, name: impl Into<OsString>) -> Entry {
        Entry { name: name.into(), is_magic: false, ..self.clone() }
    }

    /// Returns the name.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Returns the path, without symbolic links. It is for messages: it may lead elsewhere by now.
    pub fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// Returns whether the name is a link of procfs to an open file.
    pub fn is_magic(&self) -> bool {
        self.is_magic
    }

    /// Returns whether only root and the caller can change the file, its name, and every directory on the
    /// way to it.
    pub fn is_ours_alone(&self) -> bool {
        self.way.is_safe && self.stat().is_ok_and(|stat| is_ours_alone(&stat))
    }

    /// Returns the first directory on the way here in which others than root and the caller can give our names to files
    /// of theirs. A sticky directory that all can write to, as `/tmp`, does not count: they cannot take our names there.
    pub fn exposed(&self) -> Option<&Path> {
        self.way.exposed.as_deref()
    }

    /// Returns whether root and the caller alone can change the file of this owner and this mode (inode(7)), which has the name,
    /// or put another one in its place.
    pub fn is_changed_by_trusted_alone(&self, uid: u32, mode: u32) -> bool {
        self.exposed().is_none() && is_written_by_trusted_alone(uid, mode)
    }

    /// Returns what has the name now; a symbolic link is not followed.
    ///
    /// # Errors
    /// fstatat(2)
    pub fn stat(&self) -> io::Result<FileStat> {
        Ok(fstatat(&self.directory, self.name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW)?)
    }

    /// Returns whether this file has the name now.
    pub fn is(&self, file: &Metadata) -> bool {
        self.stat().is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (file.dev(), file.ino()))
    }

    /// Opens the regular file of this name for reading.
    ///
    /// # Errors
    /// open(2); a symbolic link is not a regular file either.
    pub fn open(&self) -> io::Result<(File, Metadata)> {
        let held = self.hold()?;
        let flags = OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        open::regular_at(&held, |more| self.open_with(flags | more, Mode::empty()))
    }

    /// Opens the name with these flags.
    ///
    /// # Errors
    /// open(2)
    pub fn open_with(&self, flags: OFlag, mode: Mode) -> io::Result<File> {
        Ok(openat(&self.directory, self.name.as_os_str(), flags, mode)?.into())
    }

    /// Opens the directory with these flags (`O_TMPFILE` makes a file without a name in it).
    ///
    /// # Errors
    /// open(2)
    pub fn open_directory(&self, flags: OFlag, mode: Mode) -> io::Result<File> {
        Ok(openat(&self.directory, ".", flags | OFlag::O_CLOEXEC, mode)?.into())
    }

    /// Makes a new file of this name with this mode, open for reading and writing.
    ///
    /// # Errors
    /// open(2), EEXIST if there is anything of this name.
    pub fn create(&self, mode: u32) -> io::Result<File> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        self.open_with(flags, Mode::from_bits_truncate(mode))
    }

    /// Gives the open `file` this name too.
    ///
    /// # Errors
    /// linkat(2), EEXIST if there is anything of this name.
    pub fn link(&self, file: &File) -> io::Result<()> {
        // The descriptor is used, as the name that the file had may be another file's now.
        let own = own_path(file);
        let cwd = nix::fcntl::AT_FDCWD;
        Ok(linkat(cwd, &own, &self.directory, self.name.as_os_str(), AtFlags::AT_SYMLINK_FOLLOW)?)
    }

    /// Renames the file of this name to `to`, replacing a file of that name.
    ///
    /// # Errors
    /// renameat(2)
    pub fn rename(&self, to: &Entry) -> io::Result<()> {
        Ok(renameat(&self.directory, self.name.as_os_str(), &to.directory, to.name.as_os_str())?)
    }

    /// Puts the file of this name in the place of `expected`, which has the name `place`, and removes `expected` from
    /// its folder. If another file has taken that name meanwhile, as a package upgrade does, that file keeps it, and
    /// this one keeps its own.
    ///
    /// rename(2) would replace whatever has the name at that moment. So the two are exchanged, and what came out is
    /// checked. Where the file system cannot exchange two names (NFS, for example), a check just before
    /// rename(2) must do.
    ///
    /// # Errors
    /// renameat2(2); `ESTALE` if another file has taken the name.
    pub fn take_place_of(&self, expected: &Metadata, place: &Entry) -> io::Result<()> {
        // A file that is held keeps its number, so no other file can be taken for it.
        let ours = self.hold()?;
        match self.exchange(place) {
            Err(Errno::EINVAL | Errno::ENOSYS) if place.is(expected) => return self.rename(place),
            Err(Errno::EINVAL | Errno::ENOSYS) => return Err(Errno::ESTALE.into()),
            exchanged => exchanged?,
        }
        if self.is(expected) {
            return self.remove();
        }
        // What came out must get its name back. Each exchange may bring out a newer file, which must get it then.
        let mut last = ours.try_clone()?;
        for _ in 0..EXCHANGES {
            let out = self.hold()?;
            self.exchange(place)?;
            if self.is(&last.metadata()?) {
                break;
            }
            last = out;
        }
        // If a second file came, it has replaced the first, which is what is left here.
        if !self.is(&ours.metadata()?) {
            self.remove()?;
        }
        Err(Errno::ESTALE.into())
    }

    /// Returns an `O_PATH` descriptor of what has the name now.
    fn hold(&self) -> io::Result<File> {
        self.open_with(HOLD, Mode::empty())
    }

    /// Exchanges the files of the two names.
    fn exchange(&self, other: &Entry) -> nix::Result<()> {
        let (from, to) = (self.name.as_os_str(), other.name.as_os_str());
        renameat2(&self.directory, from, &other.directory, to, libc::RENAME_EXCHANGE)
    }

    /// Removes the name.
    ///
    /// # Errors
    /// unlinkat(2)
    pub fn remove(&self) -> io::Result<()> {
        Ok(unlinkat(&self.directory, self.name.as_os_str(), UnlinkatFlags::NoRemoveDir)?)
    }

    /// Writes the names of the directory to disk, so that they survive a power failure as the bytes do.
    ///
    /// # Errors
    /// open(2), fsync(2)
    pub fn sync_directory(&self) -> io::Result<()> {
        self.open_directory(OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty())?.sync_all()
    }
}

/// Renames `from` to `to`, both in `folder`, unless there is a file of the new name.
///
/// # Errors
/// renameat2(2) with `RENAME_NOREPLACE`: `EEXIST` if the new name is taken.
pub fn rename_to_free(folder: &impl AsFd, from: &OsStr, to: &OsStr) -> nix::Result<()> {
    renameat2(folder, from, folder, to, libc::RENAME_NOREPLACE)
}

/// Calls renameat2(2), for which not every C library has a function (musl has none here).
fn renameat2(from: &impl AsFd, old: &OsStr, to: &impl AsFd, new: &OsStr, flags: u32) -> nix::Result<()> {
    let (from, to) = (from.as_fd().as_raw_fd(), to.as_fd().as_raw_fd());
    let renamed = old.with_nix_path(|old| {
        new.with_nix_path(|new| {
            // SAFETY: renameat2(2): descriptors that are open, and two strings that end in NUL.
            unsafe { libc::syscall(libc::SYS_renameat2, from, old.as_ptr(), to, new.as_ptr(), flags) }
        })
    })??;
    Errno::result(renamed).map(drop)
}

/// Opens the directory from which a path begins: the root or the working directory.
fn start(path: &Path) -> io::Result<(File, PathBuf)> {
    let (from, shown) = match path.has_root() {
        true => ("/", PathBuf::from("/")),
        false => (".", std::env::current_dir().unwrap_or_default()),
    };
    Ok((openat(nix::fcntl::AT_FDCWD, from, DIRECTORY, Mode::empty())?.into(), shown))
}

/// Returns the names of a path in order, `..` included.
fn words(path: &Path) -> VecDeque<OsString> {
    let name = |component: Component| match component {
        Component::Normal(name) => Some(name.to_os_string()),
        Component::ParentDir => Some(OsString::from("..")),
        _ => None,
    };
    path.components().filter_map(name).collect()
}

fn is_of_proc(link: &File) -> bool {
    use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
    fstatfs(link).is_ok_and(|stat| stat.filesystem_type() == PROC_SUPER_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Returns a folder with the files `old`, `copy` and `upgrade`, which hold their names, and their entries.
    fn folder() -> (tempfile::TempDir, [Entry; 3]) {
        let folder = tempfile::tempdir().unwrap();
        let entries = ["old", "copy", "upgrade"].map(|name| {
            fs::write(folder.path().join(name), name).unwrap();
            Entry::find(&folder.path().join(name)).unwrap()
        });
        (folder, entries)
    }

    fn read(entry: &Entry) -> String {
        fs::read_to_string(entry.path()).unwrap()
    }

    #[test]
    fn a_file_takes_the_place_of_the_expected_one() {
        let (folder, [old, copy, _]) = folder();
        copy.take_place_of(&fs::metadata(old.path()).unwrap(), &old).unwrap();
        assert_eq!(read(&old), "copy");
        assert!(!copy.path().exists(), "the old file is left in {folder:?}");
    }

    #[test]
    fn a_file_that_came_meanwhile_keeps_its_name() {
        let (_folder, [old, copy, upgrade]) = folder();
        let expected = fs::metadata(old.path()).unwrap();
        upgrade.rename(&old).unwrap();
        let error = copy.take_place_of(&expected, &old).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
        assert_eq!((read(&old), read(&copy)), ("upgrade".into(), "copy".into()));
    }

    /// Another thread replaces the file all the time, by versions of ascending numbers. The last one must stay.
    #[test]
    fn the_last_of_many_upgrades_stays() {
        for round in 0..200 {
            let (folder, [old, copy, _]) = folder();
            // Whoever replaces a file has it open.
            let held = File::open(old.path()).unwrap();
            let expected = held.metadata().unwrap();
            let path = folder.path().to_owned();
            let upgrades = std::thread::spawn(move || {
                for version in 0..50 {
                    fs::write(path.join("new"), version.to_string()).unwrap();
                    fs::rename(path.join("new"), path.join("old")).unwrap();
                }
            });
            for _ in 0..20 {
                let _ = copy.take_place_of(&expected, &old);
                if !copy.path().exists() {
                    break;
                }
            }
            upgrades.join().unwrap();
            assert_eq!(read(&old), "49", "round {round}");
        }
    }
}
