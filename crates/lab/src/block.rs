// SPDX-License-Identifier: Apache-2.0
//! Memory that the experiments copy, read and write to time it.

mod sum;

use crate::memory::{Mapping, Pages};
use hugelift_core::addr::{Addr, Range};
use hugelift_core::smaps::Usage;
use hugelift_linux::machine::{base_page, thp_page};
use hugelift_linux::proc::memory::MADV_COLLAPSE;
use hugelift_linux::proc::procfs::Process;
use std::io;
use std::ptr;

/// A mapping that only the methods of this value read and write.
#[derive(Debug)]
pub struct Block(Mapping);

impl Block {
    /// Maps at least `bytes` bytes and touches none of them.
    ///
    /// # Errors
    /// Those of [`Mapping::new`].
    pub fn new(pages: Pages, bytes: u64) -> io::Result<Block> {
        Mapping::new(pages, bytes).map(Block)
    }

    /// Maps a block and fills it with `byte`. Missing memory is an error here; at a later write it would be
    /// SIGBUS.
    ///
    /// # Errors
    /// Those of [`Mapping::populated`].
    pub fn filled(pages: Pages, bytes: u64, byte: u8) -> io::Result<Block> {
        let block = Block(Mapping::populated(pages, bytes)?);
        block.set_first(block.len(), byte);
        Ok(block)
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the kind of pages that was asked for.
    pub fn pages(&self) -> Pages {
        self.0.pages()
    }

    /// Returns its addresses.
    pub fn range(&self) -> Range {
        let start = self.0.start() as u64;
        Range { start: Addr(start), end: Addr(start + self.len() as u64) }
    }

    /// Returns what /proc/self/smaps shows of this block.
    ///
    /// # Errors
    /// smaps cannot be read, or does not show this memory.
    pub fn usage(&self) -> anyhow::Result<Usage> {
        let range = self.range();
        let found = Process::OWN.smaps()?.into_iter().find(|usage| usage.mapping.range == range);
        found.ok_or_else(|| {
            anyhow::anyhow!("/proc/self/smaps has no mapping {range}, which this process made")
        })
    }

    /// Keeps children of fork(2) from getting this memory.
    ///
    /// # Errors
    /// Those of madvise(2), `MADV_DONTFORK`.
    pub fn keep_from_children(&self) -> io::Result<()> {
        self.0.advise(libc::MADV_DONTFORK)
    }

    /// Fills the first `len` bytes, or all of it, by memset(3).
    pub fn set_first(&self, len: usize, byte: u8) {
        // SAFETY: these bytes are mapped, writable and private; no reference to them exists.
        unsafe { ptr::write_bytes(self.0.start(), byte, len.min(self.len())) }
    }

    /// Copies the first `len` bytes from another block, or as many as both have, by memcpy(3).
    pub fn copy_from(&self, from: &Block, len: usize) {
        assert!(self.0.start() != from.0.start(), "a block cannot be copied onto itself");
        let len = len.min(self.len()).min(from.len());
        // SAFETY: these bytes are mapped in both, two mappings do not overlap, and no reference to
        // either exists.
        unsafe { ptr::copy_nonoverlapping(from.0.start(), self.0.start(), len) }
    }

    /// Adds up the first `len` bytes, or all of it, as little-endian words of eight bytes. Zeros complete the
    /// last word.
    pub fn sum_first(&self, len: usize) -> u64 {
        // SAFETY: within the mapping and readable; nothing writes while the slice is read, since only this
        // thread has the block.
        sum::sum(unsafe { std::slice::from_raw_parts(self.0.start(), len.min(self.len())) })
    }

    /// Reads a byte of every base page.
    pub fn touch(&self) {
        let page = usize::try_from(base_page().bytes()).unwrap_or(4096);
        for offset in (0..self.len()).step_by(page) {
            self.read(offset);
        }
    }

    /// Reads the byte at `offset`. The compiler cannot leave the read out.
    #[inline]
    pub fn read(&self, offset: usize) -> u8 {
        assert!(offset < self.len());
        // SAFETY: within the mapping, readable; no reference to it exists.
        unsafe { self.0.start().add(offset).read_volatile() }
    }

    /// Writes a byte at `offset`. The compiler cannot leave the write out.
    #[inline]
    pub fn write(&self, offset: usize, byte: u8) {
        assert!(offset < self.len());
        // SAFETY: within the mapping, writable; no reference to it exists.
        unsafe { self.0.start().add(offset).write_volatile(byte) }
    }

    /// Stores a number at `index`, with the block as an array of numbers.
    #[inline]
    pub fn store(&self, index: usize, number: u32) {
        assert!(index < self.len() / size_of::<u32>());
        // SAFETY: within the mapping, writable, and aligned, since the mapping begins at a page; no
        // reference to it exists.
        unsafe { self.0.start().cast::<u32>().add(index).write(number) }
    }

    /// Returns the first `count` numbers, or as many as fit, with the block as an array of numbers.
    pub fn numbers(&self, count: usize) -> Vec<u32> {
        let count = count.min(self.len() / size_of::<u32>());
        // SAFETY: within the mapping, readable and aligned; nothing writes while the slice is read,
        // since only this thread has the block.
        unsafe { std::slice::from_raw_parts(self.0.start().cast::<u32>(), count) }.to_vec()
    }

    /// Collapses small pages into huge ones where that is possible. Returns how many huge pages the kernel
    /// refused.
    ///
    /// # Errors
    /// EINVAL of `MADV_COLLAPSE` for the first huge page: the kernel is older than 6.1.
    pub fn collapse(&self) -> io::Result<usize> {
        let huge = usize::try_from(thp_page().unwrap_or_else(base_page).bytes()).map_err(io::Error::other)?;
        let mut refused = 0;
        for offset in (0..self.len()).step_by(huge) {
            let len = huge.min(self.len() - offset);
            // SAFETY: madvise(2) of our own memory; the advice changes no content.
            let done = unsafe { libc::madvise(self.0.start().add(offset).cast(), len, MADV_COLLAPSE) };
            if done != 0 {
                let error = io::Error::last_os_error();
                if offset == 0 && error.raw_os_error() == Some(libc::EINVAL) {
                    return Err(error);
                }
                refused += 1;
            }
        }
        Ok(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_of_a_block() {
        let one = Block::new(Pages::Small, 6 << 20).expect("6 MB");
        assert_eq!((one.len(), one.usage().expect("smaps").rss), (6 << 20, 0));
        let two = Block::filled(Pages::Small, 2 << 20, 7).expect("2 MB");
        assert_eq!(two.usage().expect("smaps").rss, 2 << 20);
        one.copy_from(&two, usize::MAX);
        assert_eq!((one.read((2 << 20) - 1), one.usage().expect("smaps").rss), (7, 2 << 20));
        one.store(3, 0x0102_0304);
        assert_eq!(one.numbers(4), [0x0707_0707, 0x0707_0707, 0x0707_0707, 0x0102_0304]);
        one.write(12, 9);
        assert_eq!(one.numbers(4)[3].to_ne_bytes()[0], 9);
        let word = u64::from_ne_bytes([7; 8]);
        assert_eq!((two.sum_first(24), two.sum_first(usize::MAX)), (word * 3, word.wrapping_mul(1 << 18)));
        assert_eq!(two.sum_first(9), word + 7);
    }

    #[test]
    #[should_panic(expected = "offset < self.len()")]
    fn nothing_is_read_beyond_the_end() {
        Block::new(Pages::Small, 4096).expect("a page").read(4096);
    }

    #[test]
    fn small_pages_are_joined() {
        let Ok(block) = Block::new(Pages::Thp, 4 << 20) else { return };
        // At the first touch the kernel gives a huge page, or small ones.
        block.touch();
        block.set_first(block.len(), 1);
        if block.collapse().is_ok_and(|refused| refused == 0) {
            assert_eq!(block.usage().expect("smaps").anon_huge, 4 << 20);
        }
    }
}
