// SPDX-License-Identifier: Apache-2.0
//! Samples a running program for the notes: what it touches of its text and rodata, and how long
//! it lives.
//!
//! ```text
//!   program   |=== start ===|==================== runs =====================|  end
//!   helper    |--- lifts ---|  4 ms  8 ms   16 ms         32 ms ...         |  notes
//!                          sample sample sample       sample
//! ```
//!
//! *What it sees.* A sample asks the kernel which pages of the files the program has in its page tables
//! (PAGEMAP_SCAN): those that it touched, and pages around each, up to 64 kB, that were in the page cache.
//! Pages that were only read ahead are not among them, unlike in mincore(2), which shows what any process
//! has read since the boot. Accessed bits would be finer, but only root can read them page by page
//! (Documentation/admin-guide/mm/idle_page_tracking.rst), and clear_refs changes what the kernel reclaims.
//! The observer does not see what is on huge pages already, or what a program first touches after its last
//! sample, which comes after more than half its life. A later run adds what is missed.
//!
//! *What it costs.* It traces nothing, and the program never waits for it. A sample takes half a
//! millisecond for the 200 MB of clang's libraries (0.37 ms of it for libLLVM's text), on another CPU if
//! there is one; there are 16 in the first minute, after which it ends.
//!
//! *How long it lived* is the CPU time of the process and its threads, without the lift's. A program
//! that runs on when the observer ends counts as a long one, as does one that leaves a process behind, as
//! a daemon does.

use crate::proc::pagemap;
use crate::proc::procfs::Process;
use crate::store::{Notes, executed};
use crate::watch::watcher::{Program, Watch};
use hugelift_core::addr::Range;
use hugelift_core::note::{LIVED_ON, Touched};
use hugelift_core::record::Identity;
use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The delay before the second sample; each later delay is twice as long.
const FIRST: Duration = Duration::from_millis(4);
/// The longest delay between samples.
const LONGEST: Duration = Duration::from_secs(16);
/// A program that lives longer is not watched any more.
const ENOUGH: Duration = Duration::from_secs(60);

/// Samples a program.
#[derive(Debug)]
pub struct Observer {
    notes: Notes,
    executable: (PathBuf, Identity),
    subjects: Vec<Subject>,
    /// CPU time of the process that the lift took.
    foreign: Duration,
    began: Instant,
    delay: Duration,
    /// What the program touched of each subject.
    touched: Vec<Touched>,
    /// When the program was last seen, and its CPU time then.
    seen: Option<(Duration, Duration)>,
}

/// An object of the program.
#[derive(Debug)]
pub struct Subject {
    /// Its path as in `/proc/PID/maps`, and the identity of its file.
    pub file: (PathBuf, Identity),
    /// What loading added to its stated addresses.
    pub bias: u64,
    /// Ranges that the file's pages back, on small pages.
    pub ranges: Vec<Range>,
}

impl Observer {
    /// Returns an observer; `foreign` of the program's CPU time was the lift's.
    pub fn new(
        notes: Notes,
        executable: (PathBuf, Identity),
        subjects: Vec<Subject>,
        foreign: Duration,
    ) -> Observer {
        let touched = vec![Touched::default(); subjects.len()];
        let (began, delay) = (Instant::now(), Duration::ZERO);
        Observer { notes, executable, subjects, foreign, began, delay, touched, seen: None }
    }

    fn write(&self, life: Duration) {
        let (path, file) = &self.executable;
        let mut own = None;
        for (subject, touched) in self.subjects.iter().zip(&self.touched).filter(|_| self.seen.is_some()) {
            let (path, of_subject) = &subject.file;
            if of_subject == file {
                own = Some(touched);
            } else if let Err(error) = self.notes.add(path, of_subject, None, Some(touched)) {
                tracing::debug!(%error, "no note");
            }
        }
        if let Err(error) = self.notes.add(path, file, Some(life), own) {
            tracing::debug!(%error, "no note");
        }
    }

