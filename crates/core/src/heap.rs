// SPDX-License-Identifier: Apache-2.0
//! Moves the start of the heap, which brk(2) manages, to the start of a huge page. Then its first page
//! can be huge too, and no huge page is shared with `.bss`.
//!
//! ```text
//!   .bss ====|       random distance       |start_brk
//!                                    |  page  |start_brk, rounded up
//! ```
//!
//! This is done before the program has run, while the heap is empty: the program sees one more random
//! address. The random bits within a huge page are lost.

use crate::addr::{Addr, PageSize, Range};
use crate::maps::Mapping;
use crate::relocate::{ExecStopped, Layout};
use crate::snapshot::overlapping;
use crate::target::Fault;

/// Returns `layout` with the empty heap at a multiple of `page`; `None` if it is at one already, is not
/// empty, or something is mapped in between.
pub fn aligned(layout: &Layout, mappings: &[Mapping], page: PageSize) -> Option<Layout> {
    let start = Addr(layout.start_brk).align_up(page).filter(|s| s.0 != layout.start_brk)?;
    // One page more must be free: a mapping right behind the new start would leave no heap.
    let passed = Range::new(Addr(layout.start_brk), start.checked_add(page.bytes())?)?;
    let free = layout.brk == layout.start_brk && overlapping(mappings, passed).is_empty();
    free.then(|| Layout { start_brk: start.0, brk: start.0, ..layout.clone() })
}

/// Moves the start of the heap of `target`, which is at its exec stop, to a multiple of `page`, if it
/// can. Returns whether it was moved.
///
/// # Errors
/// Returns the kernel's refusal. The heap then stays where it was.
pub fn align<T: ExecStopped>(
    target: &mut T,
    layout: &Layout,
    mappings: &[Mapping],
    page: PageSize,
) -> Result<bool, Fault> {
    match aligned(layout, mappings, page) {
        Some(new) => target.set_layout(&new).map(|()| true),
        None => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::plan::tests::{MB, anonymous, program, r};

    const PAGE: PageSize = PageSize::MB2;

    fn empty_at(brk: u64) -> Layout {
        Layout { start_brk: brk, brk, start_code: 7, ..Layout::default() }
    }

    #[test]
    fn rounded_up_where_there_is_room() {
        let mappings = [anonymous(r(MB, 2 * MB), ""), anonymous(r(16 * MB, 17 * MB), "")];
        let start =
            |brk| aligned(&empty_at(brk), &mappings, PAGE).map(|l| (l.start_brk, l.brk, l.start_code));
        assert_eq!(start(3 * MB), Some((4 * MB, 4 * MB, 7)));
        // Right behind .bss, as without ASLR.
        assert_eq!(start(2 * MB + 4096), Some((4 * MB, 4 * MB, 7)));
        assert_eq!(start(4 * MB), None);
        assert_eq!(start(13 * MB), Some((14 * MB, 14 * MB, 7)));
        assert_eq!(start(15 * MB), None, "no room is left for the heap");
        assert_eq!(start(u64::MAX - MB), None);
        let used = Layout { brk: 3 * MB + 4096, ..empty_at(3 * MB) };
        assert_eq!(aligned(&used, &mappings, PAGE), None);
    }

    #[test]
    fn a_refusal_changes_nothing() {
        let snapshot = program(r(2 * MB, 12 * MB));
        let mut model = Model::new(&snapshot);
        model.start.layout = empty_at(13 * MB);
        let (before, seen) = (model.start.layout.clone(), model.visible());
        model.fail_at = Some((0, 1));
        let fault = align(&mut model, &before, &snapshot.mappings, PAGE);
        assert!(matches!(fault, Err(Fault::Call { errno: 1, .. })), "{fault:?}");
        assert_eq!((&model.start.layout, model.visible()), (&before, seen.clone()));
        assert_eq!(align(&mut model, &before, &snapshot.mappings, PAGE), Ok(true));
        assert_eq!((model.start.layout.start_brk, model.visible()), (14 * MB, seen));
    }
}
