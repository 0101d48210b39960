// SPDX-License-Identifier: Apache-2.0
//! `.gnu_debugdata` (MiniDebugInfo): an ELF file with the symbols of functions, compressed by xz.

use super::contents::New;
use super::plan::Plan;
use super::refusal::Refusal;
use super::split::{self, MINI};
use super::unpack;
use crate::align::tables::{LE, Tables, has_bytes};
use object::read::elf::SectionHeader as _;
use std::io::{Read, Write};

/// The memory that the decoder may take, in kB. What xz -9 made needs 64 MB.
const MEMORY_KB: u32 = 128 << 10;

/// Returns the section with all addresses moved; `None` if there is none.
pub(super) fn moved(bytes: &[u8], tables: &Tables, plan: &Plan) -> Result<Option<New>, Refusal> {
    let mut sections = tables.sections.iter();
    let number = sections.position(|s| has_bytes(s) && tables.section_name(bytes, s) == MINI);
    let Some(number) = number else { return Ok(None) };
    let refused = |hint| Refusal::Section { name: MINI.into(), hint };
    let range = tables.sections.get(number).and_then(|s| {
        let start = usize::try_from(s.sh_offset(LE)).ok()?;
        Some(start..start.checked_add(usize::try_from(s.sh_size(LE)).ok()?)?)
    });
    let packed = range.and_then(|range| bytes.get(range)).unwrap_or_default();
    let plain = unpack_xz(packed, unpack::most(bytes));
    let plain =
        plain.ok_or_else(|| refused(": it is not what xz makes; objcopy -R .gnu_debugdata removes it"))?;
    let program =
        split::Program { tables, way: &plan.way, distances: &plan.distances, loads: plan.loads(tables) };
    let again = split::moved(&plain, &program)?;
    let packed = pack_xz(&again).ok_or_else(|| refused(": xz failed"))?;
    Ok(Some(New { section: number, bytes: packed, unpacked: None }))
}

/// Unpacks what xz(1) made, up to `most` bytes.
fn unpack_xz(packed: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut plain = Vec::new();
    let reader = lzma_rust2::XzReader::new_mem_limit(packed, true, MEMORY_KB);
    reader.take(most as u64 + 1).read_to_end(&mut plain).ok()?;
    (plain.len() <= most).then_some(plain)
}

/// Compresses as xz(1) does.
fn pack_xz(plain: &[u8]) -> Option<Vec<u8>> {
    let mut options = lzma_rust2::XzOptions::with_preset(6);
    // Each reader of xz knows this check.
    options.set_check_sum_type(lzma_rust2::CheckType::Crc32);
    let mut writer = lzma_rust2::XzWriter::new(Vec::new(), options).ok()?;
    writer.write_all(plain).ok()?;
    writer.finish().ok()
}
