// SPDX-License-Identifier: Apache-2.0
//! Lets glibc's loader map and relocate a file in a sandbox, and shows its memory.
//!
//! With `LD_TRACE_LOADED_OBJECTS` and `LD_WARN` (what `ldd -r` sets) glibc's loader loads an object and all
//! that it needs, relocates everything, and exits. No constructor runs, and no resolver of an indirect
//! function either: the loader asks for `__RTLD_NOIFUNC`. The process is traced and stopped at its exit.
//!
//! A crafted file can make its loader run code of the file (glibc does not count that as a defect of ld.so). So the process has no rights: it is nobody if the caller is root, gets no new privileges, inherits
//! no descriptor, and a seccomp filter leaves it the calls of a loader: it cannot write files, make sockets or
//! start processes. If the caller is not root, it can read what the caller can read, but it has no way to hand
//! that on.

use hugelift_core::addr::{Addr, Range};
use hugelift_core::maps::Mapping;
use nix::errno::Errno;
use nix::sys::ptrace::{self, Event, Options};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::loader::NOBODY;
use hugelift_linux::io::open::ACCESS;
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::proc::{memory, pagemap};

/// `CLOSE_RANGE_CLOEXEC` (linux/close_range.h)
const CLOSE_RANGE_CLOEXEC: libc::c_uint = 1 << 2;
/// Bits of an entry of pagemap (Documentation/admin-guide/mm/pagemap.rst): the page is in memory, it is in swap.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
/// How long a loader may take. The largest programs take a second.
const PATIENCE: Duration = Duration::from_secs(30);
/// Address space for the loader, all that the file needs, and what both reserve. The file's own comes on top.
const ADDRESS_SPACE: u64 = 4 << 30;
/// Processor time in seconds.
const CPU_SECONDS: u64 = 20;

/// A process whose loader has done its work. It is killed when this is dropped.
pub struct Relocated {
    child: Child,
    /// Only the thread that started it is its tracer.
    _thread: PhantomData<*const ()>,
    /// Its mappings.
    pub maps: Vec<Mapping>,
}

impl Drop for Relocated {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

impl Relocated {
    /// Returns the process.
    pub fn pid(&self) -> Pid {
        pid(&self.child)
    }

