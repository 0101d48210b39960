// SPDX-License-Identifier: Apache-2.0
//! The process beside a running program: the helper once more, which has let go of it. It traces
//! nothing, the program never waits for it, and it ends with the program at the latest.

use crate::launch::close_all_but;
use crate::proc::pagemap;
use crate::proc::pidfd::pidfd_open;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// A program, as it is known from beside.
#[derive(Debug)]
pub struct Program {
    /// Its process id. It may be another's once the program has ended.
    pub pid: u32,
    process: OwnedFd,
    /// Of the memory that it has now: gone after its execve(2).
    pub pagemap: File,
}

/// Who looks at the program from time to time.
pub trait Watch {
    /// Files that it needs.
    fn descriptors(&self) -> Vec<RawFd>;
    /// How long after the start it looks first.
    fn first(&self) -> Duration;
    /// Looks; how long until it looks again, if it does.
    fn look(&mut self, program: &Program) -> Option<Duration>;
    /// The program has ended, and there was to be another look.
    fn ended(&mut self, program: &Program);
}

/// Those who stay beside a program.
pub struct Watcher {
    program: Program,
    watches: Vec<Box<dyn Watch>>,
}

impl Program {
    /// The process `pid`, which is stopped: later it may have become another user's.
    ///
    /// # Errors
    /// pidfd_open(2); the pagemap cannot be read.
    pub fn open(pid: u32) -> io::Result<Program> {
        let process = pidfd_open(pid)?;
        Ok(Program { pid, process, pagemap: pagemap::open(pid.cast_signed())? })
    }

    /// Waits for `time` at most; whether the program has ended.
    ///
    /// # Errors
    /// poll(2): nothing can be waited for, so that a caller which only tried again would use all of
    /// a CPU.
    pub fn ends_within(&self, time: Duration) -> io::Result<bool> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // Rounded up: what is left of a millisecond is not spent in a loop.
            let millis = i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
            let mut poll = libc::pollfd { fd: self.process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: poll(2) of one descriptor that lives through the call.
            match unsafe { libc::poll(&raw mut poll, 1, millis) } {
                0 if millis == 0 => return Ok(false),
                0 => {}
                n if n > 0 => return Ok(true),
                _ => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Whether nobody has waited for its end yet.
    pub fn is_there(&self) -> bool {
        let null = std::ptr::null::<u8>();
        // SAFETY: pidfd_send_signal(2): signal 0 is none, and a null siginfo is allowed.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.process.as_raw_fd(), 0, null, 0) == 0 }
    }

    /// madvise(2) of `range` in the program, from outside; the bytes that took it.
    ///
    /// # Errors
    /// process_madvise(2)
    pub(crate) fn advise(&self, range: Option<hugelift_core::addr::Range>, advice: i32) -> io::Result<u64> {
        let vector = range.map(|range| libc::iovec {
            iov_base: std::ptr::without_provenance_mut(range.start.0 as usize),
            iov_len: range.len() as usize,
        });
        let (pointer, count) = (vector.as_ref().map_or(std::ptr::null(), |v| v), vector.iter().len());
        // SAFETY: process_madvise(2) reads `count` vectors, which live through the call; the addresses in
        // them are another process's.
        let done = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                self.process.as_raw_fd(),
                pointer,
                count,
                libc::c_long::from(advice),
                0,
            )
        };
        u64::try_from(done).map_err(|_| io::Error::last_os_error())
    }
}

impl Watcher {
    /// Nobody yet, beside `program`.
    pub fn new(program: Program) -> Watcher {
        Watcher { program, watches: Vec::new() }
    }

    /// One more.
    pub fn add(&mut self, watch: impl Watch + 'static) {
        self.watches.push(Box::new(watch));
    }

    /// Whether there is anybody.
    pub fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    /// Stays until the program ends, or nobody looks any more. All other files of the calling process
    /// are closed, and it is a process of its own.
    pub fn stay(self) {
        let Watcher { program, watches } = self;
        let mut keep = vec![program.process.as_raw_fd(), program.pagemap.as_raw_fd()];
        keep.extend(watches.iter().flat_map(|watch| watch.descriptors()));
        close_all_but(&keep);
        // It holds no file system in use.
        let _ = std::env::set_current_dir("/");
        let now = Instant::now();
        let mut due: Vec<_> = watches.into_iter().map(|watch| (now + watch.first(), watch)).collect();
        while let Some(next) = due.iter().map(|(when, _)| *when).min() {
            match program.ends_within(next.saturating_duration_since(Instant::now())) {
                Ok(false) => {}
                Ok(true) => return due.iter_mut().for_each(|(_, watch)| watch.ended(&program)),
                Err(error) => {
                    tracing::debug!(%error, "the program's end cannot be waited for: nobody stays");
                    return;
                }
            }
            due.retain_mut(|(when, watch)| {
                if *when > Instant::now() {
                    return true;
                }
                let delay = watch.look(&program);
                *when = Instant::now() + delay.unwrap_or_default();
                delay.is_some()
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has poll(2) fail with EPERM in the calling thread.
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

    /// It used to be tried again for ever, with all of a CPU.
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
            assert!(Instant::now() < until, "it waits still");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(waits.join().unwrap().unwrap_err().raw_os_error(), Some(libc::EPERM));
    }
}
