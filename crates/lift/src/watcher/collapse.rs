// SPDX-License-Identifier: Apache-2.0
//! Collapses the anonymous and shared memory of a running process into huge pages; [`hugelift_core::collapse`] decides which.
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

mod meter;
mod present;
mod refused;
#[cfg(test)]
mod tests;
mod turn;

pub use refused::Refused;

use crate::watcher::process::{NoCollapse, Program};
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::attribute::Attribute;
use hugelift_core::budget;
use hugelift_core::collapse::{
    Area, Block, Budget, Choice, Chosen, Collapsed, Left, Sharing, Stopped, Why, choose,
};
use hugelift_core::maps::Mapping;
use hugelift_core::snapshot::{Extent, Part, Snapshot};
use hugelift_linux::machine::{self, base_page, thp_page};
use hugelift_linux::proc::memory::MADV_COLLAPSE;
use hugelift_linux::proc::pagemap;
use hugelift_linux::proc::procfs::{ProcError, Process};
use hugelift_linux::proc::sharers::Sharers;
use hugelift_linux::proc::snapshot;
pub(crate) use meter::Meter;
use present::Present;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};
use turn::{Step, Turn};

/// So often all blocks that are still in use get another turn, after a pause. Of the shared memory of a busy PostgreSQL a fifth
/// needed it.
const ROUNDS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(5);
/// Without `PAGEMAP_SCAN` (before Linux 6.7) each page of an area is read. Larger areas are reservations, of
/// which little is present.
const MAX_READ: u64 = 16 << 30;
/// This part of the CPU time, or less, is for finding the processes that share memory.
const SHARERS: u32 = 10;
/// So much of an area is read before the CPU time that is left is checked again.
const PIECE: u64 = 1 << 30;

/// Collapses anonymous and shared memory of `parts` in process `pid` within `budget`, without the mappings that `except` lies in.
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
    Work { meter, ..Work::new(&program, &snapshot, parts)? }.collapse(budget, how)
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
    Work { meter: Meter::Clock(Instant::now()), ..Work::new(program, snapshot, parts)? }.collapse(budget, how)
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

/// What is done to one process.
struct Work<'a> {
    program: &'a Program,
    snapshot: &'a Snapshot,
    page: PageSize,
    meter: Meter,
    areas: Vec<Area>,
    present: Present<'a>,
}

