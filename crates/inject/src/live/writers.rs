// SPDX-License-Identifier: Apache-2.0
//! Finds who else writes to the memory of a process, besides its threads: processes that share it, and the kernel and
//! devices to which it has handed memory. They write on while all its threads are stopped.

use hugelift_linux::proc::loadavg::LoadAvg;
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::proc::shared_memory::shares_memory;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

/// Files whose descriptor or mapping lets the kernel or a device write to memory later, without a thread: the
/// beginning of their names, and what they are.
const LATER: [(&str, &str); 10] = [
    ("anon_inode:[io_uring]", "io_uring"),
    ("/[aio]", "asynchronous I/O (io_setup)"),
    ("/dev/vhost-", "vhost"),
    ("/dev/infiniband/", "RDMA"),
    ("/dev/vfio/", "a device (VFIO)"),
    ("anon_inode:[vfio-device]", "a device (VFIO)"),
    ("/dev/iommu", "a device (iommufd)"),
    ("/dev/nvidia", "a GPU"),
    ("/dev/kfd", "a GPU"),
    ("/dev/dri/", "a GPU"),
];

/// Up to this many descriptors are all checked again while the threads are stopped: about 1 us each. Of more, only
/// those with a new number are; a number that is closed and used again for a ring in these few milliseconds is missed.
const ALL_AGAIN: usize = 1000;
/// Listing more descriptors than these would stop the threads for too long.
const MOST_DESCRIPTORS: usize = 10_000;

/// Another writer.
#[derive(Debug)]
pub(super) struct Writer {
    /// Who it is, in words.
    pub(super) why: String,
    /// It may be gone soon, as the child of vfork(2) is.
    pub(super) passes: bool,
}

/// What was found of other writers: none.
#[derive(Debug)]
pub(super) struct Writers {
    pid: u32,
    /// The newest process when the others were checked; `None` where /proc does not tell.
    newest: Option<u32>,
    /// The processes that do not share its memory.
    not_sharing: BTreeSet<u32>,
    /// The descriptors that were checked.
    descriptors: BTreeSet<i32>,
}

impl Writers {
    /// Has checked nothing yet.
    fn of(pid: i32) -> Writers {
        let (not_sharing, descriptors) = (BTreeSet::new(), BTreeSet::new());
        Writers { pid: pid.cast_unsigned(), newest: None, not_sharing, descriptors }
    }

    /// Searches for other writers.
    ///
    /// # Errors
    /// The first one.
    pub(super) fn none(pid: i32) -> Result<Writers, Writer> {
        let mut writers = Writers::of(pid);
        let mappings = Process::new(writers.pid).maps().map_err(|e| lasting(e.to_string()))?;
        mappings.iter().try_for_each(|m| writes_later(&m.path))?;
        writers.still_none()?;
        Ok(writers)
    }

    /// Checks what is new since.
    ///
    /// # Errors
    /// See [`Writers::none`].
    pub(super) fn still_none(&mut self) -> Result<(), Writer> {
        self.check_descriptors()?;
        let newest = LoadAvg::read().map(|now| now.newest);
        if newest.is_some() && newest == self.newest {
            return Ok(());
        }
        self.check_processes()?;
        self.newest = newest;
        Ok(())
    }

    fn check_descriptors(&mut self) -> Result<(), Writer> {
        let pid = self.pid;
        let dir = Process::new(pid).path("fd");
        let failed = |e: io::Error| lasting(format!("/proc/{pid}/fd: {e}"));
        if self.descriptors.len() <= ALL_AGAIN {
            self.descriptors.clear();
        }
        for (n, entry) in std::fs::read_dir(&dir).map_err(failed)?.enumerate() {
            if n >= MOST_DESCRIPTORS {
                return Err(lasting(format!(
                    "it has more than {MOST_DESCRIPTORS} open descriptors (ls /proc/{pid}/fd): all its threads would \
                     have to wait while they are read"
                )));
            }
            let name = entry.map_err(failed)?.file_name();
            let Some(number) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            if self.descriptors.insert(number)
                && let Ok(link) = std::fs::read_link(dir.join(name))
            {
                writes_later(&link)?;
            }
        }
        Ok(())
    }

    fn check_processes(&mut self) -> Result<(), Writer> {
        let failed = |e: io::Error| lasting(format!("/proc: {e}"));
        for entry in std::fs::read_dir("/proc").map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let Some(other) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            let shares = || {
                shares_memory(self.pid, other).map_err(|e| {
                    lasting(format!("this kernel does not say which processes share memory (kcmp: {e})"))
                })
            };
            if other != self.pid && self.not_sharing.insert(other) && shares()? {
                self.not_sharing.remove(&other);
                let why =
                    format!("process {other} shares its memory (vfork or CLONE_VM) and may write to it");
                return Err(Writer { why, passes: true });
            }
        }
        Ok(())
    }
}

/// Returns a writer that does not go away.
fn lasting(why: String) -> Writer {
    Writer { why, passes: false }
}

