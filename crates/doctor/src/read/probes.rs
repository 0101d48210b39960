// SPDX-License-Identifier: Apache-2.0
//! Tries what this kernel does when asked for huge pages, on memory and files of hugelift's own. Each
//! trial has a child process, so that a SIGBUS or a hang ends only that.

use crate::facts::{Probes, Tried};
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::printable::{Escape, text_to_parse};
use hugelift_linux::io::entry::Entry;
use hugelift_linux::io::temporary::Temporary;
use hugelift_linux::machine::sysfs;
use hugelift_linux::proc::memory::MADV_COLLAPSE;
use hugelift_linux::proc::pagemap;
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::proc::reservation::Reservation;
use hugelift_pages::pagecache::prime::file_system;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use std::ffi::{c_long, c_void};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::ptr;

/// Seconds after which a hanging child is killed.
const PATIENCE: libc::c_uint = 20;
/// Huge pages that each trial uses.
const PAGES: usize = 2;
/// The largest huge pages that are tried: with base pages of 64 kB they have 512 MB.
pub(super) const LARGEST: u64 = 32 << 20;

/// Tries everything, with files in `folder`.
pub fn try_all(folder: &Path) -> Probes {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let huge = sysfs::thp(&read).1.map(PageSize::bytes).filter(|bytes| *bytes <= LARGEST);
    let with_thp = |probe: fn(usize) -> io::Result<Tried>| match huge {
        Some(bytes) => in_child(|| probe(bytes as usize)),
        None => Tried::unknown("no transparent huge pages of a size to try"),
    };
    let with_file = |probe: fn(usize, &File) -> io::Result<Tried>| match huge {
        Some(bytes) => match new_file(folder, bytes as usize * PAGES) {
            Ok(file) => in_child(|| probe(bytes as usize, &file)),
            Err(error) => Tried::unknown(format!("cannot make a file in {}: {error}", folder.escaped())),
        },
        None => Tried::unknown("no transparent huge pages of a size to try"),
    };
    Probes {
        folder: folder.escaped().to_string(),
        file_system: File::open(folder).map_or_else(|_| "unknown".into(), |f| file_system(&f)),
        fault: with_thp(fault),
        collapse_anonymous: with_thp(collapse_anonymous),
        collapse_shmem: with_thp(collapse_shmem),
        collapse_file: with_file(collapse_file),
        primed_file: with_file(primed_file),
        hugetlb: match Path::new(sysfs::POOLS).exists() {
            true => in_child(hugetlb),
            false => Tried::unknown("this kernel has no pools"),
        },
        ptrace: in_child(ptrace),
        counter: counter(),
    }
}

/// Runs `probe` in a child. Returns its answer, or how it ended without one.
pub(super) fn in_child(probe: impl FnOnce() -> io::Result<Tried>) -> Tried {
    let Ok((reader, writer)) = nix::unistd::pipe() else { return Tried::unknown("no pipe") };
    // SAFETY: fork(2). The child makes only system calls and calls malloc, which glibc and musl keep
    // usable after the fork of a program with threads.
    match unsafe { fork() } {
        Err(error) => Tried::unknown(format!("fork: {error}")),
        Ok(ForkResult::Child) => {
            // SAFETY: alarm(2), prctl(2) and setrlimit(2) with plain values: a child that hangs or crashes
            // ends without a core file.
            unsafe {
                libc::alarm(PATIENCE);
                libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0);
                let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
            }
            drop(reader);
            let tried = probe().unwrap_or_else(|error| Tried::no(words(&error)));
            let sign = match tried.works {
                Some(true) => b'y',
                Some(false) => b'n',
                None => b'?',
            };
            let mut answer = vec![sign];
            answer.extend(tried.detail.unwrap_or_default().into_bytes());
            let _ = File::from(writer).write_all(&answer);
            // SAFETY: _exit(2) runs no destructor of the parent in the child.
            unsafe { libc::_exit(0) }
        }
        Ok(ForkResult::Parent { child }) => {
            drop(writer);
            let mut answer = Vec::new();
            let _ = File::from(reader).read_to_end(&mut answer);
            let ended = waitpid(child, None);
            let detail = answer.get(1..).map(|d| text_to_parse(d).into_owned());
            let detail = detail.filter(|d| !d.is_empty());
            match (answer.first(), ended) {
                (Some(b'y'), _) => Tried { works: Some(true), detail },
                (Some(b'n'), _) => Tried { works: Some(false), detail },
                (None, Ok(WaitStatus::Signaled(_, signal, _))) => Tried::no(format!("{signal}")),
                _ => Tried { works: None, detail },
            }
        }
    }
}

