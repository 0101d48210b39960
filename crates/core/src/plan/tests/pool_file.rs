// SPDX-License-Identifier: Apache-2.0
//! Plans in which pages of the pool are those of a file.

use super::*;

#[test]
fn kernels_that_cannot_move_hugetlb_get_a_file() {
    let mut snapshot = program(TEXT);
    snapshot.machine.moves_hugetlb = false;
    let plan = plan(&snapshot, &on(&[Backing::Hugetlb]));
    let steps = &plan.spans[0].attempts[0].steps;
    assert_eq!(steps[0], Step::CreateFile { bytes: TEXT.len(), page: PAGE });
    assert!(matches!(steps.last(), Some(Step::Replace { range: TEXT, prot: Prot::RX, .. })));
}

#[test]
fn pool_pages_that_a_child_may_lose_are_pages_of_a_file_and_hold_nothing_that_is_written() {
    let with_base = |base: u64, mut snapshot: Snapshot| {
        snapshot.machine.base_page = PageSize::new(base).unwrap();
        snapshot
    };
    let of_text = |base| plan(&with_base(base, program(TEXT)), &on(&[Backing::Hugetlb])).spans;
    assert!(
        of_text(4096)[0].attempts[0]
            .steps
            .contains(&Step::Move { from: scratch_of(&of_text(4096)[0]), to: TEXT.start })
    );
    for base in [16 << 10, 64 << 10] {
        assert_eq!(of_text(base)[0].attempts[0].steps[0], Step::CreateFile { bytes: TEXT.len(), page: PAGE });
        let refused = plan(&with_base(base, writable()), &data_on(&[Backing::Hugetlb]));
        assert!(refused.spans.is_empty(), "{base}: {:?}", refused.spans);
        assert!(
            refused.skips.iter().any(|skip| skip.reason == Reason::LostAtFork(PAGE)),
            "{:?}",
            refused.skips
        );
    }
}

/// Returns where the copy of a span is made.
fn scratch_of(span: &Span) -> Range {
    let made = span.attempts[0].steps.iter().find_map(|step| match step {
        Step::Map { range, .. } => Some(*range),
        _ => None,
    });
    made.unwrap()
}
