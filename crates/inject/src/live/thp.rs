// SPDX-License-Identifier: Apache-2.0
//! Huge pages for copies in a process that has forbidden them to itself: a borrowed thread allows them while pages of a copy
//! are made, and forbids them again ([`hugelift_linux::machine::thp_switch`]).
//!
//! If hugelift is killed in between, the process keeps what was allowed: huge pages for memory that asks for them.

use super::Live;
use crate::calls::Calls as _;
use hugelift_core::addr::Range;
use hugelift_core::target::Fault;
use hugelift_linux::machine::thp_switch::Allowance;

const CALL: &str = "prctl(PR_SET_THP_DISABLE)";
/// How many times it is tried to forbid them again: each time a thread is waited for.
const TRIES: usize = 8;

impl Live {
    /// Allows huge pages while copies are made: the process has forbidden them to itself.
    pub fn allow_thp(&mut self, how: Option<Allowance>) {
        self.thp = how;
    }

    /// Makes pages of `range` while huge pages are allowed.
    pub(super) fn with_thp<R>(
        &mut self,
        range: Range,
        make: impl FnOnce(&mut Live) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        let Some(how) = self.thp else { return make(self) };
        self.switch_thp(range, how.allows())?;
        let made = make(self);
        let forbidden = (1..TRIES)
            .map(|_| self.switch_thp(range, Allowance::forbids()))
            .find(|done| !matches!(done, Err(Fault::Call { errno: libc::EBUSY, .. })));
        match forbidden.unwrap_or_else(|| self.switch_thp(range, Allowance::forbids())) {
            Ok(()) => made,
            Err(lost @ Fault::Lost(_)) => Err(lost),
            Err(fault) => Err(Fault::Lost(format!("transparent huge pages stay allowed for it: {fault}"))),
        }
    }

    fn switch_thp(&mut self, range: Range, args: [u64; 6]) -> Result<(), Fault> {
        self.call(CALL, range, libc::SYS_prctl, args).map(drop)
    }
}
