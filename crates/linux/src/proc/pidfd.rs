// SPDX-License-Identifier: Apache-2.0
//! Processes by descriptor, which no later process with the same id can take over.

use hugelift_core::addr::Range;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Opens process `pid`, or a thread that is not the first of its process; the descriptor is closed at execve(2), and poll(2)
/// finds it readable once the process or that thread has ended.
///
/// # Errors
/// errno(3) of pidfd_open(2): ESRCH if there is no such process, ENOSYS before Linux 5.3; for a thread also before Linux 6.9.
pub fn pidfd_open(pid: u32) -> io::Result<OwnedFd> {
    const PIDFD_THREAD: libc::c_int = libc::O_EXCL;
    match open(pid, 0) {
        Err(error) if means_thread(&error) => open(pid, PIDFD_THREAD).map_err(|_| error),
        opened => opened,
    }
}

/// Returns whether `pid` is the id of a thread that is not the first of its process.
pub fn is_later_thread(pid: u32) -> bool {
    open(pid, 0).is_err_and(|error| means_thread(&error))
}

fn means_thread(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT))
}

/// Makes an madvise(2) of `range` in a process, from outside; returns the bytes that were advised. Without a range it asks whether
/// this advice may be given to it.
///
/// # Errors
/// errno(3) of process_madvise(2): EPERM, ESRCH, EINVAL if the kernel does not take this advice from outside.
pub fn process_madvise(process: &OwnedFd, range: Option<Range>, advice: libc::c_int) -> io::Result<u64> {
    let vector = range.map(|range| libc::iovec {
        iov_base: std::ptr::without_provenance_mut(range.start.0 as usize),
        iov_len: range.len() as usize,
    });
    let (pointer, count) = (vector.as_ref().map_or(std::ptr::null(), |v| v), vector.iter().len());
    let (process, advice) = (process.as_raw_fd(), libc::c_long::from(advice));
    // SAFETY: process_madvise(2) reads `count` vectors, which live through the call; the addresses in them are another
    // process's.
    let done = unsafe { libc::syscall(libc::SYS_process_madvise, process, pointer, count, advice, 0) };
    u64::try_from(done).map_err(|_| io::Error::last_os_error())
}

fn open(pid: u32, flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open(2) takes two numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(fd: &OwnedFd, millis: i32) -> bool {
        let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: poll(2) of one descriptor that lives through the call.
        unsafe { libc::poll(&raw mut poll, 1, millis) == 1 }
    }

    #[test]
    fn a_later_thread_is_told_from_the_first() {
        let later = std::thread::spawn(|| is_later_thread(nix::unistd::gettid().as_raw().cast_unsigned()));
        assert!(later.join().unwrap() && !is_later_thread(std::process::id()));
    }

    #[test]
    fn the_end_of_a_process_is_seen() {
        if pidfd_open(std::process::id()).is_err_and(|e| e.raw_os_error() == Some(libc::ENOSYS)) {
            return println!("SKIP: no pidfd_open before Linux 5.3");
        }
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let fd = pidfd_open(child.id()).unwrap();
        assert!(!is_readable(&fd, 0));
        drop(child.stdin.take());
        assert!(is_readable(&fd, 20_000));
        child.wait().unwrap();
        assert_eq!(pidfd_open(child.id()).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
