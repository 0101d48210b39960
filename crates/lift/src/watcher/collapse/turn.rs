// SPDX-License-Identifier: Apache-2.0
//! The turn of each block: whether it is still worth a collapse, the call, and whether it ends the work.

use super::meter::Meter;
use super::present::Present;
use hugelift_core::addr::{PageSize, Range};
use hugelift_core::collapse::{Budget, Chosen, Collapsed, Left, Stopped, Why};
use hugelift_linux::machine::{self, base_page};
use hugelift_linux::proc::procfs::Process;
use nix::errno::Errno;
use std::io;
use std::time::Duration;

/// How many times a block is tried while the kernel returns EAGAIN: some of its pages are in use just now.
const TRIES: u32 = 3;
/// So much may be charged to a group for a moment.
const LATER: u64 = 8 << 20;
/// After this many blocks in a row for which the kernel has no memory, no other one is tried.
pub(super) const MAX_SHORT: u32 = 3;
/// The limit of the control group is read again after this many blocks.
const LIMIT_EVERY: u32 = 32;
/// A control group must leave this many huge pages. The old pages of a block are charged to it until the
/// new one is in place.
const MIN_LEFT: u64 = 4;
/// The collapse of the chosen blocks, one after the other.
pub(super) struct Turn<'a, 'b> {
    pub(super) pid: u32,
    pub(super) page: PageSize,
    pub(super) meter: &'a Meter,
    pub(super) present: &'a Present<'a>,
    pub(super) budget: &'a Budget,
    pub(super) how: &'b mut dyn FnMut(Range) -> io::Result<()>,
    /// What was spent before the first.
    pub(super) began: Duration,
    /// Bytes that may be charged anew to a limited control group.
    pub(super) charge: u64,
    /// The limit that left least before the first block of shared memory, and what it left.
    pub(super) left: Option<(String, u64)>,
    /// How many blocks had their turn.
    pub(super) count: u32,
    /// Bytes that the others may add.
    pub(super) rest: u64,
    /// For so many in a row the kernel had no memory.
    pub(super) short: u32,
    pub(super) tried: Vec<Chosen>,
    pub(super) result: &'b mut Collapsed,
}

/// What became of a block.
pub(super) enum Step {
    /// It is huge, or is left.
    Done,
    /// Some of its pages are in use just now.
    Again,
    /// Neither it nor another one is tried any more.
    Stop(Stopped),
}

impl Turn<'_, '_> {
    /// Returns why a limit of the process's control group allows no huge page more.
    fn group_is_full(&mut self, is_shared: bool) -> Option<Stopped> {
        let limit = machine::memory_limit_of(Process::new(self.pid))?;
        if is_shared {
            // Another group may become the one with least left.
            if self.left.as_ref().is_none_or(|(source, _)| *source != limit.source) {
                self.left = Some((limit.source.clone(), limit.left));
            }
            let first = self.left.as_ref().map_or(0, |(_, left)| *left);
            let charged = first.saturating_sub(limit.left);
            // The old pages of a block are given back a little later.
            if charged > self.charge.saturating_add(self.page.bytes().max(LATER)) {
                return Some(Stopped::Charged(limit.source, charged));
            }
        }
        (limit.left < MIN_LEFT * self.page.bytes()).then_some(Stopped::Group(limit.source, limit.left))
    }

    /// Collapses a block. `is_last`: it has no further turn.
    pub(super) fn collapse(&mut self, block: Chosen, is_last: bool) -> Step {
        let spent = self.meter.spent();
        let each = spent.saturating_sub(self.began) / self.count.max(1);
        if spent + each > self.budget.cpu {
            return Step::Stop(Stopped::Cpu(self.budget.cpu));
        }
        // The charge of shared memory may come from another group.
        let is_shared = self.present.file(block.range).is_some();
        let is_due = is_shared || self.count.is_multiple_of(LIMIT_EVERY);
        if let Some(why) = is_due.then(|| self.group_is_full(is_shared)).flatten() {
            return Step::Stop(why);
        }
        self.count += 1;
        // The program may have released pages since the block was chosen.
        let Some(pages) = self.present.pages(block.range) else { return Step::Stop(Stopped::Gone) };
        let adds = pages.adds(base_page());
        if let Some(why) = pages.refusal().or((adds > self.rest).then_some(Why::OverBudget)) {
            self.result.left.push(Left { range: block.range, why, adds });
            return Step::Done;
        }
        match collapse_block(block.range, self.how) {
            Ok(()) => {
                (self.rest, self.short) = (self.rest - adds, 0);
                self.tried.push(Chosen { range: block.range, adds });
            }
            Err(Errno::ESRCH) => return Step::Stop(Stopped::Gone),
            Err(Errno::EAGAIN) if !is_last => return Step::Again,
            Err(errno) => {
                *self.result.errors.entry(errno.to_string()).or_default() += 1;
                let is_short = matches!(errno, Errno::ENOMEM | Errno::EBUSY);
                self.short = if is_short { self.short + 1 } else { 0 };
                if self.short >= MAX_SHORT {
                    self.result.tried += block.range.len();
                    return Step::Stop(Stopped::Short(errno.to_string()));
                }
            }
        }
        self.result.tried += block.range.len();
        Step::Done
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
