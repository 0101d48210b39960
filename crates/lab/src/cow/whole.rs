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
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Whole {
    /// From before its start to its end.
    pub wall: f64,
    /// CPU time in user mode of the process and its child.
    pub user: f64,
    /// The same in the kernel.
    pub system: f64,
    /// The phases in [`FILL`], [`FORK`] and [`WRITE`].
    pub phases: [Phase; 3],
}

/// The phase in which a process maps and fills its memory.
pub const FILL: usize = 0;
/// That in which it forks.
pub const FORK: usize = 1;
/// That of all writes while the child lives.
pub const WRITE: usize = 2;

/// The cost of one phase of the process itself.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Phase {
    /// Wall time in seconds.
    pub wall: f64,
    /// CPU time in seconds.
    pub cpu: f64,
    /// Page faults.
    pub faults: f64,
}

impl Whole {
    /// Returns the CPU time of the process and its child.
    pub fn cpu(&self) -> f64 {
        self.user + self.system
    }

    /// Returns the CPU time without mapping and filling the memory, in which huge pages save most faults.
    pub fn after_fill(&self) -> f64 {
        (self.cpu() - self.phases[FILL].cpu).max(0.0)
    }

    /// Returns the rest of the wall time: its own start, and the end of both processes, where the kernel frees the memory.
    pub fn rest(&self) -> f64 {
        self.left(self.wall, |phase| phase.wall)
    }

    /// Returns the same of the CPU time.
    pub fn rest_cpu(&self) -> f64 {
        self.left(self.cpu(), |phase| phase.cpu)
    }

    fn left(&self, all: f64, of: fn(&Phase) -> f64) -> f64 {
        (all - self.phases.iter().map(of).sum::<f64>()).max(0.0)
    }
}

/// What the process sends when it has done its work: nanoseconds of wall time and of CPU time, and page faults, phase by phase.
type Sent = [[u64; 3]; 3];

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
    let mut phases = [Phase::default(); 3];
    for (phase, bytes) in phases.iter_mut().zip(sent.as_chunks::<24>().0) {
        let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word) as f64);
        let [wall, cpu, faults] = words.collect::<Vec<f64>>()[..] else { continue };
        *phase = Phase { wall: wall / 1e9, cpu: cpu / 1e9, faults };
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
    let began = Now::read();
    let memory = place.map_memory(0, bytes, libc::PROT_READ | libc::PROT_WRITE, case.pages.flags())?;
    if let Some(advice) = advice {
        // A kernel without transparent huge pages refuses the advice. Small pages do not need it, and the
        // experiment has left the others out.
        // SAFETY: madvise(2) of memory that was just mapped.
        let _ = unsafe { libc::madvise(memory.cast(), bytes, advice) };
    }
    fill(memory, bytes, 1);
    let filled = Now::read();
    let mut pipe = [0; 2];
    // SAFETY: pipe(2) writes two numbers to where there is room for them.
    if unsafe { libc::pipe(pipe.as_mut_ptr()) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let forking = Now::read();
    // SAFETY: fork(2) in a process with one thread; the child only waits for its end.
    let child = unsafe { libc::fork() };
    let forked = Now::read();
    match child {
        0 => wait_for_end(pipe[0], pipe[1]),
        1.. => {}
        _ => return Err(std::io::Error::last_os_error()),
    }
    match case.pattern {
        Pattern::OnePerHuge => touch(memory, bytes, huge),
        Pattern::Random | Pattern::Every => fill(memory, bytes, 2),
    }
    let written = Now::read();
    // SAFETY: close(2) of the writing end, at which the child ends; waitpid(2) for that child.
    let ended = unsafe {
        libc::close(pipe[1]);
        libc::waitpid(child, std::ptr::null_mut(), 0)
    };
    if ended != child {
        return Err(std::io::Error::last_os_error());
    }
    Ok([filled.since(&began), forked.since(&forking), written.since(&forked)])
}

/// What this process has used until now.
struct Now {
    wall: Instant,
    cpu_ns: u64,
    faults: u64,
}

impl Now {
    /// Reads the clocks. Allocates nothing.
    fn read() -> Now {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the system call writes to where there is room; zeros are a valid value of these numbers.
        let usage = unsafe {
            libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time);
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
            usage
        };
        let cpu_ns = time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned();
        let faults = (usage.ru_minflt + usage.ru_majflt).cast_unsigned();
        Now { wall: Instant::now(), cpu_ns, faults }
    }

    /// Returns the nanoseconds of wall time and of CPU time, and the page faults, since `before`.
    fn since(&self, before: &Now) -> [u64; 3] {
        let wall = (self.wall - before.wall).as_nanos() as u64;
        [wall, self.cpu_ns.saturating_sub(before.cpu_ns), self.faults.saturating_sub(before.faults)]
    }
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
    use hugelift_linux::machine::{base_page, thp_page};

    fn of(pages: Pages, huge_pages: u64, pattern: Pattern) -> Case {
        Case { huge_pages, pages, pattern }
    }

    /// 4096 small pages are copied, or eight.
    #[test]
    fn issue_34_6_one_write_to_each_huge_page_takes_less_than_writes_to_all() {
        let _alone = crate::alone();
        let huge = thp_page().unwrap_or(PageSize::MB2);
        let write = |pattern| once(of(Pages::Small, 8, pattern), huge).expect("16 MB").phases[WRITE];
        let (sparse, dense) = (write(Pattern::OnePerHuge), write(Pattern::Every));
        // The wall time of so short a phase depends on what else runs.
        assert!(sparse.wall > 0.0 && dense.wall > 0.0, "{sparse:?} {dense:?}");
        assert!(sparse.cpu > 0.0 && sparse.cpu < dense.cpu, "{sparse:?} {dense:?}");
        let pages = 8.0 * (huge.bytes() / base_page().bytes()) as f64;
        // A page of the stack or of the program may be among them.
        assert!((8.0..12.0).contains(&sparse.faults), "{sparse:?}");
        assert!((pages..pages + 4.0).contains(&dense.faults), "{dense:?}");
    }

    #[test]
    fn a_process_costs_the_sum_of_its_phases() {
        let _alone = crate::alone();
        let huge = thp_page().unwrap_or(PageSize::MB2);
        let whole = once(of(Pages::Small, 8, Pattern::Every), huge).expect("16 MB and two processes");
        assert!(whole.phases.iter().all(|phase| phase.wall > 0.0 && phase.cpu > 0.0), "{whole:?}");
        let walls: f64 = whole.phases.iter().map(|phase| phase.wall).sum();
        assert!(walls < whole.wall && whole.rest() > 0.0, "{whole:?}");
        assert!(whole.phases[FILL].faults >= 8.0 * (huge.bytes() / base_page().bytes()) as f64, "{whole:?}");
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
