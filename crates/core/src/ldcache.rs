// SPDX-License-Identifier: Apache-2.0
//! `/etc/ld.so.cache` (ldconfig(8)): which file a shared object's name means to glibc.
//!
//! ```text
//!   "glibc-ld.so.cache1.1" | nlibs | length of strings | flags | ... | nlibs entries | strings
//!   entry: flags, key, value, (unused), hwcap; key and value are offsets from the magic
//! ```
//! Older caches have a table of another format before the magic.

/// One entry, as far as finding a file needs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// Machine and C library, [`X86_64`] or [`AARCH64`] for instance.
    pub flags: i32,
    /// Name, as in `DT_NEEDED`.
    pub name: &'a [u8],
    /// Path of the file.
    pub path: &'a [u8],
}

/// `flags` of a 64-bit x86 object for glibc.
pub const X86_64: i32 = 0x0303;
/// `flags` of a 64-bit Arm object for glibc.
pub const AARCH64: i32 = 0x0a03;

/// Why the bytes are no cache that can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CacheError {
    /// The magic is not there.
    #[error("no glibc-ld.so.cache1.1 in it")]
    NoMagic,
    /// Written on a machine of the other byte order.
    #[error("it is big-endian")]
    BigEndian,
    /// The header promises more entries than there are bytes.
    #[error("cut off: {entries} entries do not fit into {bytes} bytes")]
    CutOff {
        /// Entries promised.
        entries: u32,
        /// Bytes there.
        bytes: usize,
    },
}

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const OLD_MAGIC: &[u8] = b"ld.so-1.7.0";
const HEADER: usize = 48;
const ENTRY: usize = 24;

/// The entries of a cache, in its order. Entries whose strings lie outside of it are left out.
///
/// # Errors
/// [`CacheError`]
pub fn parse(bytes: &[u8]) -> Result<Vec<Entry<'_>>, CacheError> {
    let cache = find(bytes).ok_or(CacheError::NoMagic)?;
    let count = word(cache, 20).ok_or(CacheError::NoMagic)?;
    // The low two bits of the flags: 0 not told, 2 little-endian, 3 big-endian.
    if cache.get(28).is_some_and(|f| f & 3 == 3) {
        return Err(CacheError::BigEndian);
    }
    let size = (count as usize).checked_mul(ENTRY).and_then(|n| n.checked_add(HEADER));
    let table = size.and_then(|end| cache.get(HEADER..end));
    let table = table.ok_or(CacheError::CutOff { entries: count, bytes: cache.len() })?;
    let entry = |entry: &[u8]| {
        let name = string(cache, word(entry, 4)?)?;
        let path = string(cache, word(entry, 8)?)?;
        Some(Entry { flags: word(entry, 0)?.cast_signed(), name, path })
    };
    Ok(table.chunks_exact(ENTRY).filter_map(entry).collect())
}

/// The cache from its magic on: at the start, or behind a table of the old format.
fn find(bytes: &[u8]) -> Option<&[u8]> {
    if bytes.starts_with(MAGIC) {
        return Some(bytes);
    }
    if !bytes.starts_with(OLD_MAGIC) {
        return None;
    }
    // Magic padded to 12 bytes, a count, entries of 12 bytes; then aligned to 8.
    let count = word(bytes, 12)? as usize;
    let end = count.checked_mul(12)?.checked_add(16)?.checked_next_multiple_of(8)?;
    bytes.get(end..).filter(|rest| rest.starts_with(MAGIC))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn string(bytes: &[u8], at: u32) -> Option<&[u8]> {
    let rest = bytes.get(usize::try_from(at).ok()?..)?;
    let end = rest.iter().position(|&b| b == 0)?;
    rest.get(..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache of the given entries.
    fn cache(entries: &[(i32, &str, &str)]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend((entries.len() as u32).to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend([2, 0, 0, 0]);
        bytes.resize(HEADER, 0);
        let mut strings = Vec::new();
        let base = HEADER + ENTRY * entries.len();
        for (flags, name, path) in entries {
            bytes.extend(flags.to_le_bytes());
            for text in [name, path] {
                bytes.extend(((base + strings.len()) as u32).to_le_bytes());
                strings.extend(text.bytes().chain([0]));
            }
            bytes.extend([0; 12]);
        }
        [bytes, strings].concat()
    }

    #[test]
    fn entries_in_order() {
        let bytes = cache(&[(X86_64, "libc.so.6", "/lib/libc.so.6"), (3, "libc.so.6", "/lib32/libc.so.6")]);
        let want = [
            Entry { flags: X86_64, name: b"libc.so.6", path: b"/lib/libc.so.6" },
            Entry { flags: 3, name: b"libc.so.6", path: b"/lib32/libc.so.6" },
        ];
        assert_eq!(parse(&bytes).unwrap(), want);
        // Behind an empty table of the old format, strings count from the new magic.
        let mut old = b"ld.so-1.7.0\0".to_vec();
        old.extend(0u32.to_le_bytes());
        assert_eq!(parse(&[old, bytes].concat()).unwrap(), want);
    }

    #[test]
    fn damage_is_an_error_or_a_shorter_list() {
        let good = cache(&[(X86_64, "liba.so", "/lib/liba.so")]);
        assert_eq!(parse(b""), Err(CacheError::NoMagic));
        assert_eq!(parse(b"ld.so-1.7.0\0\xff\xff\xff\xff"), Err(CacheError::NoMagic));
        assert_eq!(parse(&good[..50]), Err(CacheError::CutOff { entries: 1, bytes: 50 }));
        let mut many = good.clone();
        many[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(parse(&many), Err(CacheError::CutOff { entries: u32::MAX, .. })));
        let mut big = good.clone();
        big[28] = 3;
        assert_eq!(parse(&big), Err(CacheError::BigEndian));
        let mut outside = good.clone();
        outside[HEADER + 4..HEADER + 8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(parse(&outside), Ok(vec![]));
        // No length of it makes it panic.
        for n in 0..good.len() {
            assert!(parse(&good[..n]).is_ok_and(|e| e.is_empty()) || parse(&good[..n]).is_err());
        }
    }
}