fn writes_later(path: &Path) -> Result<(), Writer> {
    let bytes = path.as_os_str().as_encoded_bytes();
    match LATER.iter().find(|(name, _)| bytes.starts_with(name.as_bytes())) {
        Some((_, what)) => Err(lasting(format!("{what} may write to its memory while no thread of it runs"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_written_through_later() {
        for path in [
            "anon_inode:[io_uring]",
            "/[aio]",
            "/dev/vhost-net",
            "/dev/infiniband/uverbs0",
            "/dev/dri/renderD128",
        ] {
            assert!(writes_later(Path::new(path)).is_err(), "{path}");
        }
        for path in ["/dev/null", "anon_inode:[eventpoll]", "socket:[7]", "/usr/lib/aio", "/dev/pts/0"] {
            assert!(writes_later(Path::new(path)).is_ok(), "{path}");
        }
    }

    /// A child that stops itself before and after each of `steps`, which may only make system calls. Killed when dropped.
    struct Stopping(libc::pid_t);

    impl Stopping {
        fn start(steps: &[fn()]) -> Stopping {
            // SAFETY: the child makes only system calls.
            let pid = unsafe { libc::fork() };
            assert!(pid >= 0, "{}", io::Error::last_os_error());
            if pid == 0 {
                // SAFETY: these are system calls; other tests' files are not inherited.
                unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
                for step in steps {
                    // SAFETY: a system call.
                    unsafe { libc::raise(libc::SIGSTOP) };
                    step();
                }
                // SAFETY: as above. It must not return into the test.
                unsafe {
                    libc::raise(libc::SIGSTOP);
                    libc::_exit(0)
                };
            }
            let child = Stopping(pid);
            child.wait();
            child
        }

        /// Waits until it has stopped.
        fn wait(&self) {
            let mut status = 0;
            // SAFETY: waitpid(2) writes to the live number.
            let ended = unsafe { libc::waitpid(self.0, &raw mut status, libc::WUNTRACED) };
            assert!(ended == self.0 && libc::WIFSTOPPED(status), "{ended} {status:#x}");
        }

        /// Lets it do its next step.
        fn step(&self) {
            // SAFETY: a signal to the child, which was not waited for.
            unsafe { libc::kill(self.0, libc::SIGCONT) };
            self.wait();
        }
    }

    impl Drop for Stopping {
        fn drop(&mut self) {
            // SAFETY: a signal to the child, and the wait for it.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, std::ptr::null_mut(), 0);
            }
        }
    }

    /// Makes a ring of io_uring, with the lowest free number.
    fn ring() {
        // struct io_uring_params, 120 bytes of zeros.
        let mut params = [0u64; 15];
        // SAFETY: io_uring_setup(2) writes to the live structure.
        unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
    }

    #[test]
    fn a_number_that_is_used_again_for_a_ring() {
        let off = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
        if off.map_or(true, |off| off.trim() != "0") {
            return println!("SKIP: io_uring is disabled");
        }
        /// Opens number 3, the lowest free one.
        fn open() {
            // SAFETY: a system call on the child's own descriptors.
            unsafe { libc::dup(0) };
        }
        /// Uses number 3 again.
        fn use_again() {
            // SAFETY: as above.
            unsafe { libc::close(3) };
            ring();
        }
        let child = Stopping::start(&[open, use_again]);
        child.step();
        // Not at its mappings, which it has inherited from this process with those of other tests.
        let mut writers = Writers::of(child.0);
        writers.still_none().unwrap();
        assert_eq!(writers.descriptors, BTreeSet::from([0, 1, 2, 3]));
        child.step();
        let found = writers.still_none().unwrap_err();
        assert!(found.why.contains("io_uring"), "{found:?}");
    }

    #[test]
    fn too_many_descriptors() {
        /// Opens descriptors until the process has more than [`MOST_DESCRIPTORS`].
        fn many() {
            let all = MOST_DESCRIPTORS as u64 + 1;
            let limit = libc::rlimit { rlim_cur: all, rlim_max: all };
            // SAFETY: system calls on the child's own limit and descriptors.
            unsafe {
                libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
                while libc::dup(0) >= 0 {}
            }
        }
        let child = Stopping::start(&[many]);
        assert!(Writers::of(child.0).still_none().is_ok());
        child.step();
        let open = std::fs::read_dir(format!("/proc/{}/fd", child.0)).unwrap().count();
        if open <= MOST_DESCRIPTORS {
            return println!("SKIP: a process may have only {open} open descriptors (ulimit -Hn)");
        }
        let found = Writers::of(child.0).still_none().unwrap_err();
        assert!(found.why.contains("more than 10000 open descriptors") && !found.passes, "{found:?}");
    }

    /// Other tests of this process have rings and contexts of their own.
    #[test]
    fn a_process_without_other_writers_and_the_name_of_a_ring() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id().cast_signed();
        // Until its execve(2) it shares the memory of this process.
        let found =
            (0..1000).find_map(|_| match Writers::none(pid).and_then(|mut writers| writers.still_none()) {
                Err(Writer { passes: true, .. }) => {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    None
                }
                other => Some(other),
            });
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(found, Some(Ok(()))), "{found:?}");
        // struct io_uring_params, 120 bytes of zeros.
        let mut params = [0u64; 15];
        // SAFETY: io_uring_setup(2) writes to the live structure.
        let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
        if ring < 0 {
            return println!("SKIP: io_uring_setup: {}", io::Error::last_os_error());
        }
        let link = std::fs::read_link(format!("/proc/self/fd/{ring}")).unwrap();
        let found = writes_later(&link).unwrap_err();
        assert!(found.why.contains("io_uring") && !found.passes, "{found:?}");
        // SAFETY: the descriptor made above.
        unsafe { libc::close(ring as i32) };
    }
}
