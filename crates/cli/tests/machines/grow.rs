// SPDX-License-Identifier: Apache-2.0
//! Makes a small victim (victims/vm_big.h) as large as huge pages require.
//!
//! ```text
//!   file   | headers, small segments | 64 kB | 64 kB |   =>  | ... | big text | big rodata |
//! ```
//!
//! The file is made longer, and the segments whose stated addresses are 1 GB or more get more of
//! it; most of it is a hole. The first 64 kB are the victim's own. Each further 64 kB start with a
//! copy of the segment's first bytes (in the text: its piece of code), and each 64 kB hold a
//! different number.

use crate::place::victim;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const STEP: u64 = 64 << 10;
const BIG: u64 = 0x4000_0000;
const PT_LOAD: u32 = 1;
const PF_X: u32 = 1;

/// A program of the wanted size. Removed when dropped.
pub struct Big {
    pub path: PathBuf,
    _dir: TempDir,
}

/// Makes a [`victim`] whose text holds three whole huge pages of `page` bytes, wherever it is
/// loaded, and whose read-only data holds two; in a new directory inside `parent`.
pub fn grow_in(parent: &Path, name: &str, page: u64) -> Big {
    grow_to(parent, name, [4 * page, 3 * page])
}

/// Like [`grow_in`], in the directory for temporary files.
pub fn grow(name: &str, page: u64) -> Big {
    grow_in(&std::env::temp_dir(), name, page)
}

/// Makes a [`victim`] with text and read-only data of these `sizes` in bytes, multiples of 64 kB.
pub fn grow_to(parent: &Path, name: &str, sizes: [u64; 2]) -> Big {
    grow_at(parent, name, sizes, 1 << 20)
}

/// Like [`grow_to`], but the big parts start at multiples of `align` in the file.
pub fn grow_at(parent: &Path, name: &str, [text, rodata]: [u64; 2], align: u64) -> Big {
    let dir = TempDir::with_prefix_in("machines-", parent).unwrap();
    let path = dir.path().join("big");
    let mut elf = fs::read(victim(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let (phoff, phnum) = (u64_at(&elf, 32) as usize, u16_at(&elf, 56) as usize);
    let old = elf.clone();
    let mut end = (elf.len() as u64).next_multiple_of(align);
    let mut pieces = Vec::new();
    for ph in (0..phnum).map(|i| phoff + 56 * i) {
        let (offset, vaddr) = (u64_at(&old, ph + 8) as usize, u64_at(&old, ph + 16));
        if u32_at(&old, ph) != PT_LOAD || vaddr < BIG {
            continue;
        }
        let code = u32_at(&old, ph + 4) & PF_X != 0;
        let bytes = if code { text } else { rodata };
        put(&mut elf, ph + 8, end);
        put(&mut elf, ph + 32, bytes);
        put(&mut elf, ph + 40, bytes);
        pieces.push((end, bytes, old[offset..offset + STEP as usize].to_vec()));
        end = (end + bytes).next_multiple_of(align);
    }
    assert_eq!(pieces.len(), 2, "{name} must have a big text and big read-only data");
    // The section headers would give the old offsets.
    put(&mut elf, 40, 0);
    elf[60..64].fill(0);
    let file = File::create(&path).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o755)).unwrap();
    file.set_len(end).unwrap();
    file.write_all_at(&elf, 0).unwrap();
    for (offset, bytes, mut piece) in pieces {
        for k in 0..bytes / STEP {
            piece[64..72].copy_from_slice(&(k + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
            file.write_all_at(&piece, offset + k * STEP).unwrap();
            piece.truncate(72);
        }
    }
    Big { path, _dir: dir }
}

fn bytes_at<const N: usize>(elf: &[u8], at: usize) -> [u8; N] {
    elf[at..at + N].try_into().unwrap()
}

fn u64_at(elf: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(elf, at))
}

fn u32_at(elf: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(elf, at))
}

fn u16_at(elf: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes_at(elf, at))
}

fn put(elf: &mut [u8], at: usize, value: u64) {
    elf[at..at + 8].copy_from_slice(&value.to_le_bytes());
}