impl<'a> Work<'a> {
    fn new(program: &'a Program, snapshot: &'a Snapshot, parts: &[Part]) -> Result<Work<'a>, Refused> {
        let any = Range { start: Addr(0), end: Addr(base_page().bytes()) };
        let scans = pagemap::huge_stretches(&program.pagemap, any, false, &mut |_| {}).is_ok();
        let (page, areas) = (page()?, areas(snapshot, parts));
        let present = Present::new(program, snapshot, &areas, page, scans);
        Ok(Work { program, snapshot, page, meter: Meter::cpu(), areas, present })
    }

    fn collapse(
        &self,
        budget: &Budget,
        how: &mut dyn FnMut(Range) -> io::Result<()>,
    ) -> Result<Collapsed, Refused> {
        let areas = &self.areas;
        let (blocks, unseen) = self.blocks(areas, budget)?;
        // Under a limit of a control group, memory that `spare` does not name is the program's.
        let limits = budget::Budget::new(&self.snapshot.machine, budget.spare);
        let added = budget.added.min(limits.machine()).min(limits.group());
        let Choice { blocks: chosen, mut left, by_heat } =
            choose(areas, &blocks, self.page, self.snapshot.machine.base_page, added);
        left.extend(unseen);
        let mut result = Collapsed { by_heat, left, ..Collapsed::default() };
        // Before Linux 6.7 smaps alone shows what is huge, for all mappings at once.
        let before = if self.present.scans { (0, 0) } else { self.huge_by_smaps(areas)? };
        let files: BTreeSet<_> = chosen.iter().filter_map(|block| self.present.file(block.range)).collect();
        let sharers =
            (!files.is_empty()).then(|| Sharers::of(self.program.pid, &files, budget.cpu / SHARERS));
        let tried = self.collapse_all(&chosen, added, &limits, budget, how, &mut result);
        if self.present.scans {
            for done in &tried {
                let mut huge = 0;
                let found = &mut |range: Range| huge += range.len();
                // The process may have ended meanwhile.
                let _ = pagemap::huge_stretches(&self.program.pagemap, done.range, false, found);
                result.huge += huge;
                result.shared += if self.present.file(done.range).is_some() { huge } else { 0 };
                result.added += if huge > 0 { done.adds } else { 0 };
            }
        } else {
            let after = self.huge_by_smaps(areas).unwrap_or(before);
            let more = |now: u64, before: u64| now.saturating_sub(before).min(result.tried);
            (result.huge, result.shared) =
                (more(after.0 + after.1, before.0 + before.1), more(after.1, before.1));
            result.added = tried.iter().map(|done| done.adds).sum();
        }
        result.tables =
            sharers.flatten().filter(|_| result.shared > 0).and_then(|sharers| sharers.compared());
        result.cpu = self.meter.spent();
        Ok(result)
    }

    /// Collapses the blocks in their order until something stops that. All of them may add `added` bytes. Returns the blocks
    /// that were tried, with the bytes that each may have added.
    fn collapse_all(
        &self,
        chosen: &[Chosen],
        added: u64,
        limits: &budget::Budget,
        budget: &Budget,
        how: &mut dyn FnMut(Range) -> io::Result<()>,
        result: &mut Collapsed,
    ) -> Vec<Chosen> {
        let mut turn = Turn {
            pid: self.program.pid,
            page: self.page,
            meter: &self.meter,
            present: &self.present,
            budget,
            how,
            began: self.meter.spent(),
            charge: limits.group(),
            left: None,
            count: 0,
            rest: added,
            short: 0,
            tried: Vec::new(),
            result,
        };
        let mut queue = chosen.to_vec();
        for round in 1..=ROUNDS {
            let mut again = Vec::new();
            for (i, block) in queue.iter().enumerate() {
                let bytes = |blocks: &[Chosen]| blocks.iter().map(|block| block.range.len()).sum::<u64>();
                match turn.collapse(*block, round == ROUNDS) {
                    Step::Done => {}
                    Step::Again => again.push(*block),
                    Step::Stop(why) => {
                        // One without memory was tried.
                        let next = i + usize::from(matches!(why, Stopped::Short(_)));
                        turn.result.stopped = Some((why, bytes(&queue[next..]) + bytes(&again)));
                        return turn.tried;
                    }
                }
            }
            if again.is_empty() {
                break;
            }
            queue = again;
            std::thread::sleep(PAUSE);
        }
        turn.tried
    }

    /// Returns the blocks of `areas` that have pages, and what could not be read.
    fn blocks(&self, areas: &[Area], budget: &Budget) -> Result<(Vec<Block>, Vec<Left>), Refused> {
        let (pid, mut blocks, mut unseen, mut seen) =
            (self.program.pid, Vec::new(), Vec::new(), BTreeSet::new());
        let huge = if self.present.scans { BTreeMap::new() } else { self.shared_by_smaps()? };
        for area in areas.iter().filter(|area| area.refusal(self.page).is_none()) {
            let Some(inner) = area.range.inner(self.page) else { continue };
            if huge.get(&area.range.start).is_some_and(|bytes| *bytes >= inner.len()) {
                unseen.push(Left { range: inner, why: Why::Huge, adds: 0 });
                continue;
            }
            if !self.present.scans && inner.len() > MAX_READ {
                unseen.push(Left { range: inner, why: Why::Unseen, adds: 0 });
                continue;
            }
            if self.present.is_mapped_often(inner) {
                unseen.push(Left { range: inner, why: Why::MappedOften, adds: 0 });
                continue;
            }
            let mut rest = inner;
            while !rest.is_empty() {
                if self.meter.spent() > budget.cpu {
                    unseen.push(Left { range: rest, why: Why::NoTime, adds: 0 });
                    break;
                }
                let piece = Range { end: rest.end.min(Addr(rest.start.0.saturating_add(PIECE))), ..rest };
                self.present.blocks(piece, &mut seen, &mut blocks).map_err(|error| {
                    match error.raw_os_error() {
                        Some(libc::ESRCH) => Refused::Vanished(pid),
                        _ => Refused::NoPagemap { pid, error },
                    }
                })?;
                rest.start = piece.end;
            }
        }
        Ok((blocks, unseen))
    }

    /// Returns the huge bytes of each mapping of shared memory, by smaps.
    fn shared_by_smaps(&self) -> Result<BTreeMap<Addr, u64>, ProcError> {
        let usages = Process::new(self.program.pid).smaps()?;
        Ok(usages.iter().map(|usage| (usage.mapping.range.start, usage.shmem_huge)).collect())
    }

    /// Returns the bytes of all mappings of `areas` that are huge, by smaps: anonymous, and shared memory.
    fn huge_by_smaps(&self, areas: &[Area]) -> Result<(u64, u64), ProcError> {
        let usages = Process::new(self.program.pid).smaps()?;
        let is_in = |range: Range| areas.iter().any(|area| area.range.intersect(range).is_some());
        let ours = usages.iter().filter(|u| is_in(u.mapping.range));
        Ok(ours.fold((0, 0), |(anon, shared), u| (anon + u.anon_huge, shared + u.shmem_huge)))
    }
}

/// Returns the anonymous and shared memory of `parts`. Adjacent parts of one mapping are one area.
pub(crate) fn areas(snapshot: &Snapshot, parts: &[Part]) -> Vec<Area> {
    let mut extents = snapshot.extents();
    extents.extend(snapshot.anonymous(&extents));
    extents.retain(|e: &Extent| parts.contains(&e.part) && !e.file_backed);
    extents.sort_by_key(|extent| extent.range.start);
    let mut attributes: BTreeMap<Addr, Vec<_>> = BTreeMap::new();
    for (range, attribute) in &snapshot.special {
        attributes.entry(range.start).or_default().push(*attribute);
    }
    let attributes = |mapping: &Mapping| attributes.get(&mapping.range.start).cloned().unwrap_or_default();
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
                sharing: if mapping.shared { Sharing::File } else { Sharing::Private },
                jit: extent.part == Part::Jit,
                attributes: attributes(mapping),
            }),
        }
    }
    let denied = machine::shmem_is_denied();
    let shared = snapshot.shared_memory().filter(|_| parts.contains(&Part::Shm)).map(|mapping| Area {
        range: mapping.range,
        prot: mapping.prot,
        jit: false,
        sharing: if denied { Sharing::Denied } else { Sharing::Memory(mapping.offset) },
        attributes: attributes(mapping),
    });
    areas.extend(shared);
    areas.sort_by_key(|area| area.range.start);
    areas
}
