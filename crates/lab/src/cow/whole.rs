// SPDX-License-Identifier: Apache-2.0
//! Measures whole processes that write to their memory while a child has its copy: to every byte, or once to each huge page.
//!
//! ```text
//!   start | map, fill | fork |      write       | end of the child, exit |
//!         |<------------------------ wall, CPU ------------------------>|
//! ```
//!
//! The writes after a fork are only a part of what such a process does. What it gains by hugetlb as a whole
//! is what a user sees.

use super::case::{Case, Pattern};
use super::fork::wait_for_end;
use crate::memory::Pages;
use anyhow::{Context as _, Result, bail, ensure};
use hugelift_core::addr::PageSize;
use hugelift_linux::proc::reservation::Reservation;
use nix::errno::Errno;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use nix::sys::time::TimeValLike as _;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use std::io::Read as _;
use std::os::fd::{AsRawFd as _, RawFd};
use std::time::Instant;

/// The cost of one process, in seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Whole {
    /// From before its start to its end.
    pub wall: f64,
    /// CPU time in user mode of the process and its child.
    pub user: f64,
    /// The same in the kernel.
    pub system: f64,
    /// Time to map and fill the memory, of fork(2), and of all writes after it.
    pub phases: [f64; 3],
}

impl Whole {
    /// Returns the CPU time of the process and its child.
    pub fn cpu(&self) -> f64 {
        self.user + self.system
    }

    /// Returns the wall time without mapping and filling the memory, in which huge pages save most faults.
    pub fn after_fill(&self) -> f64 {
        (self.wall - self.phases[0]).max(0.0)
    }

    /// Returns the rest: its own start, and the end of both processes, where the kernel frees the memory.
    pub fn rest(&self) -> f64 {
        (self.wall - self.phases.iter().sum::<f64>()).max(0.0)
    }
}

/// What the process sends when it has done its work: the nanoseconds of each phase.
type Sent = [u64; 3];

/// Runs one process of a case.
///
/// # Errors
/// fork(2) or the process fails, as without memory.
pub(super) fn once(case: Case, huge: PageSize) -> Result<Whole> {
    let bytes =
        usize::try_from(case.huge_pages * huge.bytes()).context("too much memory for this machine")?;
    // The process maps its memory here. It can then do without a memory allocator.
    let mut place = Reservation::new(bytes, huge).context("cannot reserve addresses")?;
    let (mut read, write) = std::io::pipe().context("pipe")?;
    let cpu_before = cpu_of_children()?;
    let mut before = SigSet::empty();
    // Neither process may run a signal handler of this one, and ctrl-C must not end them: they end by
    // themselves.
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before)).context("sigmask")?;
    let began = Instant::now();
    // SAFETY: fork(2): the child only makes system calls and writes to memory that it has mapped, which
    // signal-safety(7) allows, and never returns.
    let forked = unsafe { fork() };
    if matches!(forked, Ok(ForkResult::Child)) {
        work(&mut place, case, huge, bytes, write.as_raw_fd());
    }
    let restored = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None).context("sigmask");
    let ForkResult::Parent { child } = forked.context("fork")? else {
        unreachable!("the child has ended above")
    };
    drop(write);
    let status = loop {
        match waitpid(child, None) {
            Err(Errno::EINTR) => {}
            status => break status.context("waitpid")?,
        }
    };
    let wall = began.elapsed().as_secs_f64();
    restored?;
    match status {
        WaitStatus::Exited(_, 0) => {}
        WaitStatus::Exited(_, errno) => {
            bail!("a process could not be measured: {}", std::io::Error::from_raw_os_error(errno))
        }
        other => bail!("a process could not be measured: {other:?}; is there too little memory?"),
    }
    let mut sent = [0; size_of::<Sent>()];
    read.read_exact(&mut sent).context("a process ended without its figures")?;
    let mut phases = [0.0; 3];
    for (phase, bytes) in phases.iter_mut().zip(sent.as_chunks::<8>().0) {
        *phase = u64::from_ne_bytes(*bytes) as f64 / 1e9;
    }
    let [user, system] = cpu_of_children()?;
    let [user, system] = [user - cpu_before[0], system - cpu_before[1]];
    ensure!(user + system >= 0.0, "the CPU time of children went back by {} s", -(user + system));
    Ok(Whole { wall, user, system, phases })
}

/// Returns the CPU seconds of all children that were waited for, in user mode and in the kernel.
fn cpu_of_children() -> Result<[f64; 2]> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("getrusage")?;
    Ok([usage.user_time(), usage.system_time()].map(|time| time.num_microseconds() as f64 / 1e6))
}

