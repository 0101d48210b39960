// SPDX-License-Identifier: Apache-2.0
//! Reads files, or pieces of them, whole.

use crate::io::open;
use hugelift_core::addr::human_bytes;
use hugelift_core::elf::HEAD_BYTES;
use nix::fcntl::OFlag;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Reads a whole file of /proc or /sys, whose size stat(2) does not give.
pub fn read_whole(path: &Path) -> io::Result<Vec<u8>> {
    // Most are much smaller. The memory behind what was read is not touched, as each of its pages would cost a start a
    // page fault. `take` keeps the standard library from asking for the size.
    let mut bytes = Vec::with_capacity(16 << 10);
    open::with(path, OFlag::O_RDONLY)?.take(u64::MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads to the end, or up to a `limit` of bytes: a device may have no end.
///
/// # Errors
/// [`io::ErrorKind::FileTooLarge`] beyond the limit.
pub fn read_within(from: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let why = format!("it has more than {}", human_bytes(limit));
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

/// Reads the first [`HEAD_BYTES`] bytes of a file that was just opened, or all if there are fewer.
pub fn read_head(file: &File) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    file.take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// Reads `size` bytes of a file at `offset`.
pub fn read_at(file: &File, offset: u64, size: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; size];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

/// Returns the text of a file of /proc or /sys; `None` if it cannot be read, or is no text.
pub fn read_text(path: &Path) -> Option<String> {
    String::from_utf8(read_whole(path).ok()?).ok()
}
