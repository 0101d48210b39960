// SPDX-License-Identifier: Apache-2.0
//! How: the steps of one way, and where they may work undisturbed.

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

/// The steps that back `span` with pages of `page` by way of `scratch`.
pub(super) fn steps(
    machine: &Machine,
    backing: Backing,
    page: PageSize,
    span: Range,
    prot: Prot,
    scratch: Range,
    placement: Option<Placement>,
) -> Vec<Step> {
    let copy = Step::Copy { from: span, to: scratch.start };
    let protect = Step::Protect { range: scratch, prot };
    let place = Step::Move { from: scratch, to: span.start };
    let mut steps = match backing {
        Backing::Hugetlb if machine.moves_hugetlb => vec![
            Step::Map { range: scratch, hugetlb: Some(page) },
            Step::Populate { range: scratch, page },
            copy,
            protect,
            place,
        ],
        Backing::Hugetlb => vec![
            Step::CreateFile { bytes: span.len(), page },
            Step::MapFile { range: scratch },
            Step::Populate { range: scratch, page },
            copy,
            Step::Replace { range: span, prot, scratch: scratch.start },
        ],
        Backing::Pagecache => vec![Step::FaultIn { range: span }, Step::Verify { range: span }],
        Backing::Thp | Backing::Shared => {
            let mut steps = vec![
                Step::Map { range: scratch, hugetlb: None },
                Step::Advise { range: scratch },
                Step::Populate { range: scratch, page },
            ];
            // The kernel does not tell of smaller folios.
            if machine.thp_page == Some(page) {
                steps.push(Step::Verify { range: scratch });
            }
            steps.extend([copy, protect, place]);
            steps
        }
    };
    // Before the first page is made.
    let populate = steps.iter().position(|step| matches!(step, Step::Populate { .. }));
    if let (Some(placement), Some(at)) = (placement, populate) {
        steps.insert(at, Step::Bind { range: scratch, placement });
    }
    steps
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
/// from where the heap, the stack and the kernel's own choice of address grow to.
pub(super) fn scratch_for(snapshot: &Snapshot, bytes: u64, page: PageSize) -> Option<Range> {
    // Nothing below the first mapping: vm.mmap_min_addr is there.
    let gaps = snapshot.mappings.windows(2).filter_map(|w| Range::new(w[0].range.end, w[1].range.start));
    let user = gaps.filter(|g| g.end.0 < 1 << 63);
    let widest = user.filter_map(|g| g.inner(page)).max_by_key(|g| g.len())?;
    let spare = widest.len().checked_sub(bytes)?;
    Range::sized(Addr(widest.start.0 + spare / 2).align_down(page), bytes)
}

/// Free address space for the copy of `span`, which no other copy's overlaps: all of them are
/// mapped before the first is moved.
pub(super) fn scratch_for_stored(snapshot: &Snapshot, span: Range, page: PageSize) -> Option<Range> {
    let copies = &snapshot.stored.copies;
    let bytes = |copies: &[StoredCopy]| copies.iter().map(|c| c.range.len()).sum::<u64>();
    let index = copies.iter().position(|c| c.range.covers(span))?;
    let whole = scratch_for(snapshot, bytes(copies), page)?;
    Range::sized(whole.start.checked_add(bytes(&copies[..index]))?, span.len())
}