    /// Returns the program's own CPU time; `None` once its parent has waited for it.
    fn cpu_time(&self, program: &Program) -> Option<Duration> {
        // If it is still there, its pid was not another process's just now.
        Some(cpu_time(program.pid).filter(|_| program.is_there())?.saturating_sub(self.foreign))
    }

    fn file(&self) -> (u64, u64) {
        (self.executable.1.device, self.executable.1.inode)
    }

    /// Returns whether the process has not become another program by execve(2), as far as is visible.
    fn is_itself(&self, pid: u32) -> bool {
        match executed(&Process::new(pid).path("exe")) {
            Ok(file) => file == self.file(),
            Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
        }
    }

    /// Returns whether the program has left a process behind: one of the same file, younger than this
    /// process and with the same parent, which adopts the orphans of both.
    fn has_left_a_process(&self, program: u32) -> bool {
        let (adopter, own) = (std::os::unix::process::parent_id(), std::process::id());
        let (Ok(processes), Ok(own_stat)) = (std::fs::read_dir("/proc"), Process::OWN.stat()) else {
            return false;
        };
        let mut others = processes.filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u32>().ok());
        others.any(|pid| {
            let process = Process::new(pid);
            pid != program
                && pid != own
                && executed(&process.path("exe")).is_ok_and(|file| file == self.file())
                && process.stat().is_ok_and(|stat| stat.parent == adopter && stat.start >= own_stat.start)
        })
    }
}

impl Watch for Observer {
    fn descriptors(&self) -> Vec<RawFd> {
        vec![self.notes.descriptor()]
    }

    fn first_delay(&self) -> Duration {
        Duration::ZERO
    }

    fn tick(&mut self, program: &Program) -> Option<Duration> {
        for (subject, touched) in self.subjects.iter().zip(&mut self.touched) {
            subject.sample(&program.pagemap, touched);
        }
        let has_ended = program.ends_within(Duration::ZERO).unwrap_or(true);
        let cpu = if has_ended { None } else { self.cpu_time(program) };
        let Some(cpu) = cpu else {
            self.ended(program);
            return None;
        };
        let seen_at = self.began.elapsed();
        if !self.is_itself(program.pid) {
            self.write(cpu);
            return None;
        }
        self.seen = Some((seen_at, cpu));
        if seen_at >= ENOUGH {
            self.write(LIVED_ON);
            return None;
        }
        self.delay = (2 * self.delay).clamp(FIRST, LONGEST);
        Some(self.delay)
    }

    fn ended(&mut self, program: &Program) {
        if self.has_left_a_process(program.pid) {
            return self.write(LIVED_ON);
        }
        // The time can be read until its parent has waited for it. After that, the program is taken to
        // have been as busy as before.
        let life = self.cpu_time(program).unwrap_or_else(|| {
            let (seen_at, life) = self.seen.unwrap_or_default();
            let busy = life.as_secs_f64() / seen_at.as_secs_f64().max(1e-6);
            life + self.began.elapsed().saturating_sub(seen_at).mul_f64(busy.clamp(0.0, 1.0))
        });
        self.write(life);
    }
}

/// Returns the CPU time of process `pid` with all its threads; `None` if there is no such process.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    let mut clock: libc::clockid_t = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_getcpuclockid(3) and clock_gettime(2) write to what lives through the calls.
    let failed = unsafe {
        libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) != 0
            || libc::clock_gettime(clock, &raw mut time) != 0
    };
    let seconds = u64::try_from(time.tv_sec).ok().filter(|_| !failed)?;
    Some(Duration::new(seconds, time.tv_nsec as u32))
}

impl Subject {
    fn sample(&self, pagemap: &File, touched: &mut Touched) {
        for range in &self.ranges {
            let mark = &mut |found: Range| touched.mark(found.start.0.wrapping_sub(self.bias), found.len());
            // An error means that it has ended or become another program.
            let _ = pagemap::present(pagemap, *range, mark);
        }
    }
}
