// SPDX-License-Identifier: Apache-2.0
//! Places in memory, each with a pointer to the next: a random cycle through all of them, so that the CPU
//! cannot prefetch.

use crate::memory::Mapping;

/// Bytes of a cache line. No supported CPU has shorter lines.
pub const LINE: usize = 64;

/// Distance between two places in an address range: the base page of most machines, so that the pattern is the
/// same on all kinds of pages.
pub const STRIDE: usize = 4096;

/// How the places are laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// One cache line in each 4 kB, at a random offset.
    Spread,
    /// The same number of adjacent cache lines: what the caches alone cost.
    Packed,
}

impl Layout {
    /// Returns the offset of place `i`.
    pub fn offset(self, i: usize) -> usize {
        match self {
            // The same line of every page would use a few sets of the caches only.
            Layout::Spread => {
                let line = fastrand::Rng::with_seed(i as u64).usize(..STRIDE / LINE);
                i * STRIDE + line * LINE
            }
            Layout::Packed => i * LINE,
        }
    }

    /// Returns the bytes that `places` places need.
    pub fn bytes(self, places: usize) -> usize {
        match self {
            Layout::Spread => places * STRIDE,
            Layout::Packed => places * LINE,
        }
    }
}

/// Returns the next place for each of `places` places: a cycle through all of them, with all cycles equally
/// likely (Sattolo 1986).
pub fn cycle(places: usize, random: &mut fastrand::Rng) -> Vec<u32> {
    let mut next: Vec<u32> = (0..u32::try_from(places).unwrap_or(u32::MAX)).collect();
    for i in (1..next.len()).rev() {
        next.swap(i, random.usize(..i));
    }
    next
}

/// Writes the cycle to memory as pointers.
///
/// # Panics
/// The mapping is shorter than the places need.
pub fn link(memory: &Mapping, layout: Layout, next: &[u32]) {
    assert!(layout.bytes(next.len()) <= memory.len(), "{} places in {} bytes", next.len(), memory.len());
    let start = memory.start();
    for (i, &to) in next.iter().enumerate() {
        // SAFETY: both places are inside the mapping, as asserted above, which is writable; they
        // are multiples of the line and so aligned.
        unsafe {
            let place = start.add(layout.offset(i)).cast::<*mut u8>();
            place.write_volatile(start.add(layout.offset(to as usize)));
        }
    }
}

/// Follows the pointers for `loads` loads, each of which depends on the one before. Returns the last place.
///
/// # Safety
/// `from` is a place of a cycle that [`link`] wrote, in memory that is still mapped and readable.
pub unsafe fn walk(from: *mut u8, loads: u64) -> *mut u8 {
    let mut place = from.cast::<*mut u8>();
    for _ in 0..loads {
        // SAFETY: by the caller's promise every place holds the address of another.
        place = unsafe { place.read_volatile() }.cast();
    }
    place.cast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Pages;

    #[test]
    fn one_cycle_through_all_places() {
        for places in [1, 2, 3, 100, 1000] {
            let next = cycle(places, &mut fastrand::Rng::with_seed(7));
            let mut seen = vec![false; places];
            let mut at = 0;
            for _ in 0..places {
                assert!(!std::mem::replace(&mut seen[at], true), "{places}: {at} twice");
                at = next[at] as usize;
            }
            assert_eq!(at, 0, "{places}");
        }
    }

    #[test]
    fn pointers_lead_where_the_cycle_does() {
        let memory = Mapping::populated(Pages::Small, (256 * STRIDE) as u64).unwrap();
        for layout in [Layout::Spread, Layout::Packed] {
            let next = cycle(256, &mut fastrand::Rng::with_seed(1));
            link(&memory, layout, &next);
            let start = memory.start().wrapping_add(layout.offset(0));
            // SAFETY: places that were just linked.
            let (one, all) = unsafe { (walk(start, 1), walk(start, 256)) };
            assert_eq!(one, memory.start().wrapping_add(layout.offset(next[0] as usize)));
            assert_eq!(all, start);
        }
    }

    #[test]
    fn a_place_stays_in_its_page() {
        for i in 0..1000 {
            assert_eq!(Layout::Spread.offset(i) / STRIDE, i);
            assert!(Layout::Spread.offset(i).is_multiple_of(LINE));
        }
    }
}
