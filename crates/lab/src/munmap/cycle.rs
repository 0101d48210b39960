// SPDX-License-Identifier: Apache-2.0
//! What a task does again and again: map 128 MB, touch some of it, unmap it.

use crate::memory::Pages;
use std::io;
use std::ptr;

/// Bytes of each mapping, those of will-it-scale's mmap1.
pub const BYTES: usize = 128 << 20;

/// What is touched of each mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    /// Nothing, as in will-it-scale's mmap1.
    None,
    /// The first page.
    First,
    /// Every page.
    All,
}

impl Touch {
    /// All of them.
    pub const ALL: [Touch; 3] = [Touch::None, Touch::First, Touch::All];

    /// As shown.
    pub fn name(self) -> &'static str {
        match self {
            Touch::None => "untouched",
            Touch::First => "first page",
            Touch::All => "all pages",
        }
    }
}

/// One kind of cycle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cycle {
    /// The pages that it maps.
    pub pages: Pages,
    /// What it touches of them.
    pub touch: Touch,
}

impl Cycle {
    /// Does it once. Allocates nothing, so that it may run in a child that fork(2) made.
    ///
    /// # Errors
    /// mmap(2) or munmap(2): no memory, an empty pool.
    pub fn run(self) -> io::Result<()> {
        let start = self.map()?;
        let step = match self.touch {
            Touch::None => 0,
            Touch::First => BYTES,
            // One write for each page that there can be at least; on huge pages the others are
            // cheap, and the same for all kinds.
            Touch::All => 4096,
        };
        if step > 0 {
            for at in (0..BYTES).step_by(step) {
                // SAFETY: inside the mapping made above, which is writable; nobody else knows it.
                unsafe { start.add(at).write_volatile(1) };
            }
        }
        // SAFETY: munmap(2) of the mapping made above.
        match unsafe { libc::munmap(start.cast(), BYTES) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn map(self) -> io::Result<*mut u8> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: mmap(2) at an address of the kernel's choice.
        let start = unsafe { libc::mmap(ptr::null_mut(), BYTES, prot, self.pages.flags(), -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if self.pages == Pages::Thp {
            // SAFETY: madvise(2) of the mapping made above. Whether the kernel follows is looked up
            // beforehand, not each time.
            unsafe { libc::madvise(start, BYTES, libc::MADV_HUGEPAGE) };
        }
        Ok(start.cast())
    }
}

/// Keeps transparent huge pages from the memory of the calling process, or lets it have them
/// (prctl(2), `PR_SET_THP_DISABLE`). Returns what was before.
pub fn without_thp(without: bool) -> bool {
    // SAFETY: prctl(2) with plain numbers.
    unsafe {
        let before = libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0);
        libc::prctl(libc::PR_SET_THP_DISABLE, libc::c_ulong::from(without), 0, 0, 0);
        before > 0
    }
}
