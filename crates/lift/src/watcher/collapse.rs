// SPDX-License-Identifier: Apache-2.0
//! Collapses the anonymous memory of a running process into huge pages; [`hugelift_core::collapse`] decides which.
//!
//! *How*: from outside, by process_madvise(2) with `MADV_COLLAPSE`, block by block. No thread is stopped.
//! The kernel allocates the huge page first. It locks the address space only while it moves the pages of one
//! block, and a thread that touches the block meanwhile waits.
//!
//! *Which first*: the densest blocks. The pagemap shows which pages are present, and not how hot they are:
//! the bitmap of idle pages (`/sys/kernel/mm/page_idle`) takes a kernel that has it, root, and a walk for each
//! page.
//!
//! The CPU time is the caller's: the kernel copies in its system call.

mod refused;
#[cfg(test)]
mod tests;

pub use refused::Refused;

use crate::watcher::process::{NoCollapse, Program};
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::attribute::Attribute;
use hugelift_core::budget;
use hugelift_core::collapse::{
    Area, Block, Budget, Choice, Chosen, Collapsed, Left, Pages, Stopped, Why, choose,
};
use hugelift_core::snapshot::{Extent, Part, Snapshot};
use hugelift_linux::machine::{self, base_page, thp_page};
use hugelift_linux::proc::clock::cpu_time_of_thread;
use hugelift_linux::proc::memory::MADV_COLLAPSE;
use hugelift_linux::proc::pagemap;
use hugelift_linux::proc::procfs::{ProcError, Process};
use hugelift_linux::proc::snapshot;
use nix::errno::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

/// How many times a block is tried while the kernel returns EAGAIN: some of its pages are in use just now.
const TRIES: u32 = 3;
/// After this many blocks in a row for which the kernel has no memory, no other one is tried.
const MAX_SHORT: u32 = 3;
/// The limit of the control group is read again after this many blocks.
const LIMIT_EVERY: usize = 32;
/// A control group must leave this many huge pages. The old pages of a block are charged to it until the
/// new one is in place.
const MIN_LEFT: u64 = 4;
/// Without `PAGEMAP_SCAN` (before Linux 6.7) each page of an area is read. Larger areas are reservations, of
/// which little is present.
const MAX_READ: u64 = 16 << 30;

/// Collapses anonymous memory of `parts` in process `pid` within `budget`, without the mappings that `except` lies in.
///
/// # Errors
/// [`Refused`] if nothing can be collapsed. What happens later is in [`Collapsed`].
pub fn collapse(pid: u32, parts: &[Part], except: &[Range], budget: &Budget) -> Result<Collapsed, Refused> {
    let program = Program::open(pid).map_err(|error| match Process::new(pid).maps() {
        // What of it cannot be read, and what helps.
        Err(ProcError::Vanished { .. }) => Refused::Vanished(pid),
        Err(why) => Refused::Unreadable(why),
        Ok(_) => Refused::NoPagemap { pid, error },
    })?;
    let meter = Meter::cpu();
    permitted(&program)?;
    let mut snapshot = snapshot::live(Some(pid), 0)?;
    leave_out(&mut snapshot, except);
    let how = &mut |block| from_outside(&program, block);
    Work { meter, ..Work::new(&program, &snapshot)? }.collapse(parts, budget, how)
}

/// Does the same without the right for process_madvise(2). The snapshot has the attributes of all mappings
/// ([`snapshot::live`] with 0 bytes). `how` collapses one block, as by madvise(2) in a thread of the process itself,
/// which needs no right. The budget counts the time of the clock, because the CPU time of the caller does not contain the
/// kernel's work.
///
/// # Errors
/// See [`collapse()`].
pub fn collapse_by(
    program: &Program,
    snapshot: &Snapshot,
    parts: &[Part],
    budget: &Budget,
    how: &mut dyn FnMut(Range) -> io::Result<()>,
) -> Result<Collapsed, Refused> {
    not_switched_off(program.pid)?;
    Work { meter: Meter::Clock(Instant::now()), ..Work::new(program, snapshot)? }.collapse(parts, budget, how)
}

