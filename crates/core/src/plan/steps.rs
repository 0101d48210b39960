// SPDX-License-Identifier: Apache-2.0
//! The steps of one candidate, and the scratch ranges that they work in.

use super::span::Step;
use crate::addr::{Addr, PageSize, Range};
use crate::maps::Prot;
use crate::placement::Placement;
use crate::policy::Backing;
use crate::snapshot::{Machine, Snapshot, StoredCopy};
use crate::target::MapStored;

/// Returns the steps that make anonymous memory huge in place: what has been touched, and what will be.
pub(super) fn steps_in_place(span: Range, placement: Option<Placement>) -> Vec<Step> {
    let bind = placement.map(|placement| Step::Bind { range: span, placement });
    bind.into_iter().chain([Step::Collapse { range: span }, Step::Advise { range: span }]).collect()
}

/// What is copied, and where the copy is prepared.
pub(super) struct Job<'a> {
    pub(super) span: Range,
    /// The mapped ranges in it.
    pub(super) held: &'a [Range],
    pub(super) prot: Prot,
    pub(super) scratch: Range,
    pub(super) placement: Option<Placement>,
}

/// Returns the steps that back `job.span` with pages of `page`.
pub(super) fn steps(machine: &Machine, backing: Backing, page: PageSize, job: &Job) -> Vec<Step> {
    let Job { span, held, prot, scratch, placement } = *job;
    let copy = held.iter().map(|held| {
        let to = Addr(scratch.start.0 + (held.start.0 - span.start.0));
        Step::Copy { from: *held, to }
    });
    let protect = Step::Protect { range: scratch, prot };
    let place = Step::Move { from: scratch, to: span.start };
    // The policy must be set before the first page is allocated.
    let bind = placement.map(|placement| Step::Bind { range: scratch, placement });
    let populate = Step::Populate { range: scratch, page };
    // smaps does not show smaller folios.
    let verify = (machine.thp_page == Some(page)).then_some(Step::Verify { range: scratch });
    let (map, verify, behind) = match backing {
        Backing::Hugetlb if machine.moves(page) => {
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

/// Returns the steps that put the store's copy in place of a span. It is mapped at `scratch` first: if
/// pages are lacking they are missed there, and the program is never without its code.
pub(super) fn shared_steps(copy: StoredCopy, prot: Prot, scratch: Range) -> Vec<Step> {
    vec![
        Step::MapStored(MapStored { range: scratch, prot, entry: copy.entry, offset: copy.offset }),
        Step::Verify { range: scratch },
        Step::Move { from: scratch, to: copy.range.start },
    ]
}

/// Returns free address space for `bytes`, aligned to `page`: in the middle of the widest gap, far
/// from where the heap, the stack and the kernel's mmap area grow to.
pub(super) fn scratch_for(widest: Range, bytes: u64, page: PageSize) -> Option<Range> {
    let spare = widest.len().checked_sub(bytes)?;
    Range::sized(Addr(widest.start.0 + spare / 2).align_down(page), bytes)
}

/// Returns the widest gap of the address space, in whole pages of `page`, less `margin` bytes at its ends.
pub(super) fn widest_gap(snapshot: &Snapshot, page: PageSize, margin: u64) -> Option<Range> {
    // Space below the first mapping is not used: vm.mmap_min_addr forbids some of it.
    let gaps = snapshot.mappings.windows(2).filter_map(|w| Range::new(w[0].range.end, w[1].range.start));
    let user = gaps.filter(|g| g.end.0 < 1 << 63);
    let within = |g: Range| Range::new(g.start.checked_add(margin)?, Addr(g.end.0.checked_sub(margin)?));
    user.filter_map(|g| within(g)?.inner(page)).max_by_key(|g| g.len())
}
