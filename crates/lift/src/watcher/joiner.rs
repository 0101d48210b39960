// SPDX-License-Identifier: Apache-2.0
//! Joins the huge pages of a running program again that copy-on-write has split; [`mod@join`] decides
//! which.
//!
//! *How*: from outside, by process_madvise(2) with `MADV_COLLAPSE`, block by block. The kernel allocates
//! the huge page first, and locks the program's address space only while it copies 2 MB. Nothing is
//! joined during nine tenths of the time. khugepaged joins such pages too, at its default pace of 8 MB in
//! ten seconds for all processes together.
//!
//! *When*: PAGEMAP_SCAN shows which blocks are huge. In a block that was huge and is not, bit 56 of each
//! page's entry in the pagemap shows whether another process maps the page. So the joiner need not know
//! which processes forked, called execve(2) or ended.

use crate::watcher::process::{NoCollapse, Program, Watch};
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::join::{self, Blocks, Rhythm, Sample, is_whole_and_own};
use hugelift_core::maps::{Mapping, Prot, parse_maps};
use hugelift_linux::machine::{base_page, thp_page};
use hugelift_linux::proc::memory::MADV_COLLAPSE;
use hugelift_linux::proc::pagemap;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

/// Why a program's huge pages cannot be joined from outside.
#[derive(Debug, thiserror::Error)]
pub enum Unjoinable {
    /// The kernel has no transparent huge pages.
    #[error("this kernel has no transparent huge pages")]
    NoPages,
    /// CAP_SYS_NICE is missing.
    #[error(
        "process_madvise(MADV_COLLAPSE): {0}; it takes CAP_SYS_NICE: run hugelift as root (sudo), without --user"
    )]
    Denied(io::Error),
    /// The kernel does not collapse pages of another process.
    #[error("process_madvise(MADV_COLLAPSE): {0}; it takes Linux 6.1")]
    NoCollapse(io::Error),
    /// The kernel does not show which pages are huge.
    #[error("/proc/PID/pagemap: PAGEMAP_SCAN: {0}; it takes Linux 6.7")]
    NoScan(io::Error),
    /// The program's maps cannot be read.
    #[error("/proc/PID/maps: {0}")]
    NoMaps(io::Error),
}

/// Joins a program's split huge pages.
#[derive(Debug)]
pub struct Joiner {
    maps: File,
    page: PageSize,
    blocks: Blocks,
    rhythm: Rhythm,
    /// The split blocks of the last sample that are still to be joined.
    split: VecDeque<Range>,
    /// Whether something has changed in this round, and how long its samples took.
    round: (bool, Duration),
}

impl Joiner {
    /// Returns a joiner for `program`, which is stopped. Tries its system calls on no memory.
    ///
    /// # Errors
    /// A system call is refused.
    pub fn new(program: &Program) -> Result<Joiner, Unjoinable> {
        let page = thp_page().ok_or(Unjoinable::NoPages)?;
        program.may_collapse().map_err(|refused| match refused {
            NoCollapse::Denied(error) => Unjoinable::Denied(error),
            NoCollapse::Unknown(error) => Unjoinable::NoCollapse(error),
            NoCollapse::Gone => Unjoinable::NoCollapse(io::Error::from_raw_os_error(libc::ESRCH)),
        })?;
        let any = Range { start: Addr(0), end: Addr(base_page().bytes()) };
        pagemap::huge_stretches(&program.pagemap, any, false, &mut |_| {}).map_err(Unjoinable::NoScan)?;
        let maps = File::open(format!("/proc/{}/maps", program.pid)).map_err(Unjoinable::NoMaps)?;
        let (blocks, rhythm) = (Blocks::new(page), Rhythm::default());
        Ok(Joiner { maps, page, blocks, rhythm, split: VecDeque::new(), round: (false, Duration::ZERO) })
    }

    /// Samples all of the program's memory; `None` if its mappings changed meanwhile.
    ///
    /// # Errors
    /// The memory is gone: the process has become another program.
    fn sample_all(&mut self, program: &Program) -> io::Result<Option<Sample>> {
        let mut text = Vec::new();
        self.maps.rewind()?;
        self.maps.read_to_end(&mut text)?;
        if text.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let Ok(mappings) = parse_maps(&text) else { return Ok(None) };
        let candidates = mappings.iter().filter(|m| may_be_joined(m)).map(|m| m.range);
        let mut sample = Sample { mappings: candidates.collect(), huge: Vec::new() };
        for range in sample.mappings.iter().filter_map(|mapping| mapping.inner(self.page)) {
            let found = &mut |huge| sample.huge.push(huge);
            pagemap::huge_stretches(&program.pagemap, range, false, found)?;
        }
        Ok(Some(sample))
    }

    /// Joins the next block that can be joined; returns how long that took.
    fn join_next(&mut self, program: &Program) -> Option<Duration> {
        let began = Instant::now();
        while let Some(block) = self.split.pop_front() {
            let entries = pagemap::entries(&program.pagemap, block).unwrap_or_default();
            let pages = self.page.bytes() / base_page().bytes();
            if entries.len() as u64 != pages || !is_whole_and_own(&entries) {
                continue;
            }
            self.round.1 += began.elapsed();
            let began = Instant::now();
            match program.advise(Some(block), MADV_COLLAPSE) {
                Ok(_) => self.round.0 = true,
                Err(error) => {
                    self.blocks.refuse(block.start);
                    // Memory is short: the other blocks wait too.
                    if matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EBUSY)) {
                        self.split.clear();
                    }
                }
            }
            return Some(began.elapsed());
        }
        self.round.1 += began.elapsed();
        None
    }
}

/// Returns whether a mapping is private, writable and of no file; code is never joined.
fn may_be_joined(mapping: &Mapping) -> bool {
    let Prot { write, exec, .. } = mapping.prot;
    write && !exec && !mapping.shared && !mapping.is_file() && !mapping.is_kernel_code()
}

impl Watch for Joiner {
    fn descriptors(&self) -> Vec<RawFd> {
        vec![self.maps.as_raw_fd()]
    }

    fn first_delay(&self) -> Duration {
        Rhythm::FIRST
    }

    fn tick(&mut self, program: &Program) -> Option<Duration> {
        if self.split.is_empty() {
            let began = Instant::now();
            let changed = match self.sample_all(program) {
                Ok(Some(sample)) => self.blocks.take(&sample),
                Ok(None) => true,
                Err(_) => return None,
            };
            self.split = self.blocks.split().into();
            self.round = (changed, began.elapsed());
        }
        if let Some(took) = self.join_next(program) {
            return Some(join::pause(took));
        }
        let (changed, took) = self.round;
        Some(self.rhythm.next(changed, took))
    }

    fn ended(&mut self, _program: &Program) -> Option<Duration> {
        None
    }
}
