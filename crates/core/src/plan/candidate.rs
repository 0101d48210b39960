// SPDX-License-Identifier: Apache-2.0
//! Which backings and page sizes this machine offers for an extent.

use super::size::usual_page;
use crate::addr::PageSize;
use crate::policy::{Backing, PageChoice, Policy};
use crate::skip::Reason;
use crate::snapshot::{Extent, Machine, Part, Snapshot, ThpOff};

/// A way to back a span, before its steps are known.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) backing: Backing,
    pub(super) page: PageSize,
    /// Without a copy: the memory is advised where it is.
    pub(super) in_place: bool,
}

impl Candidate {
    /// Returns whether `other` has the same backing and page, copied or not.
    pub(super) fn is_like(&self, other: &Candidate) -> bool {
        (self.backing, self.page) == (other.backing, other.page)
    }

    /// Returns whether it needs a private copy.
    pub(super) fn copies(&self) -> bool {
        !self.in_place && self.backing.is_anonymous()
    }
}

/// Returns whether `extent` is anonymous memory that the program writes to. It needs no copy to
/// become huge.
pub(super) fn stays_in_place(extent: &Extent) -> bool {
    matches!(extent.part, Part::Bss | Part::Heap | Part::Stack) && !extent.file_backed
}

/// Returns the candidates for `extent` on this machine, best first, and why the others are refused.
pub(super) fn candidates(
    snapshot: &Snapshot,
    policy: &Policy,
    extent: &Extent,
) -> (Vec<Candidate>, Vec<Reason>) {
    let machine = &snapshot.machine;
    let backings = if extent.part.is_writable() { &policy.data_backings } else { &policy.backings };
    let in_place = stays_in_place(extent);
    let (mut candidates, mut refusals) = (Vec::new(), Vec::new());
    let sizes = |backing| sizes(machine, policy.page, backing).into_iter().map(move |page| (backing, page));
    for (backing, page) in backings.iter().copied().flat_map(sizes) {
        let verdict = match backing {
            // The loader protects RELRO later, in base pages. The heap and the stack grow, and
            // the kernel no longer knows a heap whose mapping was replaced.
            Backing::Hugetlb if matches!(extent.part, Part::Relro | Part::Heap | Part::Stack) => {
                Err(Reason::NotFor(backing, extent.part))
            }
            Backing::Thp | Backing::Shared | Backing::Pagecache
                if machine.allows_thp && extent.part.is_writable() =>
            {
                Err(Reason::ThpOff(ThpOff::Process))
            }
            _ => offered(machine, backing, page),
        };
        let in_place = in_place && backing == Backing::Thp;
        match verdict.map(|page| Candidate { backing, page, in_place }) {
            Ok(candidate) if candidates.contains(&candidate) => {}
            Ok(candidate) => candidates.push(candidate),
            // Not worth reporting when the user has named other backings too.
            Err(_) if backing == Backing::Pagecache && policy.backings.len() > 1 => {}
            Err(reason) => refusals.push(reason),
        }
    }
    (candidates, refusals)
}

/// Returns the page sizes to try for `backing`, best first; `None` stands for the usual size of a
/// backing that has none here.
fn sizes(machine: &Machine, choice: PageChoice, backing: Backing) -> Vec<Option<PageSize>> {
    let usual = usual_page(machine, backing);
    let mixed = match (choice, backing) {
        (PageChoice::Usual, _) => return vec![usual],
        (PageChoice::Only(page), _) => return vec![Some(page)],
        // An empty pool adds nothing to the mix. The usual pool is tried even if it is empty, so
        // that its lack of pages is reported.
        (PageChoice::Mixed, Backing::Hugetlb) => {
            let stocked = machine.pools.iter().filter(|p| p.available() > 0 || Some(p.page) == usual);
            stocked.map(|p| Some(p.page)).collect()
        }
        (PageChoice::Mixed, Backing::Thp) => {
            usual.into_iter().chain(machine.folios.iter().copied()).map(Some).collect()
        }
        (PageChoice::Mixed, Backing::Pagecache | Backing::Shared) => vec![usual],
    };
    if mixed.is_empty() { vec![usual] } else { mixed }
}

/// Returns the page size if the machine offers it for `backing`, else why not. `None` asks for the
/// usual size.
fn offered(machine: &Machine, backing: Backing, page: Option<PageSize>) -> Result<PageSize, Reason> {
    if backing == Backing::Hugetlb {
        let page = page.or(machine.thp_page).unwrap_or(PageSize::MB2);
        let offered = machine.pools.iter().any(|p| p.page == page);
        return if offered { Ok(page) } else { Err(Reason::NoPool(page)) };
    }
    let usual = usual_page(machine, backing).ok_or(Reason::NoThp)?;
    let page = page.unwrap_or(usual);
    if page != usual && !(backing == Backing::Thp && machine.folios.contains(&page)) {
        return Err(Reason::NoSuchPage(backing, page));
    }
    match machine.thp_off {
        // The switch in /sys governs new folios. Existing ones are mapped huge whatever it says.
        Some(ThpOff::Never) if backing != Backing::Thp => Ok(page),
        // Smaller folios have switches of their own.
        Some(ThpOff::Never) if page != usual => Ok(page),
        Some(off) => Err(Reason::ThpOff(off)),
        None => Ok(page),
    }
}
