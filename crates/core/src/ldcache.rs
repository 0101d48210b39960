// SPDX-License-Identifier: Apache-2.0
//! Reads `/etc/ld.so.cache` (ldconfig(8)), by which glibc finds the file of a shared object's name.
//!
//! ```text
//!   "glibc-ld.so.cache1.1" | nlibs | length of strings | flags | ... | nlibs entries | strings
//!   entry: flags, key, value, (unused), hwcap; key and value are offsets from the magic
//! ```
//! Older caches have a table of another format before the magic.

/// `flags` of a 64-bit x86 object for glibc.
pub const X86_64: i32 = 0x0303;
/// `flags` of a 64-bit Arm object for glibc.
pub const AARCH64: i32 = 0x0a03;

/// Why the bytes cannot be read as a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CacheError {
    /// The magic is missing.
    #[error("no glibc-ld.so.cache1.1 in it")]
    NoMagic,
    /// It was written on a machine of the other byte order.
    #[error("it is big-endian")]
    BigEndian,
    /// The header promises more entries than there are bytes.
    #[error("cut off: {entries} entries do not fit into {bytes} bytes")]
    CutOff {
        /// Number of entries in the header.
        entries: u32,
        /// Length of the cache.
        bytes: usize,
    },
}

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const OLD_MAGIC: &[u8] = b"ld.so-1.7.0";
const HEADER: usize = 48;
const ENTRY: usize = 24;

/// Returns the paths that a cache has for `name` (as in `DT_NEEDED`) and for the `flags` of a machine
/// and C library ([`X86_64`], [`AARCH64`]), in its order. Entries whose strings lie outside of it are
/// left out.
///
/// # Errors
/// Returns a [`CacheError`] if the bytes cannot be read.
pub fn lookup<'a>(bytes: &'a [u8], name: &[u8], flags: i32) -> Result<Vec<&'a [u8]>, CacheError> {
    let cache = find(bytes).ok_or(CacheError::NoMagic)?;
    let count = word(cache, 20).ok_or(CacheError::NoMagic)?;
    // The low two bits of the flags: 0 not stated, 2 little-endian, 3 big-endian.
    if cache.get(28).is_some_and(|f| f & 3 == 3) {
        return Err(CacheError::BigEndian);
    }
    let size = (count as usize).checked_mul(ENTRY).and_then(|n| n.checked_add(HEADER));
    let table = size.and_then(|end| cache.get(HEADER..end));
    let table = table.ok_or(CacheError::CutOff { entries: count, bytes: cache.len() })?;
    let path = |entry: &[u8]| {
        let is_wanted = word(entry, 0)?.cast_signed() == flags && is_string(cache, word(entry, 4)?, name);
        is_wanted.then(|| string(cache, word(entry, 8)?)).flatten()
    };
    Ok(table.chunks_exact(ENTRY).filter_map(path).collect())
}

/// Returns whether the string at `at` is `text`. Most differ in the first bytes, so it compares before
/// it searches for the end.
fn is_string(bytes: &[u8], at: u32, text: &[u8]) -> bool {
    let rest = usize::try_from(at).ok().and_then(|at| bytes.get(at..));
    rest.and_then(|rest| rest.strip_prefix(text)).is_some_and(|end| end.first() == Some(&0))
}

/// Returns the cache from its magic on: at the start, or behind a table of the old format.
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

    /// Builds a cache of the given entries.
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
    fn paths_in_order() {
        let bytes = cache(&[
            (X86_64, "libc.so.6", "/lib/hwcaps/libc.so.6"),
            (3, "libc.so.6", "/lib32/libc.so.6"),
            (X86_64, "libc.so", "/lib/libc.so"),
            (X86_64, "libc.so.6", "/lib/libc.so.6"),
        ]);
        let want = [&b"/lib/hwcaps/libc.so.6"[..], b"/lib/libc.so.6"];
        assert_eq!(lookup(&bytes, b"libc.so.6", X86_64).unwrap(), want);
        assert_eq!(lookup(&bytes, b"libc.so", X86_64).unwrap(), [b"/lib/libc.so"]);
        assert!(lookup(&bytes, b"libc.so.", X86_64).unwrap().is_empty());
        assert!(lookup(&bytes, b"libc.so.6", AARCH64).unwrap().is_empty());
        // Behind an empty table of the old format, strings count from the new magic.
        let mut old = b"ld.so-1.7.0\0".to_vec();
        old.extend(0u32.to_le_bytes());
        assert_eq!(lookup(&[old, bytes].concat(), b"libc.so.6", X86_64).unwrap(), want);
    }

    #[test]
    fn damage_is_an_error_or_a_shorter_list() {
        let found = |bytes: &[u8]| lookup(bytes, b"liba.so", X86_64).map(|paths| paths.len());
        let good = cache(&[(X86_64, "liba.so", "/lib/liba.so")]);
        assert_eq!(found(b""), Err(CacheError::NoMagic));
        assert_eq!(found(b"ld.so-1.7.0\0\xff\xff\xff\xff"), Err(CacheError::NoMagic));
        assert_eq!(found(&good[..50]), Err(CacheError::CutOff { entries: 1, bytes: 50 }));
        let mut many = good.clone();
        many[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(found(&many), Err(CacheError::CutOff { entries: u32::MAX, .. })));
        let mut big = good.clone();
        big[28] = 3;
        assert_eq!(found(&big), Err(CacheError::BigEndian));
        let mut outside = good.clone();
        outside[HEADER + 4..HEADER + 8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!((found(&good), found(&outside)), (Ok(1), Ok(0)));
        // No length makes it panic.
        for n in 0..good.len() {
            assert!(found(&good[..n]).is_ok_and(|paths| paths == 0) || found(&good[..n]).is_err());
        }
    }
}