    /// Reads `size` bytes of its memory at `addr`.
    ///
    /// # Errors
    /// errno(3), or that the memory ends before.
    pub fn read(&self, addr: u64, size: u64) -> io::Result<Vec<u8>> {
        let size = usize::try_from(size).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let mut bytes = vec![0; size];
        match memory::read(self.pid().as_raw(), Addr(addr), &mut bytes)? {
            read if read == size => Ok(bytes),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Returns whether any page of `range` is in memory or swap.
    ///
    /// # Errors
    /// errno(3)
    pub fn touched(&self, range: Range) -> io::Result<bool> {
        let entries = pagemap::entries(&pagemap::open(self.pid().as_raw())?, range)?;
        Ok(entries.iter().any(|entry| entry & (PRESENT | SWAPPED) != 0))
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

/// Kills our own child and waits for its end.
fn end(child: &mut Child) {
    let killed = child.kill();
    // A process that is stopped at its exit does not wake up for SIGKILL.
    let _ = ptrace::cont(pid(child), None);
    let _ = killed.and_then(|()| child.wait());
}

/// Why no loader has relocated a file.
#[derive(Debug, thiserror::Error)]
pub enum NotRelocated {
    /// The process in the sandbox may not read it.
    #[error("the user nobody, who is to load it, cannot read {0}")]
    Unreadable(&'static str),
    /// Another reason, in words.
    #[error("{0}")]
    Other(String),
}

impl From<String> for NotRelocated {
    fn from(why: String) -> NotRelocated {
        NotRelocated::Other(why)
    }
}

/// Lets `loader` load and relocate `file`, which takes `size` bytes of memory, with `folders` searched for what
/// it needs.
///
/// # Errors
/// [`NotRelocated`]
pub fn relocate(loader: &Path, file: &File, size: u64, folders: &OsStr) -> Result<Relocated, NotRelocated> {
    let filter = filter();
    let fd = file.as_raw_fd();
    let path = CString::new(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    let space = size.saturating_mul(2).saturating_add(ADDRESS_SPACE);
    let mut command = Command::new(loader);
    // By its descriptor: nobody may be unable to reach its folder, and another file may get its name.
    command.arg(format!("/proc/self/fd/{fd}")).env_clear().current_dir("/");
    command.envs([("LD_TRACE_LOADED_OBJECTS", "1"), ("LD_WARN", "yes"), ("LD_BIND_NOW", "yes")]);
    if !folders.is_empty() {
        command.env("LD_LIBRARY_PATH", folders);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if nix::unistd::geteuid().is_root() {
        // With `uid`, Rust also drops the supplementary groups.
        command.gid(NOBODY).uid(NOBODY);
    }
    // SAFETY: between fork and exec the closure makes system calls, and allocates nothing.
    unsafe { command.pre_exec(move || confine(&filter, Some((fd, &path)), space)) };
    let mut child = command.spawn().map_err(not_started)?;
    // It has not run yet: it stops at its start. If memory runs out, it is the one to be killed. Where that cannot
    // be said, its limits must do.
    if let Err(error) = std::fs::write(format!("/proc/{}/oom_score_adj", child.id()), "1000") {
        tracing::debug!(%error, "oom_score_adj");
    }
    match until_exit(pid(&child)) {
        Ok(()) => {}
        Err(why) => {
            end(&mut child);
            return Err(why.into());
        }
    }
    let maps = Process::new(child.id()).maps();
    let mut relocated = Relocated { child, _thread: PhantomData, maps: Vec::new() };
    relocated.maps = maps.map_err(|e| format!("its mappings cannot be read: {e}"))?;
    Ok(relocated)
}

/// What [`confine`] does, in the words of messages.
const STEPS: [&str; 8] = [
    "close_range(2)",
    "setsid(2)",
    "prctl(2) with PR_SET_PDEATHSIG",
    "prctl(2) with PR_SET_NO_NEW_PRIVS",
    "setrlimit(2)",
    "ptrace(2) with PTRACE_TRACEME",
    "prctl(2) with PR_SET_SECCOMP",
    "open(2) of the file",
];

/// The number of the last one.
const OPEN: usize = STEPS.len() - 1;

/// The bits of an error number; those above say which of [`STEPS`] failed. Only a number comes through Rust's
/// pipe from the child.
const ERRNO_BITS: i32 = 16;

fn at_step(step: i32, errno: nix::Error) -> io::Error {
    io::Error::from_raw_os_error((step + 1) << ERRNO_BITS | errno as i32)
}

fn not_started(error: io::Error) -> NotRelocated {
    let code = error.raw_os_error().unwrap_or(0);
    let step = usize::try_from((code >> ERRNO_BITS) - 1).ok();
    let errno = io::Error::from_raw_os_error(code & ((1 << ERRNO_BITS) - 1));
    match step.and_then(|step| STEPS.get(step)) {
        Some(_) if step == Some(OPEN) => NotRelocated::Unreadable("the file"),
        Some(step) => format!("the loader cannot be run without rights: {step}: {errno}").into(),
        None => format!("the loader cannot be started: {error}").into(),
    }
}

/// Takes all rights from the process, leaves it the open `file`, which it must be able to open again by its path, and
/// `space` bytes of addresses, and lets its parent trace it.
fn confine(filter: &[libc::sock_filter], file: Option<(RawFd, &CStr)>, space: u64) -> io::Result<()> {
    // They are closed by exec, so that Rust can still tell its parent of an error. What the loader has then cannot
    // be written to: no data of this process leaves it.
    // SAFETY: close_range(2) with numbers alone.
    let rc = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, CLOSE_RANGE_CLOEXEC) };
    // SAFETY: fcntl(2) with numbers alone, in a process of its own.
    let kept = |fd| unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } == 0;
    if rc != 0 || !file.is_none_or(|(fd, _)| kept(fd)) {
        return Err(at_step(0, nix::Error::last()));
    }
    if let Some((_, path)) = file {
        // SAFETY: open(2) of a path that ends in NUL; exec closes the descriptor.
        let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
        Errno::result(fd).map_err(|e| at_step(OPEN as i32, e))?;
    }
    // A process in our session could type into our terminal (TIOCSTI).
    nix::unistd::setsid().map_err(|e| at_step(1, e))?;
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(|e| at_step(2, e))?;
    nix::sys::prctl::set_no_new_privs().map_err(|e| at_step(3, e))?;
    // Containers may refuse this. Random addresses are compared as well.
    let _ = nix::sys::personality::set(nix::sys::personality::Persona::ADDR_NO_RANDOMIZE);
    for (resource, most) in [
        (Resource::RLIMIT_AS, space),
        (Resource::RLIMIT_CPU, CPU_SECONDS),
        (Resource::RLIMIT_FSIZE, 0),
        (Resource::RLIMIT_CORE, 0),
    ] {
        // Only root may raise what the caller has.
        let set =
            getrlimit(resource).and_then(|(_, hard)| setrlimit(resource, most.min(hard), most.min(hard)));
        set.map_err(|e| at_step(4, e))?;
    }
    ptrace::traceme().map_err(|e| at_step(5, e))?;
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: prctl(2) reads the filter, which lives through the call.
    let rc = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    if rc == 0 { Ok(()) } else { Err(at_step(6, nix::Error::last())) }
}

/// Lets the traced process run until it is about to exit with status 0.
fn until_exit(pid: Pid) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    let failed = |e: nix::Error| format!("the loader cannot be traced: {e}");
    let mut started = false;
    loop {
        let status = waitpid(pid, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL)).map_err(failed)?;
        match status {
            WaitStatus::StillAlive if Instant::now() > deadline => {
                return Err("the loader does not end".into());
            }
            WaitStatus::StillAlive => std::thread::sleep(Duration::from_micros(200)),
            // The stop at the exec of the loader.
            WaitStatus::Stopped(_, Signal::SIGTRAP) if !started => {
                started = true;
                let options = Options::PTRACE_O_EXITKILL
                    | Options::PTRACE_O_TRACEEXIT
                    | Options::PTRACE_O_TRACEEXEC
                    | Options::PTRACE_O_TRACEFORK
                    | Options::PTRACE_O_TRACEVFORK
                    | Options::PTRACE_O_TRACECLONE;
                ptrace::setoptions(pid, options).map_err(failed)?;
                ptrace::cont(pid, None).map_err(failed)?;
            }
            WaitStatus::PtraceEvent(_, _, event) if event == Event::PTRACE_EVENT_EXIT as i32 => {
                // The status as wait(2) would return it.
                let status = ptrace::getevent(pid).map_err(failed)?;
                return match status {
                    0 => Ok(()),
                    other if other & 0x7f == 0 => Err(format!("the loader exits with status {}", other >> 8)),
                    other => Err(format!("the loader is ended by signal {}", other & 0x7f)),
                };
            }
            WaitStatus::PtraceEvent(..) => return Err("the loader starts another program".into()),
            WaitStatus::Stopped(_, signal) => ptrace::cont(pid, signal).map_err(failed)?,
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return Err("the loader vanished".into()),
            _ => ptrace::cont(pid, None).map_err(failed)?,
        }
    }
}

/// `AUDIT_ARCH_X86_64` and `AUDIT_ARCH_AARCH64` (linux/audit.h).
#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;

/// The calls of a loader, and execve(2), by which it starts; the tracer ends a process that starts another
/// program.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_execve,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_faccessat,
    libc::SYS_readlinkat,
    libc::SYS_getcwd,
    libc::SYS_uname,
    libc::SYS_getrandom,
    libc::SYS_set_tid_address,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_futex,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_exit,
    libc::SYS_exit_group,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_arch_prctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
];

/// Returns the filter: it allows [`ALLOWED`], openat(2) for reading, and prlimit(2) to read the process's own
/// limits. Everything else is EPERM.
fn filter() -> Vec<libc::sock_filter> {
    let op = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let (load, ret) = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_RET | libc::BPF_K);
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
    // struct seccomp_data: the number at 0, the architecture at 4, the arguments of 8 bytes at 16.
    let mut all = vec![
        op(load, 4, 0, 0),
        op(equal, AUDIT_ARCH, 1, 0),
        op(ret, libc::SECCOMP_RET_KILL_PROCESS, 0, 0),
        op(load, 0, 0, 0),
    ];
    for number in ALLOWED {
        all.push(op(equal, *number as u32, 0, 1));
        all.push(op(ret, libc::SECCOMP_RET_ALLOW, 0, 0));
    }
    // Arguments are 64 bits wide. The process number, the first, is an int; the new limits, the third, a pointer.
    all.extend([
        op(equal, libc::SYS_prlimit64 as u32, 0, 8),
        op(load, 16, 0, 0),
        op(equal, 0, 0, 5),
        op(load, 32, 0, 0),
        op(equal, 0, 0, 3),
        op(load, 36, 0, 0),
        op(equal, 0, 0, 1),
        op(ret, libc::SECCOMP_RET_ALLOW, 0, 0),
        op(ret, refuse, 0, 0),
    ]);
    let writes = ACCESS | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND;
    all.extend([
        op(equal, libc::SYS_openat as u32, 1, 0),
        op(ret, refuse, 0, 0),
        op(load, 32, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, writes.cast_unsigned(), 1, 0),
        op(ret, libc::SECCOMP_RET_ALLOW, 0, 0),
        op(ret, refuse, 0, 0),
    ]);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sandbox is left by nothing: a program in it that tries is refused or ended.
    #[test]
    fn a_program_in_the_sandbox_cannot_write_or_start_programs() {
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        std::os::unix::fs::chown(dir.path(), Some(NOBODY), None).ok();
        let run = |words: &[&str]| {
            let filter = filter();
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).current_dir(dir.path()).stderr(Stdio::null()).stdout(Stdio::null());
            if nix::unistd::geteuid().is_root() {
                command.gid(NOBODY).uid(NOBODY);
            }
            // SAFETY: system calls alone between fork and exec.
            unsafe { command.pre_exec(move || confine(&filter, None, ADDRESS_SPACE)) };
            let mut child = command.spawn().unwrap();
            let ended = until_exit(pid(&child));
            end(&mut child);
            ended
        };
        assert_eq!(run(&["/bin/true"]), Ok(()), "what does nothing may do so");
        assert!(run(&["/bin/touch", "planted"]).is_err());
        assert!(run(&["/bin/sh", "-c", "exec /bin/true"]).unwrap_err().contains("another program"));
        assert!(run(&["/bin/sh", "-c", ": > planted"]).is_err());
        assert!(run(&["/bin/sh", "-c", "/bin/true; exit 0"]).is_err(), "no processes");
        assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none(), "nothing was written");
    }

    /// Runs `attempts` in the sandbox instead of a program, and returns what it returns.
    fn attempted(attempts: impl Fn() -> u8 + Send + Sync + 'static) -> Option<i32> {
        let filter = filter();
        let mut command = Command::new("/bin/true");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let inside = move || -> io::Result<()> {
            confine(&filter, None, ADDRESS_SPACE)?;
            // SAFETY: _exit(2) ends the process, which is a fork that runs nothing else.
            unsafe { libc::_exit(attempts().into()) }
        };
        // SAFETY: system calls alone between fork and exec.
        unsafe { command.pre_exec(inside) };
        command.spawn().unwrap().wait().unwrap().code()
    }

    #[test]
    fn no_limits_are_changed_and_none_of_other_processes_read() {
        let parent = nix::unistd::getpid().as_raw();
        let got = attempted(move || {
            // SAFETY: prlimit(2) with a limit that it reads or writes, or none.
            unsafe {
                let mut limit: libc::rlimit = std::mem::zeroed();
                let (none, kind) = (std::ptr::null_mut(), libc::RLIMIT_NOFILE);
                let read = u8::from(libc::prlimit(0, kind, none, &raw mut limit) == 0);
                let others = u8::from(libc::prlimit(parent, kind, none, &raw mut limit) == 0) << 1;
                read | others | u8::from(libc::prlimit(0, kind, &raw const limit, none) == 0) << 2
            }
        });
        assert_eq!(got, Some(0b001));
    }

    /// What the caller was started with, such as a pipe to a build server, is no business of the loader.
    #[test]
    fn the_loader_inherits_no_descriptor_that_it_could_write_to() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // SAFETY: fcntl(2) with numbers alone.
        assert_eq!(unsafe { libc::fcntl(file.as_file().as_raw_fd(), libc::F_SETFD, 0) }, 0);
        let process = loaded();
        let proc = format!("/proc/{}", process.pid());
        let mut seen = 0;
        for entry in std::fs::read_dir(format!("{proc}/fd")).unwrap() {
            let fd = entry.unwrap().file_name().into_string().unwrap();
            let path = std::fs::read_link(format!("{proc}/fd/{fd}")).unwrap();
            assert_ne!(path, file.path());
            let info = std::fs::read_to_string(format!("{proc}/fdinfo/{fd}")).unwrap();
            let flags = info.lines().find_map(|l| l.strip_prefix("flags:")).unwrap().trim();
            let flags = i32::from_str_radix(flags, 8).unwrap();
            assert!(path == Path::new("/dev/null") || flags & ACCESS == libc::O_RDONLY, "{path:?}");
            seen += 1;
        }
        assert!(seen >= 3, "{seen} descriptors");
    }

    #[test]
    fn the_kernel_ends_the_loader_before_anything_else() {
        let process = loaded();
        let read = |what: &str| std::fs::read_to_string(format!("/proc/{}/{what}", process.pid())).unwrap();
        assert_eq!(read("oom_score_adj"), "1000\n");
        let limits = read("limits");
        let most = limits.lines().find(|l| l.starts_with("Max address space")).unwrap();
        let most: u64 = most.split_whitespace().nth(3).unwrap().parse().unwrap();
        assert!(most < 8 << 30, "{most}");
    }

    fn loaded() -> Relocated {
        let program =
            hugelift_linux::elf::elf_file::ElfFile::open(&Path::new("/bin/true").canonicalize().unwrap())
                .unwrap();
        let loader = program.interp().unwrap().canonicalize().unwrap();
        relocate(&loader, program.file(), 1 << 20, OsStr::new("")).unwrap()
    }
}
