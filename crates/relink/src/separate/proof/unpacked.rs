// SPDX-License-Identifier: Apache-2.0
//! What the copy has in the place of sections of the original that it does not have as they were: debug
//! information is not compressed in the copy, and the link to separate debug information names another file.

use super::file::{Elf, Section, u32_at, u64_at};
use super::flaw::Flaw;
use object::elf;
use std::io::Read;

/// A file with debug information.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DebugFile<'a> {
    /// Its name, without folders.
    pub name: &'a [u8],
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// What a section must be in the copy.
pub(super) struct Plain {
    /// Its number.
    number: usize,
    name: Vec<u8>,
    name_at: u32,
    flags: u64,
    align: u64,
    bytes: Vec<u8>,
}

impl Plain {
    /// Keeps all of a section but its bytes.
    fn of(number: usize, section: &Section, bytes: Vec<u8>) -> Plain {
        let (name, name_at) = (section.name.to_vec(), section.name_at);
        Plain { number, name, name_at, flags: section.flags, align: section.align, bytes }
    }
}

impl<'a> Elf<'a> {
    /// Returns the file as the copy must have it.
    pub fn with(mut self, plain: &'a [Plain]) -> Elf<'a> {
        for one in plain {
            let Some(section) = self.sections.get_mut(one.number) else { continue };
            section.name = &one.name;
            section.name_at = one.name_at;
            section.flags = one.flags;
            section.align = one.align;
            section.size = one.bytes.len() as u64;
            section.plain = Some(&one.bytes);
        }
        self
    }
}

/// Returns the sections that must differ in the copy, as the copy must have them. `link` is the file that a
/// `.gnu_debuglink` must name; `None` if it must name the same file as in the original.
pub(super) fn sections(file: &Elf, link: Option<DebugFile>) -> Result<Vec<Plain>, Flaw> {
    let mut all = Vec::new();
    let mut renamed = Vec::new();
    // As long as the file may be, 64 times: what says that it is more is hostile.
    let mut left = (file.bytes.len() as u64).saturating_mul(64);
    for (number, section) in file.sections.iter().enumerate().filter(|(_, s)| s.has_bytes() && !s.allocated())
    {
        let bytes = file.contents(section);
        let flaw = || Flaw::Undecided(format!("section {} cannot be unpacked", section.says()));
        if section.flags & elf::SHF_COMPRESSED.0 != 0 {
            let (kind, size, align) = (u32_at(bytes, 0), u64_at(bytes, 8), u64_at(bytes, 16));
            let (size, align) = size.zip(align).ok_or_else(flaw)?;
            left = left.checked_sub(size).ok_or_else(flaw)?;
            let packed = bytes.get(24..).ok_or_else(flaw)?;
            let plain = match kind {
                Some(1) => inflated(packed, size),
                Some(2) => zstd(packed, size),
                _ => None,
            };
            let mut plain = Plain::of(number, section, plain.ok_or_else(flaw)?);
            plain.flags &= !elf::SHF_COMPRESSED.0;
            plain.align = align;
            all.push(plain);
        } else if let Some(rest) = section.name.strip_prefix(b".zdebug") {
            let size = bytes.get(4..12).filter(|_| bytes.starts_with(b"ZLIB")).ok_or_else(flaw)?;
            let size = size.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
            left = left.checked_sub(size).ok_or_else(flaw)?;
            let plain = bytes.get(12..).and_then(|packed| inflated(packed, size)).ok_or_else(flaw)?;
            let mut plain = Plain::of(number, section, plain);
            plain.name = [b".debug", rest].concat();
            plain.name_at = section.name_at.checked_add(1).ok_or_else(flaw)?;
            renamed.push(section.name_at as usize);
            all.push(plain);
        } else if let (b".gnu_debuglink", Some(link)) = (section.name, link) {
            let mut bytes = [link.name, b"\0"].concat();
            while bytes.len() % 4 != 0 {
                bytes.push(0);
            }
            bytes.extend(crc(link.bytes).to_le_bytes());
            all.push(Plain::of(number, section, bytes));
        }
    }
    // ".zdebug" becomes the end of a name before it, and ".debug".
    let number = usize::from(file.header.e_shstrndx.get(object::LittleEndian).0);
    if let Some(section) = file.sections.get(number).filter(|_| !renamed.is_empty()) {
        let mut names = file.contents(section).to_vec();
        for at in renamed {
            let cut = || Flaw::Undecided("the names of sections cannot be read".into());
            names.get_mut(at..at + 2).ok_or_else(cut)?.copy_from_slice(b"\0.");
        }
        all.push(Plain::of(number, section, names));
    }
    Ok(all)
}

/// Reads all, which must be `size` bytes.
fn all(reader: impl Read, size: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(size.checked_add(1)?).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 == size).then_some(bytes)
}

fn inflated(packed: &[u8], size: u64) -> Option<Vec<u8>> {
    all(flate2::bufread::ZlibDecoder::new(packed), size)
}

fn zstd(packed: &[u8], size: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(size).ok()?];
    let written = ruzstd::decoding::FrameDecoder::new().decode_all(packed, &mut bytes).ok()?;
    (written == bytes.len()).then_some(bytes)
}

/// Unpacks what xz has made of an ELF file.
pub(super) fn xz(packed: &[u8], most: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    // With up to 128 MB of memory.
    let reader = lzma_rust2::XzReader::new_mem_limit(packed, true, 1 << 17);
    reader.take(most.checked_add(1)?).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= most).then_some(bytes)
}

/// Returns the CRC-32 of a file, as `.gnu_debuglink` states it.
fn crc(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    let table: [u32; 256] = std::array::from_fn(|byte| (0..8).fold(byte as u32, step));
    let next = |crc: u32, byte: &u8| table[usize::from(crc as u8 ^ *byte)] ^ crc >> 8;
    !bytes.iter().fold(!0, next)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_sum_of_known_bytes() {
        // The check value of CRC-32 (ISO-HDLC).
        assert_eq!(super::crc(b"123456789"), 0xcbf4_3926);
        assert_eq!(super::crc(b""), 0);
    }
}
