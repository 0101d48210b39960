// SPDX-License-Identifier: Apache-2.0
//! Unpacks compressed debug sections: `SHF_COMPRESSED` with zlib or zstd (System V ABI, "Section Compression"), and
//! `.zdebug_*`, which GNU tools wrote before that. The copy has them uncompressed.

use super::contents::New;
use super::refusal::Refusal;
use crate::align::tables::{LE, Section, Tables, has_bytes, in_memory};
use object::elf;
use object::read::elf::SectionHeader as _;
use std::io::Read;

/// How often as long as the file all that is unpacked may be. Debug information shrinks to a third by compression.
const MOST_TIMES: usize = 64;

/// Begins the name of a section that is compressed in the old form, and its bytes. The size follows, big-endian.
const OLD: (&str, &[u8]) = (".zdebug_", b"ZLIB");

enum Method {
    Zlib,
    Zstd,
}

/// A section that is compressed.
struct Packed<'a> {
    method: Method,
    /// Bytes without compression.
    size: u64,
    /// Alignment without compression.
    align: u64,
    bytes: &'a [u8],
}

/// Returns the sections that are compressed, unpacked.
pub(super) fn unpacked(bytes: &[u8], tables: &Tables) -> Result<Vec<New>, Refusal> {
    let mut left = most(bytes);
    let mut news = Vec::new();
    for (section, header) in tables.sections.iter().enumerate().filter(|(_, s)| has_bytes(s) && !in_memory(s))
    {
        let refused = |hint| Refusal::Section { name: tables.section_name(bytes, header), hint };
        let Some(packed) = packed(bytes, tables, header).map_err(refused)? else { continue };
        let size = usize::try_from(packed.size).ok().filter(|size| *size <= left);
        let size = size.ok_or_else(|| refused(", as it would be more than 64 times as long as the file"))?;
        left -= size;
        let plain = unpack(&packed, size).ok_or_else(|| refused(": it is not what its header states"))?;
        news.push(New { section, bytes: plain, unpacked: Some(packed.align) });
    }
    Ok(news)
}

/// Returns what is compressed in a section; `None` if it is not compressed.
///
/// # Errors
/// Says what is wrong with it.
fn packed<'a>(
    bytes: &'a [u8],
    tables: &Tables,
    section: &Section,
) -> Result<Option<Packed<'a>>, &'static str> {
    let range = usize::try_from(section.sh_offset(LE)).ok().zip(usize::try_from(section.sh_size(LE)).ok());
    let content = range.and_then(|(at, len)| bytes.get(at..at.checked_add(len)?)).unwrap_or_default();
    let word = |at: usize| content.get(at..).and_then(|rest| rest.first_chunk::<8>()).copied();
    let cut = ": it is cut off";
    if section.sh_flags(LE).0 & elf::SHF_COMPRESSED.0 != 0 {
        // ch_type and a reserved field, ch_size, ch_addralign
        let fields = (word(0), word(8), word(16), content.get(24..));
        let (Some([kind @ .., _, _, _, _]), Some(size), Some(align), Some(bytes)) = fields else {
            return Err(cut);
        };
        let method = match u32::from_le_bytes(kind) {
            1 => Method::Zlib,
            2 => Method::Zstd,
            _ => {
                return Err(
                    ": it is compressed in an unknown form; first: objcopy --decompress-debug-sections",
                );
            }
        };
        let [size, align] = [size, align].map(u64::from_le_bytes);
        return Ok(Some(Packed { method, size, align, bytes }));
    }
    if !tables.section_name(bytes, section).starts_with(OLD.0) {
        return Ok(None);
    }
    let parts = content.strip_prefix(OLD.1).and_then(|rest| rest.split_first_chunk::<8>());
    let (size, bytes) = parts.ok_or(cut)?;
    let (size, align) = (u64::from_be_bytes(*size), section.sh_addralign(LE));
    Ok(Some(Packed { method: Method::Zlib, size, align, bytes }))
}

/// Returns the bytes without compression, which must be `size`.
fn unpack(packed: &Packed, size: usize) -> Option<Vec<u8>> {
    let mut plain = Vec::new();
    plain.try_reserve_exact(size.checked_add(1)?).ok()?;
    // One byte more shows what is too long.
    let most = size as u64 + 1;
    match packed.method {
        Method::Zlib => {
            flate2::read::ZlibDecoder::new(packed.bytes).take(most).read_to_end(&mut plain).ok()?;
        }
        Method::Zstd => {
            // Linkers with threads write a row of frames.
            let mut left = packed.bytes;
            while !left.is_empty() && plain.len() <= size {
                let frame = ruzstd::decoding::StreamingDecoder::new(&mut left).ok()?;
                frame.take(most - plain.len() as u64).read_to_end(&mut plain).ok()?;
            }
        }
    }
    (plain.len() == size).then_some(plain)
}

/// Takes the `z` out of the names of sections that were compressed in the old form: the byte before the name becomes
/// its end, so that no length changes.
pub(super) fn rename(bytes: &mut [u8], tables: &mut Tables) -> Result<(), Refusal> {
    let names: Vec<String> = tables.sections.iter().map(|s| tables.section_name(bytes, s)).collect();
    let Some(strings) = tables.sections.get(usize::from(tables.file.e_shstrndx.get(LE).0)).copied() else {
        return Ok(());
    };
    let (table, _) = tables.section_table();
    for (i, name) in names.iter().enumerate().filter(|(_, name)| name.starts_with(OLD.0)) {
        let refused =
            || Refusal::Section { name: name.clone(), hint: ": another section has part of its name" };
        let at = tables.sections.get(i).map_or(0, |s| s.sh_name(LE));
        let shares = |(other, header): (usize, &Section)| {
            let start = header.sh_name(LE);
            let end = start.saturating_add(names.get(other).map_or(0, |name| name.len() as u32));
            other != i && start <= at && at < end
        };
        let last =
            usize::try_from(strings.sh_offset(LE)).ok().and_then(|start| start.checked_add(at as usize));
        let place = last.and_then(|start| bytes.get_mut(start..start.checked_add(2)?));
        let shared = tables.sections.iter().enumerate().any(shares);
        let (place, section) =
            place.zip(tables.sections.get_mut(i)).filter(|_| !shared).ok_or_else(refused)?;
        place.copy_from_slice(b"\0.");
        section.sh_name.set(LE, at + 1);
        let header = usize::try_from(table).ok().and_then(|at| at.checked_add(i * size_of::<Section>()));
        let header = header.and_then(|at| bytes.get_mut(at..at.checked_add(size_of::<Section>())?));
        header.ok_or_else(refused)?.copy_from_slice(object::pod::bytes_of(&*section));
    }
    Ok(())
}

/// Returns the most bytes that something in a file of this length is unpacked to.
pub(super) fn most(file: &[u8]) -> usize {
    file.len().saturating_mul(MOST_TIMES)
}
