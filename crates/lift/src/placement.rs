// SPDX-License-Identifier: Apache-2.0
//! At the exec stop: which base the executable should have, and the result of its move there.

use crate::job::LiftJob;
use hugelift_core::elf::Headers;
use hugelift_core::maps::Mapping;
use hugelift_core::plan::Plan;
use hugelift_core::policy::Backing;
use hugelift_core::relocate::base::{Base, congruent_residue};
use hugelift_core::relocate::{Image, Move, NotMoved};
use hugelift_core::skip::Reason;
use hugelift_core::target::Fault;
use hugelift_os::elf::file_snapshot::executable_headers;
use hugelift_os::launch::base::{Aim, Executable, Wanted, best, is_better};
use hugelift_os::machine::base_page;
use hugelift_os::proc::procfs::Process;
use std::path::PathBuf;

/// Where the executable is after the exec stop.
pub(crate) struct Placement {
    base: Outcome,
    /// At the base where the executable is, or will be, huge entries can map as much of its page cache as
    /// at any other base.
    pub(crate) fits_page_cache: bool,
}

/// Where the executable is, and why.
enum Outcome {
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
    name: PathBuf,
    headers: Headers,
    best: Option<Aim>,
}

impl LiftJob {
    /// Chooses the base for the program that the launcher is about to become. The exec stop is shorter if it is that
    /// program, which is checked there.
    pub(crate) fn foresee(&mut self) {
        let wanted = Wanted { policy: &self.policy, huge: self.huge };
        self.foreseen = self.path.as_deref().and_then(|path| {
            let (file, headers) = executable_headers(path).ok()?;
            let name = std::fs::canonicalize(&file).ok()?;
            let executable = Executable { file: &file, name: &name, headers: &headers, bias: None };
            let best = best(&executable, wanted);
            Some(Foreseen { name, headers, best })
        });
    }

    /// Chooses the base of the executable, and plans the move there if it has another one.
    pub(crate) fn choose_base(&mut self, pid: u32, image: &Image, mappings: &[Mapping]) -> Option<Move> {
        let name = image.pieces.first().map(|m| m.path.clone())?;
        let exe = Process::new(pid).path("exe");
        let wanted = Wanted { policy: &self.policy, huge: self.huge };
        let executable =
            Executable { file: &exe, name: &name, headers: &image.headers, bias: Some(image.bias) };
        let best = match self.foreseen.take() {
            Some(seen) if seen.name == name && seen.headers == image.headers => seen.best,
            _ => best(&executable, wanted),
        };
        let aim = best.filter(|aim| is_better(*aim, &executable, wanted));
        let plan = aim.map(|aim| (aim, image.plan(mappings, aim.base, base_page())));
        tracing::debug!(?aim, stays = ?plan.as_ref().map(|(_, p)| p.as_ref().err()), "the executable's base");
        let is_moved = matches!(plan, Some((_, Ok(_))));
        self.placement.fits_page_cache &= self.is_congruent(image) || is_moved;
        let (base, plan) = match plan {
            Some((aim, Ok(plan))) => (Outcome::Moved(aim), Some(plan)),
            // An executable that is linked for an address is there at each start: nothing to report.
            Some((_, Err(NotMoved::There | NotMoved::Fixed))) | None => (Outcome::Kept, None),
            Some((_, Err(why))) => (Outcome::NotMoved(why), None),
        };
        self.placement.base = base;
        plan
    }

    /// Returns whether huge entries can map as much of the page cache at the present base as at any
    /// other.
    fn is_congruent(&self, image: &Image) -> bool {
        let Some(huge) = self.huge.filter(|huge| self.policy.page.allows(*huge)) else { return true };
        let congruent = congruent_residue(&image.headers, &self.policy.parts, huge, base_page());
        congruent.is_none_or(|residue| Base { residue, page: huge }.is_of(image.bias))
    }
}
