// SPDX-License-Identifier: Apache-2.0
//! The file that a process has mapped, found by evidence that the owner of the process cannot arrange.
//!
//! The path of a mapping is no evidence. Its owner may mount, rename and link in a namespace of its own, so the path may
//! lead to any file, which root could open and the owner could not. The link in `map_files` leads to the mapped file
//! itself. Only a process with CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE in the first user namespace may follow it. Where
//! the kernel refuses that, the path is followed with the rights that the caller has. Then device and inode must be those
//! of the mapping; where stat(2) says another device than maps, nothing is proven, and whoever uses the file compares
//! its bytes with those that the process has.
//!
//! A file on a file system that another user's process serves (FUSE) may never be read: open(2), stat(2), read(2), and
//! each read of memory that maps it would wait, and cannot be interrupted. So these files of other users are left alone
//! ([`MappedFiles::may_be_read`]).

use crate::io::open;
use crate::proc::procfs::Process;
use hugelift_core::addr::Range;
use hugelift_core::maps::{FileId, Mapping};
use hugelift_core::mounts::{Device, Mounts};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, FsType, OVERLAYFS_SUPER_MAGIC, fstatfs};
use nix::unistd::geteuid;
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// These show another device in `/proc/PID/maps` than in stat(2).
const TWO_DEVICES: &[FsType] = &[BTRFS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC];

/// The error for a file of another user that is not read, as its file system may not answer.
#[derive(Debug, thiserror::Error)]
#[error("it is on a file system that another user or machine may serve")]
struct MayNotAnswer;

/// The files that a process has mapped.
#[derive(Debug)]
pub struct MappedFiles {
    process: Process,
    /// It is another user's.
    foreign: bool,
    mounts: OnceCell<Mounts>,
}

/// A file that a process has mapped.
#[derive(Debug)]
pub struct MappedFile {
    /// It is open with `O_PATH`.
    seen: File,
    /// What stat(2) says of it.
    pub meta: Metadata,
    /// Whether it is certain that it is the file of the mapping.
    pub proven: bool,
}

impl MappedFiles {
    /// Names the files of a process.
    pub fn of(process: Process) -> MappedFiles {
        let user = process.status().ok().and_then(|status| status.uid);
        let foreign = process != Process::OWN && user != Some(geteuid().as_raw());
        MappedFiles { process, foreign, mounts: OnceCell::new() }
    }

    /// Returns whether the process is another user's.
    pub fn are_of_another_user(&self) -> bool {
        self.foreign
    }

    /// Returns whether a file that this process has mapped, and the memory that maps it, can be read without waiting for
    /// another user's process or another machine. Of one's own processes all are read.
    pub fn may_be_read(&self, file: FileId) -> bool {
        !self.foreign || self.mounts().answers((file.major, file.minor))
    }

    fn mounts(&self) -> &Mounts {
        self.mounts.get_or_init(|| {
            let read = |process: Process| process.read("mountinfo").unwrap_or_default();
            let mut mounts = Mounts::parse(&read(Process::OWN), &read(self.process));
            devices_of_memory_files().for_each(|(device, kind)| mounts.add(device, kind));
            mounts
        })
    }

    /// Returns the devices of the `MAP_SHARED` mappings that are file systems of type tmpfs.
    pub fn tmpfs(&self, mappings: &[Mapping]) -> Vec<Device> {
        // A file system without a disk has a device number of its own, with 0 as its first part.
        let devices = mappings.iter().filter(|m| m.shared && m.file.major == 0);
        let devices: BTreeSet<Device> = devices.map(|m| (m.file.major, m.file.minor)).collect();
        devices.into_iter().filter(|device| self.mounts().is_tmpfs(*device)).collect()
    }

