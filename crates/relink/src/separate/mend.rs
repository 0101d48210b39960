// SPDX-License-Identifier: Apache-2.0
//! Writes the references of moved code to what stayed anew.

use super::moved::Moved;
use super::refusal::Refusal;
use hugelift_core::addr::Addr;

/// Writes the displacements of references to what stayed.
pub(super) fn write(moved: &mut Moved) -> Result<(), Refusal> {
    let plan = moved.plan;
    for r in &plan.mend {
        let refused = || Refusal::Reference { at: Addr(r.at), to: Addr(r.to) };
        let old = moved.at(r.field, 4).and_then(|bytes| bytes.try_into().ok()).ok_or_else(refused)?;
        let images = plan.distances.image(r.at).zip(plan.distances.image(r.to));
        let (at, to) = images.ok_or_else(refused)?;
        // The instruction moved by `at - r.at`, its target by `to - r.to`.
        let change = to.wrapping_sub(r.to).wrapping_sub(at.wrapping_sub(r.at)) as i64;
        let new =
            i64::from(i32::from_le_bytes(old)).checked_add(change).and_then(|new| i32::try_from(new).ok());
        let offset = moved.offset(r.field, 4).ok_or_else(refused)?;
        moved.write("a reference of code", offset, &new.ok_or_else(refused)?.to_le_bytes())?;
    }
    Ok(())
}
