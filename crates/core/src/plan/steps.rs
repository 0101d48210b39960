// SPDX-License-Identifier: Apache-2.0
//! How: the steps of one candidate, and where they may work undisturbed.

use super::Step;
use crate::addr::{Addr, PageSize, Range};
use crate::maps::Prot;
use crate::placement::Placement;
use crate::policy::Backing;
use crate::snapshot::{Machine, Snapshot, StoredCopy};
use crate::target::MapStored;

/// The steps that back anonymous memory where it is: with what it holds, and with what it will.
pub(super) fn steps_in_place(span: Range, placement: Option<Placement>) -> Vec<Step> {
    let bind = placement.map(|placement| Step::Bind { range: span, placement });
    bind.into_iter().chain([Step::Collapse { range: span }, Step::Advise { range: span }]).collect()
}

/// What is copied, and by way of what.
pub(super) struct Job<'a> {
    pub(super) span: Range,
    /// What of it is mapped.
    pub(super) held: &'a [Range],
    pub(super) prot: Prot,
    pub(super) scratch: Range,
    pub(super) placement: Option<Placement>,
}

/// The steps that back `job.span` with pages of `page`.
pub(super) fn steps(machine: &Machine, backing: Backing, page: PageSize, job: &Job) -> Vec<Step> {
    let Job { span, held, prot, scratch, placement } = *job;
    let copy = held.iter().map(|held| {
        let to = Addr(scratch.start.0 + (held.start.0 - span.start.0));
        Step::Copy { from: *held, to }
    });
    let protect = Step::Protect { range: scratch, prot };
    let place = Step::Move { from: scratch, to: span.start };
    // Before the first page is made.
    let bind = placement.map(|placement| Step::Bind { range: scratch, placement });
    let populate = Step::Populate { range: scratch, page };
    // The kernel does not tell of smaller folios.
    let verify = (machine.thp_page == Some(page)).then_some(Step::Verify { range: scratch });
    let (map, verify, behind) = match backing {
        Backing::Hugetlb if machine.moves_hugetlb => {
            (vec![Step::Map { range: scratch, hugetlb: Some(page) }], None, vec![protect, place])
        }
        Backing::Hugetlb => (
            vec![Step::CreateFile { bytes: span.len(), page }, Step::MapFile { range: scratch }],
            None,
            vec![Step::Replace { range: span, prot, scratch: scratch.start }],
        ),
        Backing::Pagecache => return vec![Step::FaultIn { range: span, page }, Step::Verify { range: span }],
        Backing::Thp | Backing::Shared => (
            vec![Step::Map { range: scratch, hugetlb: None }, Step::Advise { range: scratch }],
            verify,
            vec![protect, place],
        ),
    };
    map.into_iter().chain(bind).chain([populate]).chain(verify).chain(copy).chain(behind).collect()
}

/// The steps that put the store's copy of a span in its place, by way of `scratch`: what is
/// lacking shows there, and the program never is without its code.
pub(super) fn shared_steps(copy: StoredCopy, prot: Prot, scratch: Range) -> Vec<Step> {
    vec![
        Step::MapStored(MapStored { range: scratch, prot, entry: copy.entry, offset: copy.offset }),
        Step::Verify { range: scratch },
        Step::Move { from: scratch, to: copy.range.start },
    ]
}

/// Free address space for `bytes`, aligned to `page`: the middle of the widest gap, far
/// from where the heap, the stack and the kernel's own choice of address grow to, and at least
/// `margin` bytes from its ends.
pub(super) fn scratch_for(snapshot: &Snapshot, bytes: u64, page: PageSize, margin: u64) -> Option<Range> {
    // Nothing below the first mapping: vm.mmap_min_addr is there.
    let gaps = snapshot.mappings.windows(2).filter_map(|w| Range::new(w[0].range.end, w[1].range.start));
    let user = gaps.filter(|g| g.end.0 < 1 << 63);
    let within = |g: Range| Range::new(g.start.checked_add(margin)?, Addr(g.end.0.checked_sub(margin)?));
    let widest = user.filter_map(|g| within(g)?.inner(page)).max_by_key(|g| g.len())?;
    let spare = widest.len().checked_sub(bytes)?;
    Range::sized(Addr(widest.start.0 + spare / 2).align_down(page), bytes)
}

/// Free address space for the copy of `span`, which no other copy's overlaps: all of them are
/// mapped before the first is moved.
pub(super) fn scratch_for_stored(
    snapshot: &Snapshot,
    span: Range,
    page: PageSize,
    margin: u64,
) -> Option<Range> {
    let copies = &snapshot.stored.copies;
    let bytes = |copies: &[StoredCopy]| copies.iter().map(|c| c.range.len()).sum::<u64>();
    let index = copies.iter().position(|c| c.range.covers(span))?;
    let whole = scratch_for(snapshot, bytes(copies), page, margin)?;
    // Two spans may be of one copy.
    let inside = span.start.0 - copies[index].range.start.0;
    Range::sized(whole.start.checked_add(bytes(&copies[..index]) + inside)?, span.len())
}
