// SPDX-License-Identifier: Apache-2.0
//! Debug information (DWARF 2 to 5): finds each address in it, and writes its image.
//!
//! gimli reads; a reader that notes where each address was read says which bytes to change. Nothing changes its
//! length.

mod sections;
mod tables;
mod units;

use super::moved::Moved;
use super::refusal::Refusal;
use hugelift_core::addr::Addr;
use sections::{Found, Sections, Wrong};
use std::cell::RefCell;

/// The smallest address of code in an object at address 0. Linkers put smaller numbers (0, 1) in the place of
/// addresses of functions that they left out.
pub(super) const LEFT_OUT: u64 = 64;

/// Writes all addresses in debug information.
pub(super) fn write(moved: &mut Moved) -> Result<(), Refusal> {
    let found = RefCell::new(Vec::new());
    let sections = Sections::new(moved, &found)?;
    if sections.is_empty() {
        return Ok(());
    }
    let thread_local = units::read(&sections).map_err(|what| damaged(&sections, what))?;
    tables::read(&sections, &thread_local).map_err(|what| damaged(&sections, what))?;
    let mut found = found.into_inner();
    found.sort_unstable();
    found.dedup();
    for Found { at, address } in found {
        let left_out = !(LEFT_OUT..u64::MAX - 1).contains(&address);
        if left_out {
            continue;
        }
        let what = "debug information";
        let to = moved.plan.distances.image(address).ok_or(Refusal::Between {
            what,
            at: Addr(at),
            to: Addr(address),
        })?;
        moved.write(what, at, &to.to_le_bytes())?;
    }
    Ok(())
}

fn damaged(sections: &Sections, wrong: Wrong) -> Refusal {
    let at = sections.get(wrong.section).map_or(0, |(_, start)| start);
    Refusal::Debug { section: wrong.section, at: Addr(at), what: wrong.what }
}
