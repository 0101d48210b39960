// SPDX-License-Identifier: Apache-2.0
//! Looks at a running program for the notes: what it touches of its text and rodata, and how long
//! it lives.
//!
//! ```text
//!   program   |=== start ===|==================== runs =====================|  end
//!   helper    |--- lifts ---|  4 ms  8 ms   16 ms         32 ms ...         |  notes
//!                           look  look   look         look
//! ```
//!
//! *What it sees.* A look asks the kernel which pages of the files the program has in its page
//! tables (PAGEMAP_SCAN): those that it touched, with up to 64 kB around each that the page cache
//! had. Pages that were only read ahead are not there, unlike in mincore(2), which tells what
//! anybody has read since the boot; accessed bits would be finer, but only root can read them page
//! by page (Documentation/admin-guide/mm/idle_page_tracking.rst), and clear_refs changes what the
//! kernel reclaims. It does not see what is on huge pages already, nor what a program first touches
//! after its last look: that is later than half its life. What it misses, a later run adds.
//!
//! *What it takes.* It traces nothing, and the program never waits for it. A look takes half a
//! millisecond for the 200 MB of clang's libraries (0.37 ms of it libLLVM's text), on another CPU if
//! there is one; there are 16 in the first minute, after which it ends.
//!
//! *How long it lived* is the CPU time of the process and its threads, without what the lift took.
//! A program that lives on when the observer ends, or leaves behind a process of its own, as a daemon
//! does, counts as a long one.

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

/// The first look; each later one comes after twice the time.
const FIRST: Duration = Duration::from_millis(4);
/// The longest time between two.
const LONGEST: Duration = Duration::from_secs(16);
/// Who lives longer is not watched any more.
const ENOUGH: Duration = Duration::from_secs(60);

/// Looks at a program.
#[derive(Debug)]
pub struct Observer {
    notes: Notes,
    executable: (PathBuf, Identity),
    subjects: Vec<Subject>,
    /// CPU time that was not the program's doing.
    foreign: Duration,
    began: Instant,
    delay: Duration,
    /// Of each subject.
    touched: Vec<Touched>,
    /// When it was last there, and what CPU time it had taken.
    seen: Option<(Duration, Duration)>,
}

/// An object of it.
#[derive(Debug)]
pub struct Subject {
    /// As in `/proc/PID/maps`, and which file that is.
    pub file: (PathBuf, Identity),
    /// What loading added to its stated addresses.
    pub bias: u64,
    /// Stretches that are the file's, on small pages.
    pub ranges: Vec<Range>,
}

impl Observer {
    /// Of the program's CPU time, `foreign` was the lift's.
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

    /// The CPU time that the program took; `None` once somebody has waited for it.
    fn cpu_time(&self, program: &Program) -> Option<Duration> {
        // If it is there still, its number was its own just now.
        Some(cpu_time(program.pid).filter(|_| program.is_there())?.saturating_sub(self.foreign))
    }

    fn file(&self) -> (u64, u64) {
        (self.executable.1.device, self.executable.1.inode)
    }

    /// It has not become another program by execve(2), as far as may be known.
    fn is_itself(&self, pid: u32) -> bool {
        match executed(&Process::new(pid).path("exe")) {
            Ok(file) => file == self.file(),
            Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
        }
    }

    /// A process of the same program that has come to the one who adopts this family's orphans, as
    /// this process itself has.
    fn has_left_somebody(&self, program: u32) -> bool {
        // SAFETY: getppid(2) and getpid(2) take no arguments.
        let (adopter, own) = unsafe { (libc::getppid(), libc::getpid()) };
        let (Ok(processes), Ok(own_stat)) = (std::fs::read_dir("/proc"), Process::OWN.stat()) else {
            return false;
        };
        let mut others = processes.filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u32>().ok());
        others.any(|pid| {
            let process = Process::new(pid);
            pid != program
                && pid != own.cast_unsigned()
                && executed(&process.path("exe")).is_ok_and(|file| file == self.file())
                && process
                    .stat()
                    .is_ok_and(|stat| stat.parent == adopter.cast_unsigned() && stat.start >= own_stat.start)
        })
    }
}

impl Watch for Observer {
    fn descriptors(&self) -> Vec<RawFd> {
        vec![self.notes.descriptor()]
    }

    fn first(&self) -> Duration {
        Duration::ZERO
    }

    fn look(&mut self, program: &Program) -> Option<Duration> {
        for (subject, touched) in self.subjects.iter().zip(&mut self.touched) {
            subject.look(&program.pagemap, touched);
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
        if self.has_left_somebody(program.pid) {
            return self.write(LIVED_ON);
        }
        // Until somebody has waited for it, it still tells. After that: as busy as it was.
        let life = self.cpu_time(program).unwrap_or_else(|| {
            let (seen_at, life) = self.seen.unwrap_or_default();
            let busy = life.as_secs_f64() / seen_at.as_secs_f64().max(1e-6);
            life + self.began.elapsed().saturating_sub(seen_at).mul_f64(busy.clamp(0.0, 1.0))
        });
        self.write(life);
    }
}

/// The CPU time of process `pid`, its threads together; `None` if there is none.
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
    fn look(&self, pagemap: &File, touched: &mut Touched) {
        for range in &self.ranges {
            let mark = &mut |found: Range| touched.mark(found.start.0.wrapping_sub(self.bias), found.len());
            // Once it has ended, or become another program, there is nothing more to be seen.
            let _ = pagemap::present(pagemap, *range, mark);
        }
    }
}