/// Runs as the process that is measured. Its exit status is an errno(3), or 0.
fn work(place: &mut Reservation, case: Case, huge: PageSize, bytes: usize, report: RawFd) -> ! {
    let done = phases(place, case, huge, bytes).and_then(|sent: Sent| {
        // SAFETY: write(2) of numbers that live through the call. A pipe takes up to PIPE_BUF bytes at once.
        match unsafe { libc::write(report, sent.as_ptr().cast(), size_of::<Sent>()) } {
            0.. => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    });
    let status = match done {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    };
    // SAFETY: _exit(2) of this process, which runs nothing of its parent's at its end.
    unsafe { libc::_exit(status) }
}

/// Fills memory, forks, writes to it, and waits for the end of the child. Allocates nothing.
fn phases(place: &mut Reservation, case: Case, huge: PageSize, bytes: usize) -> std::io::Result<Sent> {
    let advice = match case.pages {
        Pages::Small => Some(libc::MADV_NOHUGEPAGE),
        Pages::Thp => Some(libc::MADV_HUGEPAGE),
        Pages::Hugetlb(_) => None,
    };
    let began = Instant::now();
    let memory = place.map_memory(0, bytes, libc::PROT_READ | libc::PROT_WRITE, case.pages.flags())?;
    if let Some(advice) = advice {
        // A kernel without transparent huge pages refuses the advice. Small pages do not need it, and the
        // experiment has left the others out.
        // SAFETY: madvise(2) of memory that was just mapped.
        let _ = unsafe { libc::madvise(memory.cast(), bytes, advice) };
    }
    fill(memory, bytes, 1);
    let filled = Instant::now();
    let mut pipe = [0; 2];
    // SAFETY: pipe(2) writes two numbers to where there is room for them.
    if unsafe { libc::pipe(pipe.as_mut_ptr()) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let forking = Instant::now();
    // SAFETY: fork(2) in a process with one thread; the child only waits for its end.
    let child = unsafe { libc::fork() };
    let forked = Instant::now();
    match child {
        0 => wait_for_end(pipe[0], pipe[1]),
        1.. => {}
        _ => return Err(std::io::Error::last_os_error()),
    }
    match case.pattern {
        Pattern::OnePerHuge => touch(memory, bytes, huge),
        Pattern::Random | Pattern::Every => fill(memory, bytes, 2),
    }
    let written = Instant::now();
    // SAFETY: close(2) of the writing end, at which the child ends; waitpid(2) for that child.
    let ended = unsafe {
        libc::close(pipe[1]);
        libc::waitpid(child, std::ptr::null_mut(), 0)
    };
    if ended != child {
        return Err(std::io::Error::last_os_error());
    }
    Ok([filled - began, forked - forking, written - forked].map(|time| time.as_nanos() as u64))
}

fn fill(memory: *mut u8, bytes: usize, byte: u8) {
    // SAFETY: the caller has just mapped these bytes, readable and writable; no reference to them exists.
    unsafe { std::ptr::write_bytes(memory, byte, bytes) };
    // The compiler must not leave out what nobody reads.
    std::hint::black_box(memory);
}

/// Writes one byte to each huge page.
fn touch(memory: *mut u8, bytes: usize, huge: PageSize) {
    for at in (0..bytes).step_by(huge.bytes() as usize) {
        // SAFETY: as for `fill`; `at` is below `bytes`.
        unsafe { memory.add(at).write_volatile(2) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_linux::machine::thp_page;

    fn of(pages: Pages, huge_pages: u64, pattern: Pattern) -> Case {
        Case { huge_pages, pages, pattern }
    }

    /// 4096 small pages are copied, or eight.
    #[test]
    fn issue_34_6_one_write_to_each_huge_page_takes_less_than_writes_to_all() {
        let _alone = crate::alone();
        let huge = thp_page().unwrap_or(PageSize::MB2);
        let write = |pattern| once(of(Pages::Small, 8, pattern), huge).expect("16 MB").phases[2];
        let (sparse, dense) = (write(Pattern::OnePerHuge), write(Pattern::Every));
        assert!(sparse > 0.0 && sparse < dense, "{sparse} {dense}");
    }

    #[test]
    fn a_process_costs_the_sum_of_its_phases() {
        let _alone = crate::alone();
        let huge = thp_page().unwrap_or(PageSize::MB2);
        let whole = once(of(Pages::Small, 8, Pattern::Every), huge).expect("16 MB and two processes");
        assert!(whole.phases.iter().all(|phase| *phase > 0.0), "{whole:?}");
        assert!(whole.phases.iter().sum::<f64>() < whole.wall && whole.rest() > 0.0, "{whole:?}");
        // 8192 page faults take longer than the resolution of the CPU time.
        assert!(whole.cpu() > 1e-4 && whole.cpu() < 60.0, "{whole:?}");
    }

    #[test]
    fn a_process_that_fails_says_why() {
        let _alone = crate::alone();
        // The address space has no room for it, and no pool has pages of this size.
        assert!(once(of(Pages::Small, 1 << 40, Pattern::Every), PageSize::MB2).is_err());
        let odd = PageSize::new(1 << 60);
        if let Some(odd) = odd {
            let error =
                once(of(Pages::Hugetlb(odd), 1, Pattern::Every), PageSize::MB2).expect_err("no such pool");
            assert!(format!("{error:#}").contains("could not be measured: "), "{error:#}");
        }
    }
}
