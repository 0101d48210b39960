// SPDX-License-Identifier: Apache-2.0
//! Where the executable is after the exec stop, and why.

use hugelift_core::elf::Headers;
use hugelift_core::plan::Plan;
use hugelift_core::policy::Backing;
use hugelift_core::relocate::NotMoved;
use hugelift_core::skip::Reason;
use hugelift_core::target::Fault;
use hugelift_pages::base::Aim;
use std::path::PathBuf;

/// Where the executable is after the exec stop.
pub(crate) struct Placement {
    pub(crate) base: Outcome,
    /// At the base where the executable is, or will be, huge entries can map as much of its page cache as
    /// at any other base.
    pub(crate) fits_page_cache: bool,
}

/// Where the executable is, and why.
pub(crate) enum Outcome {
    /// Where the kernel has mapped it: no other base is better, or it is linked for this one.
    Kept,
    /// Where the kernel has mapped it, although another base is better.
    NotMoved(NotMoved),
    /// At the base that was aimed for.
    Moved(Aim),
    /// Where the kernel has mapped it, because the move failed.
    Failed(Aim, Fault),
}

impl Default for Placement {
    fn default() -> Placement {
        Placement { base: Outcome::Kept, fits_page_cache: true }
    }
}

impl Placement {
    /// Records that the move failed. The executable stays, and its text with it: only the gain is lost.
    pub(crate) fn fail(&mut self, fault: &Fault) {
        if let Outcome::Moved(aim) = self.base {
            self.base = Outcome::Failed(aim, fault.clone());
        }
    }

    /// Returns why the move failed, if it did.
    pub(crate) fn fault(&self) -> Option<&Fault> {
        match &self.base {
            Outcome::Failed(_, fault) => Some(fault),
            Outcome::Kept | Outcome::NotMoved(_) | Outcome::Moved(_) => None,
        }
    }

    /// Returns why the executable is not at a better base, if there is a better one.
    pub(crate) fn why_not_moved(&self) -> Option<String> {
        match &self.base {
            Outcome::NotMoved(why) => Some(why.to_string()),
            Outcome::Failed(_, fault) => Some(fault.to_string()),
            Outcome::Kept | Outcome::Moved(_) => None,
        }
    }

    /// Gives a failed move as the reason for what it would have made huge: for the page cache all of the
    /// executable, for copies the largest end of a part, if the user can do something about it.
    pub(crate) fn blame(&self, plan: &mut Plan) {
        let Outcome::Failed(Aim { backing, .. }, fault) = &self.base else { return };
        let failed = Reason::Failed(*backing, fault.clone());
        let own = plan.skips.iter_mut().filter(|skip| skip.object == 0);
        if *backing == Backing::Pagecache {
            own.filter(|s| s.reason == Reason::NotPrimed).for_each(|skip| skip.reason = failed.clone());
        } else if fault.hint().is_some()
            && let Some(skip) = own.filter(|s| s.reason.is_of_an_edge()).max_by_key(|s| s.range.len())
        {
            skip.reason = failed;
        }
    }
}

/// The best base of an executable, chosen before its exec stop.
pub(crate) struct Foreseen {
    pub(crate) name: PathBuf,
    pub(crate) headers: Headers,
    pub(crate) best: Option<Aim>,
}