/// Marks mappings as memory that is not to be huge.
pub fn leave_out(snapshot: &mut Snapshot, except: &[Range]) {
    let starts: BTreeSet<Range> =
        except.iter().filter_map(|range| Some(snapshot.mapping_at(range.start)?.range)).collect();
    snapshot.special.extend(starts.into_iter().map(|range| (range, Attribute::NoHuge)));
}

fn from_outside(program: &Program, block: Range) -> io::Result<()> {
    program.advise(Some(block), MADV_COLLAPSE).map(drop)
}

/// Returns nothing if pages of `program` can be collapsed from outside. Changes nothing.
///
/// # Errors
/// [`Refused`]
pub fn permitted(program: &Program) -> Result<(), Refused> {
    let pid = program.pid;
    page()?;
    program.may_collapse().map_err(|refused| match refused {
        NoCollapse::Denied(error) => Refused::Denied { pid, error },
        NoCollapse::Unknown(error) => Refused::TooOld(error),
        NoCollapse::Gone => Refused::Vanished(pid),
    })?;
    not_switched_off(pid)
}

fn not_switched_off(pid: u32) -> Result<(), Refused> {
    if machine::thp_disabled(Some(pid)) { Err(Refused::SwitchedOff(pid)) } else { Ok(()) }
}

fn page() -> Result<PageSize, Refused> {
    thp_page().ok_or(Refused::NoPages)
}

/// Measures what a collapse takes, from when it began.
enum Meter {
    /// The CPU time of the calling thread.
    Cpu(Duration),
    /// The time of the clock.
    Clock(Instant),
}

impl Meter {
    fn cpu() -> Meter {
        Meter::Cpu(cpu_time_of_thread())
    }

    fn spent(&self) -> Duration {
        match self {
            Meter::Cpu(began) => cpu_time_of_thread().saturating_sub(*began),
            Meter::Clock(began) => began.elapsed(),
        }
    }
}

/// What is done to one process.
struct Work<'a> {
    program: &'a Program,
    snapshot: &'a Snapshot,
    page: PageSize,
    meter: Meter,
    /// The kernel shows which blocks are huge (`PAGEMAP_SCAN`, Linux 6.7).
    scans: bool,
}

