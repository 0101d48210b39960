// SPDX-License-Identifier: Apache-2.0
//! The executables of processes, and how much code each has.
//!
//! Which file a process executes is found out without asking its file system, which may not answer. Its headers are read
//! once, if [`MappedFiles`] says that it can be read without waiting for another user's process.

use super::recent::Recent;
use crate::elf::elf_file::ElfFile;
use crate::io::open;
use crate::proc::mapped::{MappedFiles, may_not_be_read};
use crate::proc::procfs::Process;
use hugelift_core::elf::{Headers, build_id};
use hugelift_core::maps::FileId;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::sync::Arc;

/// The most files that are remembered.
const FILES: usize = 1024;

/// The file that a process executes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Executable {
    /// Its path as the process itself sees it, without the kernel's ` (deleted)`. Others may see the same file by another path.
    pub path: PathBuf,
    /// Device and inode.
    pub file: FileId,
    /// Bytes of its segments (`PT_LOAD`) that are executable; 0 if its headers cannot be read, or are of a 32-bit program.
    pub code_bytes: u64,
    /// Its build-id, in hexadecimal. For a file without one, and for one whose headers cannot be read, `file-` and the numbers
    /// that tell it from others on this machine: device, inode, size, and when it was changed.
    pub build_id: String,
}

/// What its headers say.
#[derive(Clone, Default, Debug)]
struct Said {
    code_bytes: u64,
    build_id: Option<String>,
}

/// How much code the executables have that were seen.
#[derive(Debug)]
pub(super) struct Executables(Recent<Stamp, Said>);

/// Which file it is, and in which state: an inode is used again when its file was removed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Stamp {
    device: (u32, u32),
    inode: u64,
    size: u64,
    changed: (i64, u32),
}

impl Default for Executables {
    fn default() -> Executables {
        Executables(Recent::new(FILES))
    }
}

impl Executables {
    /// Returns the executable of a process; `None` if it may not be seen, or is another one by now.
    pub(super) fn of(&mut self, process: Process) -> Option<Arc<Executable>> {
        let seen = open_link(process).ok()?;
        let stamp = Stamp::of(&seen).ok()?;
        let known = self.0.get(&stamp).cloned();
        let said = match known {
            Some(known) => known,
            None => read(process, stamp)?,
        };
        self.0.insert(stamp, said.clone());
        let Said { code_bytes, build_id } = said;
        let file = FileId { major: stamp.device.0, minor: stamp.device.1, inode: stamp.inode };
        Some(Arc::new(Executable {
            path: path_of(&seen)?,
            file,
            code_bytes,
            build_id: build_id.unwrap_or_else(|| stamp.name()),
        }))
    }
}

/// Opens the executable with `O_PATH`: nothing is done to it.
fn open_link(process: Process) -> io::Result<File> {
    open::path_only(&process.path("exe")).or_else(|error| match process.with_memory() {
        same if same == process => Err(error),
        other => open::path_only(&other.path("exe")),
    })
}

/// Reads the headers of the executable; `None` if the process executes another program by now.
fn read(process: Process, stamp: Stamp) -> Option<Said> {
    let file = match MappedFiles::of(process.with_memory()).executable() {
        Ok(file) => file,
        Err(error) if may_not_be_read(&error) || open::is_not_regular(&error) => return Some(Said::default()),
        Err(_) => return None,
    };
    if Stamp::of(&file).ok()? != stamp {
        return None;
    }
    Some(ElfFile::of_open(&file).map_or_else(
        |_| Said::default(),
        |elf| Said {
            code_bytes: code_of(&elf.headers),
            build_id: elf.headers.notes.iter().find_map(|note| build_id(&elf.read(*note)?)),
        },
    ))
}

fn code_of(headers: &Headers) -> u64 {
    let code = headers.segments.iter().filter(|segment| segment.prot.exec);
    code.fold(0, |bytes, segment| bytes.saturating_add(segment.filesz))
}

/// Returns the path that the kernel shows for an open file.
fn path_of(file: &File) -> Option<PathBuf> {
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    let shown = std::fs::read_link(open::own_path(file)).ok()?.into_os_string().into_vec();
    let path = shown.strip_suffix(b" (deleted)").unwrap_or(&shown);
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(path)))
}

impl Stamp {
    /// Returns a name for the file in this state.
    fn name(&self) -> String {
        let ((major, minor), (seconds, nanos)) = (self.device, self.changed);
        format!("file-{major}-{minor}-{}-{}-{seconds}-{nanos}", self.inode, self.size)
    }

    /// Returns what the kernel knows of a file already: a file system in user space is not asked (statx(2)).
    fn of(file: &File) -> io::Result<Stamp> {
        let mut stat = MaybeUninit::<libc::statx>::zeroed();
        let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
        let wanted = libc::STATX_INO | libc::STATX_SIZE | libc::STATX_CTIME;
        let (fd, to) = (file.as_raw_fd(), stat.as_mut_ptr());
        // SAFETY: statx(2) reads an empty name and writes to a live structure of that type.
        let done = unsafe { libc::syscall(libc::SYS_statx, fd, c"".as_ptr(), flags, wanted, to) };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: all its bytes are zero or what the kernel wrote: it has only numbers.
        let stat = unsafe { stat.assume_init() };
        Ok(Stamp {
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
            size: stat.stx_size,
            changed: (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec),
        })
    }
}
