// SPDX-License-Identifier: Apache-2.0
//! Writes the copy: all that holds an address, then the padding.

use super::moved::Moved;
use super::original::trap;
use super::plan::Way;
use super::refusal::Refusal;
use super::{debug, dynamic, headers, mend, notes, relocations, symbols};
use crate::align;
use object::elf;

/// Rewrites all that holds an address, and inserts the padding.
pub(super) fn write(mut moved: Moved) -> Result<Vec<u8>, Refusal> {
    if !matches!(moved.plan.way, Way::Stay { .. }) {
        let dynamic = dynamic::write(&mut moved)?;
        relocations::write(&mut moved, &dynamic)?;
        symbols::write(&mut moved, dynamic.get(elf::DT_SYMTAB))?;
        notes::write(&mut moved)?;
        debug::write(&mut moved)?;
        mend::write(&mut moved)?;
    }
    let start = headers::write(&mut moved)?;
    let size = |bytes: u64| usize::try_from(bytes).map_err(|_| too_large());
    for &(at, bytes) in &moved.plan.extents.gaps {
        let traps = vec![trap(moved.tables.headers.machine); size(bytes)?];
        moved.write("what lies between two segments", at, &traps)?;
    }
    let plan = moved.plan;
    let out = moved.into_bytes();
    let (mut all, mut from) = (Vec::new(), 0);
    for padding in &plan.extents.paddings {
        let (at, bytes) = (size(padding.at)?, size(padding.bytes)?);
        all.extend_from_slice(out.get(from..at).ok_or_else(too_large)?);
        all.resize(all.len().checked_add(bytes).ok_or_else(too_large)?, padding.fill);
        from = at;
    }
    all.extend_from_slice(out.get(from..).ok_or_else(too_large)?);
    // The new header of a file of which everything moved lies in the padding.
    all.get_mut(..start.len()).ok_or_else(too_large)?.copy_from_slice(&start);
    Ok(all)
}

fn too_large() -> Refusal {
    Refusal::Layout(align::Refusal::TooLarge)
}