impl<'a> Work<'a> {
    fn new(program: &'a Program, snapshot: &'a Snapshot) -> Result<Work<'a>, Refused> {
        let any = Range { start: Addr(0), end: Addr(base_page().bytes()) };
        let scans = pagemap::huge_stretches(&program.pagemap, any, false, &mut |_| {}).is_ok();
        Ok(Work { program, snapshot, page: page()?, meter: Meter::cpu(), scans })
    }

    fn collapse(
        &self,
        parts: &[Part],
        budget: &Budget,
        how: &mut dyn FnMut(Range) -> io::Result<()>,
    ) -> Result<Collapsed, Refused> {
        let areas = areas(self.snapshot, parts);
        let (blocks, unseen) = self.blocks(&areas, budget)?;
        // Under a limit of a control group, memory that `spare` does not name is the program's.
        let limits = budget::Budget::new(&self.snapshot.machine, budget.spare);
        let added = budget.added.min(limits.machine()).min(limits.group());
        let Choice { blocks: chosen, mut left, by_heat } =
            choose(&areas, &blocks, self.page, self.snapshot.machine.base_page, added);
        left.extend(unseen);
        let mut result = Collapsed { by_heat, left, ..Collapsed::default() };
        // Before Linux 6.7 smaps alone shows what is huge, for all mappings at once.
        let before = if self.scans { 0 } else { self.huge_by_smaps(&areas)? };
        let tried = self.collapse_all(&chosen, added, budget, how, &mut result);
        if self.scans {
            for done in &tried {
                let mut huge = 0;
                let found = &mut |range: Range| huge += range.len();
                // The process may have ended meanwhile.
                let _ = pagemap::huge_stretches(&self.program.pagemap, done.range, false, found);
                result.huge += huge;
                result.added += if huge > 0 { done.adds } else { 0 };
            }
        } else {
            let after = self.huge_by_smaps(&areas).unwrap_or(before);
            result.huge = after.saturating_sub(before).min(result.tried);
            result.added = tried.iter().map(|done| done.adds).sum();
        }
        result.cpu = self.meter.spent();
        Ok(result)
    }

    /// Collapses the blocks in their order, which may add `rest` bytes, until something stops that. Returns
    /// those that were tried, with what each may have added.
    fn collapse_all(
        &self,
        chosen: &[Chosen],
        mut rest: u64,
        budget: &Budget,
        how: &mut dyn FnMut(Range) -> io::Result<()>,
        result: &mut Collapsed,
    ) -> Vec<Chosen> {
        let (mut tried, mut short) = (Vec::new(), 0);
        let began = self.meter.spent();
        for (i, block) in chosen.iter().enumerate() {
            let mut stop =
                |why| result.stopped = Some((why, chosen[i..].iter().map(|c| c.range.len()).sum()));
            let spent = self.meter.spent();
            let each = spent.saturating_sub(began) / u32::try_from(i.max(1)).unwrap_or(u32::MAX);
            if spent + each > budget.cpu {
                stop(Stopped::Cpu(budget.cpu));
                break;
            }
            if let Some(why) = (i % LIMIT_EVERY == 0).then(|| self.group_is_full()).flatten() {
                stop(why);
                break;
            }
            // The program may have released pages since the block was chosen.
            let Some(pages) = self.pages(block.range) else {
                stop(Stopped::Gone);
                break;
            };
            let adds = pages.adds(base_page());
            let why = pages.refusal().or((adds > rest).then_some(Why::OverBudget));
            if let Some(why) = why {
                result.left.push(Left { range: block.range, why, adds });
                continue;
            }
            match collapse_block(block.range, how) {
                Ok(()) => {
                    (rest, short) = (rest - adds, 0);
                    tried.push(Chosen { range: block.range, adds });
                    result.tried += block.range.len();
                    continue;
                }
                Err(Errno::ESRCH) => stop(Stopped::Gone),
                Err(errno) => {
                    result.tried += block.range.len();
                    *result.errors.entry(errno.to_string()).or_default() += 1;
                    short = if matches!(errno, Errno::ENOMEM | Errno::EBUSY) { short + 1 } else { 0 };
                    if short < MAX_SHORT {
                        continue;
                    }
                    let behind = chosen[i + 1..].iter().map(|c| c.range.len()).sum();
                    result.stopped = Some((Stopped::Short(errno.to_string()), behind));
                }
            }
            break;
        }
        tried
    }

    /// Returns the base pages of a block; `None` if the process no longer has this memory.
    fn pages(&self, block: Range) -> Option<Pages> {
        let pages = Pages::of(&pagemap::entries(&self.program.pagemap, block).ok()?);
        (pages.all * base_page().bytes() == block.len()).then_some(pages)
    }

    /// Returns why a limit of the process's control group allows no huge page more.
    fn group_is_full(&self) -> Option<Stopped> {
        let limit = machine::memory_limit_of(Process::new(self.program.pid))?;
        (limit.left < MIN_LEFT * self.page.bytes()).then_some(Stopped::Group(limit.source, limit.left))
    }

    /// Returns the blocks of `areas` that have pages, and what could not be read.
    fn blocks(&self, areas: &[Area], budget: &Budget) -> Result<(Vec<Block>, Vec<Left>), Refused> {
        let (pid, mut blocks, mut unseen) = (self.program.pid, Vec::new(), Vec::new());
        for area in areas.iter().filter(|area| area.refusal(self.page).is_none()) {
            let Some(inner) = area.range.inner(self.page) else { continue };
            let why = match self.meter.spent() > budget.cpu {
                true => Some(Why::NoTime),
                false => (!self.scans && inner.len() > MAX_READ).then_some(Why::Unseen),
            };
            if let Some(why) = why {
                unseen.push(Left { range: inner, why, adds: 0 });
                continue;
            }
            self.blocks_of(inner, &mut blocks).map_err(|error| match error.raw_os_error() {
                Some(libc::ESRCH) => Refused::Vanished(pid),
                _ => Refused::NoPagemap { pid, error },
            })?;
        }
        Ok((blocks, unseen))
    }

    /// Adds the blocks of `inner` that have pages.
    fn blocks_of(&self, inner: Range, blocks: &mut Vec<Block>) -> io::Result<()> {
        let pagemap = &self.program.pagemap;
        let starts_in = |r: Range| (r.start.0..r.end.0).step_by(self.page.bytes() as usize).map(Addr);
        let (mut huge, mut present) = (BTreeSet::new(), BTreeSet::new());
        if self.scans {
            let found = &mut |r: Range| huge.extend(r.inner(self.page).into_iter().flat_map(starts_in));
            pagemap::huge_stretches(pagemap, inner, false, found)?;
            let found = &mut |r: Range| {
                present.extend(starts_in(Range { start: r.start.align_down(self.page), ..r }));
            };
            pagemap::present_stretches(pagemap, inner, found)?;
        } else {
            present.extend(starts_in(inner));
        }
        for start in present {
            let range = Range::sized(start, self.page.bytes()).unwrap_or_default();
            let huge = huge.contains(&start);
            let pages = if huge { Some(Pages::default()) } else { self.pages(range) };
            let Some(pages) = pages else { return Err(io::Error::from_raw_os_error(libc::ESRCH)) };
            blocks.push(Block { start, huge, pages, heat: None });
        }
        Ok(())
    }

    /// Returns the bytes of all mappings of `areas` that are huge, by smaps.
    fn huge_by_smaps(&self, areas: &[Area]) -> Result<u64, ProcError> {
        let usages = Process::new(self.program.pid).smaps()?;
        let is_in = |range: Range| areas.iter().any(|area| area.range.intersect(range).is_some());
        Ok(usages.iter().filter(|u| is_in(u.mapping.range)).map(|u| u.anon_huge).sum())
    }
}

