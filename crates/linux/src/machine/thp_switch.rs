// SPDX-License-Identifier: Apache-2.0
//! The switch by which a process forbids transparent huge pages to itself: prctl(2), `PR_SET_THP_DISABLE`.
//!
//! While it is set the kernel maps nothing of the process by huge pages: no new memory, and no file whose bytes are in huge
//! folios. It collapses nothing either, and advice changes nothing. What huge pages map already stays as it is. So a copy
//! on huge pages can be made while they are allowed for a moment, and stays when they are forbidden again.

use super::sysfs::{self, ThpMode};
use crate::io::read::read_text;
use std::sync::OnceLock;

/// Memory with `MADV_HUGEPAGE` stays allowed (`PR_THP_DISABLE_EXCEPT_ADVISED`, Linux 6.18).
const EXCEPT_ADVISED: u64 = 1 << 1;

/// How transparent huge pages are allowed for a moment in a process that has forbidden them to itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allowance {
    /// To memory that asks for them.
    Advised,
    /// To all memory. The machine gives them only to memory that asks for them.
    All,
}

impl Allowance {
    /// Returns the allowance by which memory that does not ask for huge pages gets none; `None` if this machine has no such
    /// allowance.
    pub fn here() -> Option<Allowance> {
        match Allowance::is_except_advised_known() {
            true => Some(Allowance::Advised),
            false => (sysfs::thp(&read_text).0 != Some(ThpMode::Always)).then_some(Allowance::All),
        }
    }

    /// Returns whether a process can forbid huge pages except for memory that asks for them.
    pub fn is_except_advised_known() -> bool {
        static KNOWS: OnceLock<bool> = OnceLock::new();
        *KNOWS.get_or_init(knows_except_advised)
    }

    /// Returns the arguments of the prctl(2) that allows them.
    pub fn allows(self) -> [u64; 6] {
        match self {
            Allowance::Advised => arguments(true, EXCEPT_ADVISED),
            Allowance::All => arguments(false, 0),
        }
    }

    /// Returns the arguments of the prctl(2) that forbids them again.
    pub fn forbids() -> [u64; 6] {
        arguments(true, 0)
    }
}

fn arguments(is_off: bool, flags: u64) -> [u64; 6] {
    [libc::PR_SET_THP_DISABLE as u64, u64::from(is_off), flags, 0, 0, 0]
}

/// Tries it in this process, which gets back what it had.
fn knows_except_advised() -> bool {
    let prctl = |[option, second, third, ..]: [u64; 6]| {
        // SAFETY: prctl(2): these two options take no pointers.
        unsafe { libc::prctl(option as i32, second, third, 0, 0) }
    };
    let had = prctl([libc::PR_GET_THP_DISABLE as u64, 0, 0, 0, 0, 0]);
    let knows = prctl(Allowance::Advised.allows()) == 0;
    if knows && let Ok(had) = u64::try_from(had) {
        prctl(arguments(had != 0, had & EXCEPT_ADVISED));
    }
    knows
}
