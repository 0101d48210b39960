// SPDX-License-Identifier: Apache-2.0
//! At the exec stop: which base the executable should have.

use crate::job::LiftJob;
use crate::placement::{Foreseen, Outcome};
use hugelift_core::maps::Mapping;
use hugelift_core::relocate::base::{Base, congruent_residue};
use hugelift_core::relocate::{Image, Move, NotMoved};
use hugelift_linux::elf::file_snapshot::executable_headers;
use hugelift_linux::machine::base_page;
use hugelift_linux::proc::procfs::Process;
use hugelift_pages::base::{Executable, Wanted, best, is_better};

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
