// SPDX-License-Identifier: Apache-2.0
//! A file's pages in memory: writes them back, drops them, and finds out their state.

use hugelift_core::addr::PageSize;
use hugelift_core::printable::text_to_parse;
use hugelift_linux::proc::procfs::Process;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Writes the file's dirty pages back: only clean ones can be dropped or collapsed. Where this fails (a
/// read-only file system) they stay small, which the last step of priming finds.
pub fn sync(file: &File) {
    if let Err(error) = file.sync_all() {
        tracing::debug!(%error, "fsync");
    }
}

/// Writes back what is dirty of the huge page at `offset`, and waits for that (sync_file_range(2)).
pub fn write_back(file: &File, offset: u64, page: PageSize) {
    let (Ok(offset), Ok(bytes)) = (offset.try_into(), page.bytes().try_into()) else { return };
    let all =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: sync_file_range(2) takes numbers alone.
    if unsafe { libc::sync_file_range(file.as_raw_fd(), offset, bytes, all) } != 0 {
        tracing::debug!(error = %io::Error::last_os_error(), offset, "sync_file_range");
    }
}

/// Drops the base pages of the huge page at `offset` that are clean and not mapped. Any reader of a file may
/// do that (posix_fadvise(2)).
pub fn forget(file: &File, offset: u64, page: PageSize) {
    let (Ok(offset), Ok(bytes)) = (offset.try_into(), page.bytes().try_into()) else { return };
    let advice = nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED;
    if let Err(error) = nix::fcntl::posix_fadvise(file, offset, bytes, advice) {
        tracing::debug!(%error, offset, "fadvise");
    }
}

/// Returns what changes when the file is written to: length, modification and change time.
pub fn stamp(file: &File) -> Option<[i64; 5]> {
    let m = file.metadata().ok()?;
    Some([m.size().cast_signed(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec()])
}

/// Returns whether any process has the file open for writing; `None` if that cannot be found out.
///
/// The kernel refuses a read lease then (fcntl(2), F_SETLEASE). A lease that was granted is given back at
/// once; a process that opens the file for writing in that moment waits until then.
pub fn open_for_writing(file: &File) -> Option<bool> {
    const F_SETSIG: libc::c_int = 10; // asm-generic/fcntl.h; not in the libc crate
    let fd = file.as_raw_fd();
    // SAFETY: fcntl(2) with numbers alone. The default signal for a broken lease, SIGIO, would end this
    // process; SIGURG is ignored by default.
    let lease = unsafe {
        libc::fcntl(fd, F_SETSIG, libc::SIGURG);
        libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK)
    };
    if lease == 0 {
        // SAFETY: as above.
        unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) };
        return Some(false);
    }
    (io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN)).then_some(true)
}

/// Returns whether mincore(2) tells the truth about the file: it does for the owner, for users who may
/// write, and with `CAP_FOWNER`; for all others every page seems to be in memory.
pub fn sees_cache(file: &File) -> bool {
    let user = nix::unistd::geteuid();
    file.metadata().is_ok_and(|m| m.uid() == user.as_raw())
        || nix::unistd::eaccess(&own_path(file), nix::unistd::AccessFlags::W_OK).is_ok()
        || Process::OWN.read("status").is_ok_and(|status| has_fowner(&status))
}

/// Returns whether `CapEff`, a line of `/proc/PID/status`, has `CAP_FOWNER`.
fn has_fowner(status: &[u8]) -> bool {
    const CAP_FOWNER: u32 = 3; // linux/capability.h
    let text = text_to_parse(status);
    let line = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    set.is_some_and(|set| set >> CAP_FOWNER & 1 != 0)
}

/// Returns a path that leads to the open file itself.
fn own_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Returns whether a file lies in memory alone, where it takes memory that cannot be given back.
pub fn is_memory(file: &File) -> bool {
    let Ok(stat) = nix::sys::statfs::fstatfs(file.as_fd()) else { return false };
    [nix::sys::statfs::TMPFS_MAGIC, nix::sys::statfs::HUGETLBFS_MAGIC].contains(&stat.filesystem_type())
}

/// Returns the name of the file system that the file is on, or its magic number (statfs(2)).
pub fn file_system(file: &File) -> String {
    let Ok(stat) = nix::sys::statfs::fstatfs(file.as_fd()) else { return "unknown".to_string() };
    let magic = stat.filesystem_type().0;
    const NAMES: [(i64, &str); 17] = [
        (0xef53, "ext4"),
        (0x5846_5342, "xfs"),
        (0x9123_683e, "btrfs"),
        (0x0102_1994, "tmpfs"),
        (0x794c_7630, "overlay"),
        (0x7371_7368, "squashfs"),
        (0xe0f5_e1e2, "erofs"),
        (0xf2f5_2010, "f2fs"),
        (0x6969, "nfs"),
        (0x6573_5546, "fuse"),
        (0x0102_1997, "9p"),
        (0x2fc1_2fc1, "zfs"),
        (0xca45_1a4e, "bcachefs"),
        (0x4d44, "vfat"),
        (0x2011_bab0, "exfat"),
        (0xfe53_4d42, "smb2"),
        (0x8584_58f6, "ramfs"),
    ];
    #[allow(clippy::unnecessary_cast)] // its type differs by architecture
    let magic = magic as i64 & 0xffff_ffff;
    let known = NAMES.iter().find(|(number, _)| *number == magic);
    known.map_or_else(|| format!("file system {magic:#x}"), |(_, name)| (*name).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_bits() {
        assert!(has_fowner(b"Name:\tx\nCapEff:\t0000000000000008\n"));
        assert!(has_fowner(b"CapEff:\t000001ffffffffff\n"));
        assert!(!has_fowner(b"CapEff:\t0000000000000007\nCapBnd:\t0000000000000008\n"));
        assert!(!has_fowner(b"CapEff:\tx\n\xff"));
    }

    #[test]
    fn who_writes_is_seen() {
        let dir = std::env::temp_dir().join(format!("hugelift-lease-{}", std::process::id()));
        let writer = File::create(&dir).unwrap();
        let reader = File::open(&dir).unwrap();
        assert_ne!(open_for_writing(&reader), Some(false));
        drop(writer);
        // Another test may just be forking.
        let free = (0..100).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            open_for_writing(&reader) != Some(true)
        });
        assert!(free);
        assert!(sees_cache(&reader));
        std::fs::remove_file(&dir).unwrap();
    }
}