/// Collapses a block by `how`.
fn collapse_block(block: Range, how: &mut dyn FnMut(Range) -> io::Result<()>) -> Result<(), Errno> {
    let mut tries = 0;
    loop {
        tries += 1;
        match how(block).map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))) {
            Err(Errno::EAGAIN) if tries < TRIES => {}
            done => return done,
        }
    }
}

/// Returns the anonymous memory of `parts`. Adjacent parts of one mapping are one area.
fn areas(snapshot: &Snapshot, parts: &[Part]) -> Vec<Area> {
    let mut extents = snapshot.extents();
    extents.extend(snapshot.anonymous(&extents));
    extents.retain(|e: &Extent| parts.contains(&e.part) && !e.file_backed);
    extents.sort_by_key(|extent| extent.range.start);
    let mut attributes: BTreeMap<Addr, Vec<_>> = BTreeMap::new();
    for (range, attribute) in &snapshot.special {
        attributes.entry(range.start).or_default().push(*attribute);
    }
    let mut areas: Vec<Area> = Vec::new();
    for extent in extents {
        let Some(mapping) = snapshot.mapping_at(extent.range.start).filter(|m| !m.is_file()) else {
            continue;
        };
        match areas.last_mut() {
            Some(last) if last.range.end == extent.range.start && mapping.range.covers(last.range) => {
                last.range.end = extent.range.end;
            }
            _ => areas.push(Area {
                range: extent.range,
                prot: mapping.prot,
                shared: mapping.shared,
                attributes: attributes.get(&mapping.range.start).cloned().unwrap_or_default(),
            }),
        }
    }
    areas
}