/// Returns an error as `EINVAL, Invalid argument`.
fn words(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => {
            let errno = Errno::from_raw(number);
            format!("{errno:?}, {}", errno.desc())
        }
        None => error.to_string(),
    }
}

/// Memory of the child's own at a multiple of the huge page.
struct Area {
    _reserved: Reservation,
    start: *mut u8,
    len: usize,
}

impl Area {
    /// Maps `PAGES` huge pages by `map`.
    fn map(
        huge: usize,
        map: impl FnOnce(&mut Reservation, usize) -> io::Result<*mut u8>,
    ) -> io::Result<Area> {
        let len = huge * PAGES;
        let align = PageSize::new(huge as u64).ok_or(io::ErrorKind::InvalidInput)?;
        let mut reserved = Reservation::new(len, align)?;
        let start = map(&mut reserved, len)?;
        Ok(Area { _reserved: reserved, start, len })
    }

    fn anonymous(huge: usize) -> io::Result<Area> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        Area::map(huge, |reserved, len| reserved.map_memory(0, len, prot, libc::MAP_PRIVATE))
    }

    fn shared(huge: usize, file: &File) -> io::Result<Area> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        Area::map(huge, |reserved, len| reserved.map_file(0, len, prot, libc::MAP_SHARED, file, 0))
    }

    /// Maps a file as code or, where the file system allows no code, as data.
    fn file(huge: usize, file: &File) -> io::Result<Area> {
        let with = |prot| {
            Area::map(huge, |reserved, len| reserved.map_file(0, len, prot, libc::MAP_PRIVATE, file, 0))
        };
        with(libc::PROT_READ | libc::PROT_EXEC).or_else(|_| with(libc::PROT_READ))
    }

    fn write(&self) {
        for at in (0..self.len).step_by(4096) {
            // SAFETY: inside the mapping, which is writable.
            unsafe { self.start.add(at).write_volatile(1) };
        }
    }

    fn read(&self) {
        for at in (0..self.len).step_by(4096) {
            // SAFETY: inside the mapping, which is readable.
            unsafe { self.start.add(at).read_volatile() };
        }
    }

    fn advise(&self, advice: i32) -> io::Result<()> {
        // SAFETY: madvise(2) on our own mapping; these advices change no byte.
        let done = unsafe { libc::madvise(self.start.cast(), self.len, advice) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Whether huge entries map all of it, by pagemap or, before Linux 6.7, by smaps.
    fn is_huge(&self) -> io::Result<Tried> {
        let range = Range::sized(Addr(self.start as u64), self.len as u64).unwrap_or_default();
        Ok(match pagemap::huge_bytes_at_least(Process::OWN.pid().cast_signed(), range)? {
            bytes if bytes >= self.len as u64 => Tried::yes(),
            bytes => Tried::no(format!("{} kB of {} kB are huge", bytes >> 10, self.len >> 10)),
        })
    }
}

pub(super) fn checked(mapped: *mut c_void) -> io::Result<*mut c_void> {
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(mapped) }
}

fn fault(huge: usize) -> io::Result<Tried> {
    let area = Area::anonymous(huge)?;
    area.advise(libc::MADV_HUGEPAGE)?;
    area.write();
    area.is_huge()
}

fn collapse_anonymous(huge: usize) -> io::Result<Tried> {
    let area = Area::anonymous(huge)?;
    area.advise(libc::MADV_NOHUGEPAGE)?;
    area.write();
    area.advise(libc::MADV_HUGEPAGE)?;
    area.advise(MADV_COLLAPSE)?;
    area.is_huge()
}

