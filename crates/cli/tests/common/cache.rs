// SPDX-License-Identifier: Apache-2.0
//! Copies of programs whose page cache is in huge folios.

use super::run::shown;
use hugelift_core::smaps::Usage;
use hugelift_linux::proc::procfs::Process;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

const HUGE: usize = 2 << 20;

/// A copy of a program that no other test uses, with its page cache in folios of the wanted size.
/// Removed when dropped.
pub struct Primed {
    dir: tempfile::TempDir,
    path: PathBuf,
}

impl Primed {
    /// Copies `program` and brings the copy's page cache into huge folios.
    ///
    /// # Errors
    /// Fails if too few bytes get into huge folios: the file system of the build directory has no
    /// large folios.
    pub fn new(program: &Path) -> Result<Primed, String> {
        let primed = Primed::copy(program);
        let whole = std::fs::metadata(&primed.path).expect("stat").len() / HUGE as u64 * HUGE as u64;
        // Memory may be fragmented for a moment, so there are more tries. Each reads the file anew, so the first good one is the
        // last.
        let mut huge = 0;
        for _ in 0..10 {
            huge = prime(&primed.path);
            if huge * 10 >= whole * 9 {
                return Ok(primed);
            }
            join_memory();
        }
        Err(format!("{huge} of {whole} bytes of {} are in huge folios", primed.path.display()))
    }

    /// Copies `program` and brings the copy's page cache into small folios, even where sequential
    /// reads would give large ones.
    pub fn small(program: &Path) -> Primed {
        let copy = Primed::copy(program);
        let file = dropped(&copy.path);
        // SAFETY: posix_fadvise(2) of our own descriptor touches no memory.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
        let len = file.metadata().expect("stat").len();
        for at in (0..len).step_by(4096) {
            std::os::unix::fs::FileExt::read_at(&file, &mut [0], at).expect("read");
        }
        copy
    }

    fn copy(program: &Path) -> Primed {
        let dir = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory");
        use std::os::unix::fs::PermissionsExt;
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open).expect("chmod");
        let path = dir.path().join(program.file_name().expect("a file name"));
        copy(program, &path);
        Primed { dir, path }
    }

    /// Returns the path of the copy.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the directory that holds only the copy.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

/// Makes the kernel join free memory to huge pages (sysctl vm.compact_memory). Only root may.
pub fn join_memory() {
    let _ = std::fs::write("/proc/sys/vm/compact_memory", "1");
}

/// Copies a program with cp(1), and not here: a child that another test starts meanwhile would inherit the descriptor, and a
/// file that is open for writing cannot be executed, nor can its page cache be huge.
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    super::build::must(std::process::Command::new("cp").arg(from.as_ref()).arg(to.as_ref()));
}

/// Writes a script that is executed, by another process for the same reason as in [`copy`].
pub fn write_script(path: &Path, text: &str) {
    const WRITE: &str = "printf %s \"$2\" > \"$1\" && chmod 755 \"$1\"";
    super::build::must(std::process::Command::new("sh").args(["-c", WRITE, "sh"]).arg(path).arg(text));
}

/// Drops a file from the page cache, and returns it.
pub fn dropped(path: &Path) -> File {
    let file = File::open(path).expect("open");
    file.sync_all().expect("fsync");
    // SAFETY: posix_fadvise(2) of our own descriptor touches no memory.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    file
}

/// Reads a file anew into huge folios, and returns how many of its bytes are in huge folios.
fn prime(path: &Path) -> u64 {
    let file = dropped(path);
    let len = file.metadata().expect("stat").len() as usize;
    let room = NonZeroUsize::new(len + HUGE).expect("not empty");
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_ANONYMOUS | MapFlags::MAP_NORESERVE;
    // SAFETY: mmap(2) at an address of the kernel's choice, then over a part of that; read alone.
    unsafe {
        let base = nix::sys::mman::mmap_anonymous(None, room, ProtFlags::PROT_NONE, flags).expect("mmap");
        let at = NonZeroUsize::new((base.as_ptr() as usize).next_multiple_of(HUGE));
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
        let length = NonZeroUsize::new(len).expect("not empty");
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED;
        let image = mmap(at, length, prot, flags, &file, 0).expect("mmap");
        madvise(image, len, MmapAdvise::MADV_HUGEPAGE).expect("MADV_HUGEPAGE");
        for offset in (0..len).step_by(4096) {
            image.as_ptr().cast::<u8>().add(offset).read_volatile();
        }
        let usage = Process::OWN.smaps().expect("smaps");
        let own = usage.iter().find(|u| u.mapping.range.start.0 == image.as_ptr() as u64);
        let huge = own.map_or(0, |u| u.file_huge);
        munmap(base, room.get()).expect("munmap");
        huge
    }
}

/// Returns the mappings of `program` in process `pid` that hold its code.
pub fn text_of(pid: u32, program: &Path) -> Vec<Usage> {
    let all = super::huge::smaps(pid).into_iter();
    let text: Vec<Usage> = all.filter(|u| u.mapping.path == program && u.mapping.prot.exec).collect();
    assert!(!text.is_empty(), "{} has no code in {pid}", shown(&[program.into()]));
    text
}
