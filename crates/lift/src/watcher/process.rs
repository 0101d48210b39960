// SPDX-License-Identifier: Apache-2.0
//! The process that watches a running program: the helper, after it has detached from the program. It
//! traces nothing but for a lift, the program never waits for it, and it ends with the program, or with the last
//! process that the program has left behind.

use crate::launch::descriptors::close_all_but;
use hugelift_core::addr::Range;
use hugelift_linux::proc::memory::MADV_COLLAPSE;
use hugelift_linux::proc::pagemap;
use hugelift_linux::proc::pidfd::{is_later_thread, pidfd_open, process_madvise};
use hugelift_linux::proc::procfs::Process;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// How long the watcher does nothing after the end of its program. The end has woken the program's parent too,
/// perhaps on the same CPU, and that one must not wait for the watcher's last work.
const LAST: Duration = Duration::from_millis(2);

/// The watched program.
#[derive(Debug)]
pub struct Program {
    /// The process id. Once the program has ended, it may be another process's.
    pub pid: u32,
    process: OwnedFd,
    /// The pagemap of its memory. Nothing can be read after the program's execve(2).
    pub pagemap: File,
}

/// Why the pages of a program cannot be collapsed from outside.
#[derive(Debug)]
pub(crate) enum NoCollapse {
    /// EPERM: CAP_SYS_NICE is missing. EACCES: it is another user's process.
    Denied(io::Error),
    /// The kernel does not know the call, or not this advice.
    Unknown(io::Error),
    /// The program has ended.
    Gone,
}

/// A task that the watcher does at intervals.
pub trait Watch {
    /// Returns the descriptors that it needs.
    fn descriptors(&self) -> Vec<RawFd>;
    /// Returns the time from the start to the first [`Watch::tick`].
    fn first_delay(&self) -> Duration;
    /// Does the task once; returns the time until the next tick, `None` if there is none.
    fn tick(&mut self, program: &Program) -> Option<Duration>;
    /// Is called when the program has ended before the next tick. Returns the time until the next tick, if the
    /// task goes on without the program.
    fn ended(&mut self, program: &Program) -> Option<Duration>;
    /// Waits for `time` at most, once the program has ended. Returns whether the next tick is due before that.
    fn rest(&mut self, time: Duration) -> bool {
        std::thread::sleep(time);
        false
    }
}

/// A program and the tasks that watch it.
pub struct Watcher {
    program: Program,
    tasks: Vec<Box<dyn Watch>>,
}

impl Program {
    /// Opens the process `pid`, which is stopped: later it may have become another user's.
    ///
    /// # Errors
    /// pidfd_open(2); the pagemap cannot be read.
    pub fn open(pid: u32) -> io::Result<Program> {
        let process = pidfd_open(pid)?;
        Ok(Program { pid, process, pagemap: pagemap::open(pid.cast_signed())? })
    }

    /// Waits for `time` at most; returns whether the program has ended.
    ///
    /// # Errors
    /// poll(2) fails. It will fail again: a caller that retries would use all of a CPU.
    pub fn ends_within(&self, time: Duration) -> io::Result<bool> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // Rounded up, so that the rest of a millisecond is not spent in this loop.
            let millis = i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
            let mut fds = [PollFd::new(self.process.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)) {
                Ok(0) if millis == 0 => return Ok(false),
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Tries on no memory whether the program's pages can be collapsed from outside (`MADV_COLLAPSE`).
    ///
    /// # Errors
    /// [`NoCollapse`]
    pub(crate) fn may_collapse(&self) -> Result<(), NoCollapse> {
        match self.advise(None, MADV_COLLAPSE) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(NoCollapse::Denied(error)),
            Err(error) => Err(match error.raw_os_error() {
                Some(libc::ESRCH) => NoCollapse::Gone,
                _ => NoCollapse::Unknown(error),
            }),
        }
    }

    /// Makes an madvise(2) of `range` in the program ([`process_madvise`]).
    ///
    /// # Errors
    /// process_madvise(2). Permission is denied also if its first thread has ended and others run: the kernel finds a process by
    /// its first thread alone, so that one of these has to be borrowed.
    pub(crate) fn advise(&self, range: Option<Range>, advice: i32) -> io::Result<u64> {
        process_madvise(&self.process, range, advice).map_err(|error| match error.raw_os_error() {
            Some(libc::ESRCH) if self.has_lost_its_first_thread() => io::Error::new(
                io::ErrorKind::PermissionDenied,
                "its first thread has ended, and the kernel finds a process by that one alone",
            ),
            _ => error,
        })
    }

    fn has_lost_its_first_thread(&self) -> bool {
        is_later_thread(self.pid) || Process::new(self.pid).with_memory().pid() != self.pid
    }
}

impl Watcher {
    /// Returns a watcher of `program` without tasks.
    pub fn new(program: Program) -> Watcher {
        Watcher { program, tasks: Vec::new() }
    }

    /// Adds a task.
    pub fn add(&mut self, task: impl Watch + 'static) {
        self.tasks.push(Box::new(task));
    }