    /// Finds the file of one mapping.
    ///
    /// # Errors
    /// It is not mapped any more, its path leads to another file, or it [`may_not_be_read`].
    pub fn find(&self, mapping: &Mapping) -> io::Result<MappedFile> {
        // The first segment of System V has the inode 0.
        if mapping.file == FileId::default() {
            return Err(io::ErrorKind::NotFound.into());
        }
        if !self.may_be_read(mapping.file) {
            return Err(io::Error::other(MayNotAnswer));
        }
        let (seen, found, by_link) = match open::path_only(&self.process.map_file(mapping.range)) {
            Ok(seen) => self.checked(mapping, seen).map(|(seen, found)| (seen, found, true))?,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.by_path(mapping).map(|(seen, found)| (seen, found, false))?
            }
            Err(error) => return Err(error),
        };
        let meta = seen.metadata()?;
        if !meta.is_file() {
            return Err(open::not_regular());
        }
        Ok(MappedFile { seen, meta, proven: by_link || found == mapping.file })
    }

    /// Finds the file of an object by the first of its mappings that is still there.
    ///
    /// # Errors
    /// See [`MappedFiles::find`].
    pub fn find_any(&self, file: FileId, mappings: &[Mapping]) -> io::Result<MappedFile> {
        let mut last = io::ErrorKind::NotFound.into();
        for mapping in mappings.iter().filter(|m| m.file == file) {
            match self.find(mapping) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => last = error,
                found => return found,
            }
        }
        Err(last)
    }

    /// Returns whether `seen`, which has the identity `found` by stat(2), can be the file that maps shows as `shown`.
    fn has_device(&self, shown: FileId, found: FileId, seen: &File) -> bool {
        let device = |id: FileId| (id.major, id.minor);
        if device(found) == device(shown) {
            return true;
        }
        match self.foreign {
            // A subvolume's device is mounted nowhere. One that is mounted is another file system.
            true => self.mounts().has_two_devices(device(shown)) && !self.mounts().knows(device(found)),
            false => fstatfs(seen).is_ok_and(|system| TWO_DEVICES.contains(&system.filesystem_type())),
        }
    }

    /// Opens the file that the process runs.
    ///
    /// # Errors
    /// The process has ended, is another user's, or its file [`may_not_be_read`].
    pub fn executable(&self) -> io::Result<File> {
        let seen = open::path_only(&self.process.path("exe"))?;
        let found = open::id_without_waiting(&seen)?;
        let is_it = |m: &Mapping| m.file.inode == found.inode && self.has_device(m.file, found, &seen);
        let shown = || self.process.maps().ok()?.iter().find(|m| is_it(m)).map(|m| m.file);
        if self.foreign && !self.may_be_read(found) && !shown().is_some_and(|file| self.may_be_read(file)) {
            return Err(io::Error::other(MayNotAnswer));
        }
        open::regular_at(&seen, |_| Err(io::ErrorKind::NotFound.into())).map(|(file, _)| file)
    }

    /// Opens what is at the path of a mapping, with the rights that the caller has, and returns it with its identity.
    fn by_path(&self, mapping: &Mapping) -> io::Result<(File, FileId)> {
        // The kernel's link to the executable leads to the file itself, too.
        if let Ok(seen) = open::path_only(&self.process.path("exe"))
            && open::id_without_waiting(&seen).is_ok_and(|id| id == mapping.file)
        {
            return Ok((seen, mapping.file));
        }
        if mapping.deleted {
            return Err(io::ErrorKind::NotFound.into());
        }
        let inside = mapping.path.strip_prefix("/").map_err(io::Error::other)?;
        // The kernel shows the path from the root of who reads it, if it lies below that (chroot(2)); else from that of
        // the file system, as the process in another mount namespace sees it.
        let open = |path: &Path| self.checked(mapping, open::path_only(path)?);
        open(&self.root().join(inside)).or_else(|error| open(&mapping.path).map_err(|_| error))
    }

    /// Returns a file with its identity if the mapping shows the same identity. The process may have mapped another file there
    /// meanwhile, for which stat(2) would wait.
    fn checked(&self, mapping: &Mapping, seen: File) -> io::Result<(File, FileId)> {
        let found = open::id_without_waiting(&seen)?;
        if found.inode != mapping.file.inode || !self.has_device(mapping.file, found, &seen) {
            return Err(io::Error::from_raw_os_error(libc::ESTALE));
        }
        Ok((seen, found))
    }

    fn root(&self) -> PathBuf {
        self.process.path("root")
    }
}

impl MappedFile {
    /// Opens it for reading, without waiting for a process that holds a lease on it.
    ///
    /// # Errors
    /// open(2): this process may not read it.
    pub fn open(&self) -> io::Result<File> {
        open::regular_at(&self.seen, |_| Err(io::ErrorKind::NotFound.into())).map(|(file, _)| file)
    }

    /// Returns its descriptor, which is open with `O_PATH`.
    pub fn into_seen(self) -> File {
        self.seen
    }
}

/// Returns whether a file was not opened because its file system may not answer.
pub fn may_not_be_read(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<MayNotAnswer>())
}

/// Returns device and inode of the file of exactly the mapping at `range`, by the link in `map_files`.
///
/// # Errors
/// There is no such mapping of a file; without the right to follow the link, `PermissionDenied`.
pub fn file_at(process: Process, range: Range) -> io::Result<FileId> {
    open::id_without_waiting(&open::path_only(&process.map_file(range))?)
}

/// Returns the devices of the files that memfd_create(2) makes, which are in no list of mounts: one for ordinary pages,
/// and one for each size of pages of a pool, which anonymous memory of that pool has too.
fn devices_of_memory_files() -> impl Iterator<Item = (Device, &'static str)> {
    // MFD_HUGE_SHIFT: the binary logarithm of the size, from 64 kB to 16 GB.
    let pools = (16..=34).map(|log| (libc::MFD_HUGETLB | (log << 26), "hugetlbfs"));
    std::iter::once((0, "tmpfs")).chain(pools).filter_map(|(flags, kind)| {
        let flags = MFdFlags::from_bits_retain(flags | libc::MFD_CLOEXEC);
        let meta = File::from(memfd_create(c"hugelift", flags).ok()?).metadata().ok()?;
        Some(((libc::major(meta.dev()), libc::minor(meta.dev())), kind))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_executable_is_found_by_its_mapping() {
        let own = std::env::current_exe().unwrap().metadata().unwrap();
        let mappings = Process::OWN.maps().unwrap();
        let exe = std::env::current_exe().unwrap();
        let mapping = mappings.iter().find(|m| m.path == exe).unwrap();
        let files = MappedFiles::of(Process::OWN);
        let found = files.find(mapping).unwrap();
        assert_eq!((found.meta.dev(), found.meta.ino()), (own.dev(), own.ino()));
        assert!(!files.are_of_another_user() && files.may_be_read(mapping.file));
        assert!(found.open().is_ok());
        // Another file has taken the path.
        let other =
            Mapping { file: FileId { inode: mapping.file.inode + 1, ..mapping.file }, ..mapping.clone() };
        assert_eq!(files.find(&other).unwrap_err().raw_os_error(), Some(libc::ESTALE));
    }

    #[test]
    fn a_file_in_memory_has_a_device_that_is_mounted_nowhere() {
        let (device, _) = devices_of_memory_files().next().unwrap();
        let mounts = Process::OWN.read("mountinfo").unwrap();
        assert!(!Mounts::parse(&mounts, b"").knows(device));
    }
}