fn collapse_shmem(huge: usize) -> io::Result<Tried> {
    // SAFETY: memfd_create(2) with a literal name.
    let fd = unsafe { libc::memfd_create(c"hugelift-probe".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was made just now, and nothing else owns it.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len((huge * PAGES) as u64)?;
    let area = Area::shared(huge, &file)?;
    area.write();
    area.advise(MADV_COLLAPSE)?;
    area.is_huge()
}

fn collapse_file(huge: usize, file: &File) -> io::Result<Tried> {
    let area = Area::file(huge, file)?;
    area.read();
    area.advise(MADV_COLLAPSE)?;
    area.is_huge()
}

/// Reads the file through a mapping that asks for huge pages. What a second mapping then shows is what
/// every process gets.
fn primed_file(huge: usize, file: &File) -> io::Result<Tried> {
    // SAFETY: posix_fadvise(2) on an open descriptor; the file was written back before.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    let first = Area::file(huge, file)?;
    first.advise(libc::MADV_HUGEPAGE)?;
    first.read();
    drop(first);
    let second = Area::file(huge, file)?;
    second.read();
    second.is_huge()
}

fn hugetlb() -> io::Result<Tried> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // The kernel rounds one byte up to one page of the default size.
    // SAFETY: mmap(2) at an address of the kernel's choice.
    let page = match checked(unsafe { libc::mmap(ptr::null_mut(), 1, prot, flags, -1, 0) }) {
        Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
            return Ok(Tried::no("ENOMEM, the pool has no free page"));
        }
        page => page?,
    };
    // SAFETY: the new mapping is writable; a limit ends this child by SIGBUS, which the parent
    // reports.
    unsafe { page.cast::<u8>().write_volatile(1) };
    Ok(Tried::yes())
}

fn ptrace() -> io::Result<Tried> {
    // SAFETY: fork(2); the child only waits for a signal.
    match unsafe { fork() }? {
        ForkResult::Child => loop {
            // SAFETY: prctl(2), alarm(2) and pause(2) with plain numbers. A child does not inherit the
            // alarm; this one is killed below, by its own alarm, or with its parent.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::alarm(PATIENCE);
                libc::pause();
            }
        },
        ForkResult::Parent { child } => {
            let none = ptr::null_mut::<c_void>();
            // SAFETY: ptrace(2) PTRACE_SEIZE uses neither pointer.
            let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, child.as_raw(), none, none) };
            let error = io::Error::last_os_error();
            kill(child, Signal::SIGKILL)?;
            waitpid(child, None)?;
            if seized == 0 { Ok(Tried::yes()) } else { Err(error) }
        }
    }
}

/// Opens a counter of this process's own cycles (perf_event_open(2)).
fn counter() -> Tried {
    /// The first version of `struct perf_event_attr`.
    #[derive(Default)]
    #[repr(C)]
    struct Attr {
        kind: u32,
        size: u32,
        config: u64,
        sample: u64,
        sample_type: u64,
        read_format: u64,
        flags: u64,
        rest: [u64; 2],
    }
    const DISABLED: u64 = 1;
    const EXCLUDE_KERNEL: u64 = 1 << 5;
    const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
    // PERF_TYPE_HARDWARE and PERF_COUNT_HW_CPU_CYCLES are 0.
    let attr = Attr {
        size: size_of::<Attr>() as u32,
        flags: DISABLED | EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR,
        ..Attr::default()
    };
    const CLOEXEC: c_long = 8;
    // SAFETY: perf_event_open(2) reads `attr`, which lives through the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attr,
            0 as c_long,
            -1 as c_long,
            -1 as c_long,
            CLOEXEC,
        )
    };
    if fd >= 0 {
        // SAFETY: close(2) of the descriptor just made.
        unsafe { libc::close(fd as i32) };
        return Tried::yes();
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP) => {
            Tried::no("this machine has none, like most guests; hugelift compare measures without them")
        }
        _ => Tried::no(words(&error)),
    }
}

/// Makes a file of `len` bytes that is on the disk, open for reading. It has no name, so that nothing is left if this process is
/// killed, and nobody can put another file in its place; where the file system has no such files, it has one until the end.
pub(super) fn new_file(folder: &Path, len: usize) -> io::Result<File> {
    let mut new = Temporary::beside(&Entry::find(&unused_name(folder))?, 0o600)?;
    // The bytes are not zeros, which a file system might store as a hole.
    let bytes: Vec<u8> = (0..len).map(|i| (i / 64 % 251) as u8).collect();
    new.file().write_all(&bytes)?;
    new.file().sync_all()?;
    new.close_for_writing()?;
    new.file().try_clone()
}

fn unused_name(folder: &Path) -> PathBuf {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    folder.join(format!(".hugelift-probe-{}-{number}", std::process::id()))
}