    /// Returns whether there is no task.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Does the tasks until none has another tick. The calling process does nothing else: all its other files
    /// are closed.
    pub fn stay(self) {
        let Watcher { program, tasks } = self;
        let mut keep = vec![program.process.as_raw_fd(), program.pagemap.as_raw_fd()];
        keep.extend(tasks.iter().flat_map(|task| task.descriptors()));
        if tracing::enabled!(tracing::Level::DEBUG) {
            keep.push(libc::STDERR_FILENO);
        }
        close_all_but(&keep);
        occupy_standard_files();
        leave_real_time();
        name_own_process(&format!("hugelift: watches process {}", program.pid));
        // The watcher must not keep the file system of the current folder from being unmounted.
        let _ = std::env::set_current_dir("/");
        let now = Instant::now();
        let mut due: Vec<_> = tasks.into_iter().map(|task| (now + task.first_delay(), task)).collect();
        let mut has_ended = false;
        while let Some(next) = due.iter().map(|(when, _)| *when).min() {
            let left = next.saturating_duration_since(Instant::now());
            if has_ended
                && let Some((when, task)) = due.iter_mut().min_by_key(|(when, _)| *when)
                && task.rest(left)
            {
                *when = Instant::now();
            }
            match if has_ended { Ok(false) } else { program.ends_within(left) } {
                Ok(false) => {}
                Ok(true) => {
                    has_ended = true;
                    std::thread::sleep(LAST);
                    due.retain_mut(|(when, task)| {
                        let delay = task.ended(&program);
                        *when = Instant::now() + delay.unwrap_or_default();
                        delay.is_some()
                    });
                    continue;
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot wait for the program's end: the watcher ends");
                    return;
                }
            }
            due.retain_mut(|(when, task)| {
                if *when > Instant::now() {
                    return true;
                }
                let delay = task.tick(&program);
                *when = Instant::now() + delay.unwrap_or_default();
                delay.is_some()
            });
        }
    }
}

/// Opens /dev/null in the place of the standard files that are closed: else a file of the store could be taken for
/// stderr.
fn occupy_standard_files() {
    // open(2) returns the lowest descriptor that is free.
    while let Ok(file) = File::options().read(true).write(true).open("/dev/null") {
        if file.as_raw_fd() > libc::STDERR_FILENO {
            return;
        }
        let _ = file.into_raw_fd();
    }
}

/// Leaves a real-time scheduling policy, which this process has from its launcher: copies may take a tenth of a
/// second.
fn leave_real_time() {
    // SAFETY: sched_getscheduler(2) and sched_setscheduler(2) of the calling thread; the parameter lives through
    // the call.
    unsafe {
        if libc::syscall(libc::SYS_sched_getscheduler, 0) != libc::c_long::from(libc::SCHED_OTHER) {
            // struct sched_param of the kernel.
            let priority: libc::c_int = 0;
            libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_OTHER, &raw const priority);
        }
    }
}

/// Sets the command line that ps(1) shows of the calling process. The process has the launcher's arguments, so a search for the
/// program's command line would find two processes.
fn name_own_process(title: &str) {
    let Ok(Some(addresses)) = Process::OWN.stat().map(|stat| stat.addresses) else { return };
    let len = addresses.arg_end.saturating_sub(addresses.arg_start) as usize;
    let mut text = vec![0; len];
    // The last byte stays zero.
    let shown = title.len().min(len.saturating_sub(1));
    text[..shown].copy_from_slice(&title.as_bytes()[..shown]);
    let target = std::ptr::without_provenance_mut::<u8>(addresses.arg_start as usize);
    // SAFETY: the kernel has put the arguments of this process there, `len` bytes on its stack, which are
    // writable. They have been copied, and nothing refers to them any more.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), target, len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes poll(2) fail with EPERM in the calling thread.
    fn forbid_poll() {
        let op = |code: u32, k: u32, jf| libc::sock_filter { code: code as u16, jt: 0, jf, k };
        #[cfg(target_arch = "x86_64")]
        let number = libc::SYS_poll as u32;
        #[cfg(not(target_arch = "x86_64"))]
        let number = libc::SYS_ppoll as u32;
        let mut filter = [
            op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
            op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number, 1),
            op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned(), 0),
            op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: prctl(2) reads the filter, which lives through the call; it binds this thread alone.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
        }
    }

    /// The call used to be repeated for ever, with all of a CPU.
    #[test]
    fn a_wait_that_is_refused_ends() {
        let program = Program::open(std::process::id()).unwrap();
        assert!(!program.ends_within(Duration::from_millis(1)).unwrap());
        let waits = std::thread::spawn(move || {
            forbid_poll();
            program.ends_within(Duration::from_secs(3600))
        });
        let until = Instant::now() + Duration::from_secs(60);
        while !waits.is_finished() {
            assert!(Instant::now() < until, "it still waits");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(waits.join().unwrap().unwrap_err().raw_os_error(), Some(libc::EPERM));
    }
}
