// SPDX-License-Identifier: Apache-2.0
//! Addresses, ranges and page sizes: newtypes, so that an address of the target cannot be mistaken
//! for a pointer of this process, a length or a file offset.

use crate::quantity;
use std::fmt;
use std::str::FromStr;

/// A virtual address in the target, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addr(pub u64);

impl Addr {
    /// Returns the nearest multiple of `page` at or below this address.
    pub fn align_down(self, page: PageSize) -> Addr {
        Addr(self.0 & !(page.bytes() - 1))
    }

    /// Returns the nearest multiple of `page` at or above this address; `None` past the end of the
    /// address space.
    pub fn align_up(self, page: PageSize) -> Option<Addr> {
        let up = self.0.checked_add(page.bytes() - 1)?;
        Some(Addr(up).align_down(page))
    }

    /// Returns whether the address is a multiple of `page`.
    pub fn is_aligned(self, page: PageSize) -> bool {
        self.0 & (page.bytes() - 1) == 0
    }

    /// Returns this address plus `bytes`; `None` on overflow.
    pub fn checked_add(self, bytes: u64) -> Option<Addr> {
        self.0.checked_add(bytes).map(Addr)
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A half-open range of addresses, `start <= end`.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    /// The first address inside.
    pub start: Addr,
    /// The first address behind it.
    pub end: Addr,
}

impl Range {
    /// Returns the range `start..end`; `None` if `end` is below `start`.
    pub fn new(start: Addr, end: Addr) -> Option<Range> {
        (start <= end).then_some(Range { start, end })
    }

    /// Returns the range of `bytes` bytes from `start`; `None` if it does not fit below 2^64.
    pub fn sized(start: Addr, bytes: u64) -> Option<Range> {
        Some(Range { start, end: start.checked_add(bytes)? })
    }

    /// Returns the range moved down by `bytes`; wraps at 0.
    pub fn down(self, bytes: u64) -> Range {
        let down = |at: Addr| Addr(at.0.wrapping_sub(bytes));
        Range { start: down(self.start), end: down(self.end) }
    }

    /// Returns the length in bytes; 0 if `end` is below `start`.
    pub fn len(self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    /// Returns whether the range holds no byte.
    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// Returns whether `addr` lies inside.
    pub fn contains(self, addr: Addr) -> bool {
        self.start <= addr && addr < self.end
    }

    /// Returns whether every byte of `other` lies inside.
    pub fn covers(self, other: Range) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Returns the bytes that both ranges hold; `None` if there are none.
    pub fn intersect(self, other: Range) -> Option<Range> {
        let r = Range { start: self.start.max(other.start), end: self.end.min(other.end) };
        (r.start < r.end).then_some(r)
    }

    /// Returns the whole pages of `page` inside the range:
    ///
    /// ```text
    ///      start                          end
    ///        |-----------------------------|
    ///   |  page  |  page  |  page  |  page  |
    ///            [==== inner ======]
    /// ```
    ///
    /// `None` if there is none.
    pub fn inner(self, page: PageSize) -> Option<Range> {
        let start = self.start.align_up(page)?;
        let end = self.end.align_down(page);
        (start < end).then_some(Range { start, end })
    }

    /// Returns the pieces of this range that `other` does not hold.
    pub fn minus(self, other: Range) -> Vec<Range> {
        let Some(cut) = self.intersect(other) else {
            return if self.is_empty() { vec![] } else { vec![self] };
        };
        [Range { start: self.start, end: cut.start }, Range { start: cut.end, end: self.end }]
            .into_iter()
            .filter(|r| !r.is_empty())
            .collect()
    }
}

/// Returns what of `ranges` no one of `holes` covers.
pub fn without(ranges: Vec<Range>, holes: impl IntoIterator<Item = Range>) -> Vec<Range> {
    let cut = |left: Vec<Range>, hole: Range| left.into_iter().flat_map(|range| range.minus(hole)).collect();
    holes.into_iter().fold(ranges, cut)
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}-{:#x}", self.start.0, self.end.0)
    }
}

impl fmt::Debug for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A page size: a power of two of bytes, at least 4 kB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageSize(u64);

impl PageSize {
    /// 4 kB, the base page of x86-64.
    pub const SMALL: PageSize = PageSize(4 << 10);
    /// 2 MB, what a PMD entry maps with 4 kB base pages.
    pub const MB2: PageSize = PageSize(2 << 20);

    /// Returns the page size of `bytes` bytes; `None` unless it is a power of two of at least 4 kB.
    pub fn new(bytes: u64) -> Option<PageSize> {
        (bytes.is_power_of_two() && bytes >= 4096).then_some(PageSize(bytes))
    }

    /// Returns the size in bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }

    /// Returns the base-2 logarithm, as `MAP_HUGE_SHIFT` encodes it (mmap(2)).
    pub fn log2(self) -> u32 {
        self.0.trailing_zeros()
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&human_bytes(self.0))
    }
}

impl fmt::Debug for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PageSize {
    type Err = String;

    /// Reads `2M`, `2MB`, `2048k`, `1G`, `64kB` or plain bytes.
    fn from_str(s: &str) -> Result<Self, String> {
        quantity::bytes(s)
            .ok()
            .and_then(PageSize::new)
            .ok_or_else(|| format!("'{s}' is not a page size: a power of two, at least 4k, as in 2M"))
    }
}

/// Formats bytes for people, in the largest unit that is not above them, with at most one decimal.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB")];
    for (unit, name) in UNITS {
        if bytes >= unit {
            return if bytes.is_multiple_of(unit) {
                format!("{} {name}", bytes / unit)
            } else {
                // What is less than two huge pages must not read as two.
                let tenths = (bytes as f64 / unit as f64 * 10.0).round() as u64;
                let over = u64::from(
                    tenths.is_multiple_of(10)
                        && u128::from(tenths) * u128::from(unit) > u128::from(bytes) * 10,
                );
                let tenths = tenths - over;
                format!("{}.{} {name}", tenths / 10, tenths % 10)
            };
        }
    }
    format!("{bytes} B")
}

/// Returns a page size as users type it: `2M`, `1G`, `64k`.
pub fn size_word(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 && b % (1 << 30) == 0 => format!("{}G", b >> 30),
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{}M", b >> 20),
        b => format!("{}k", b >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_keeps_only_whole_pages() {
        let r = |a, b| Range::new(Addr(a), Addr(b)).unwrap();
        assert_eq!(r(0x1ff000, 0x601000).inner(PageSize::MB2), Some(r(0x200000, 0x600000)));
        assert_eq!(r(0x201000, 0x5ff000).inner(PageSize::MB2), None);
        assert_eq!(r(0x200000, 0x400000).inner(PageSize::MB2), Some(r(0x200000, 0x400000)));
        assert_eq!(r(u64::MAX - 5, u64::MAX).inner(PageSize::MB2), None);
    }

    #[test]
    fn minus_leaves_the_outside() {
        let r = |a, b| Range::new(Addr(a), Addr(b)).unwrap();
        assert_eq!(r(0, 10).minus(r(3, 5)), vec![r(0, 3), r(5, 10)]);
        assert_eq!(r(0, 10).minus(r(0, 10)), vec![]);
        assert_eq!(r(0, 10).minus(r(20, 30)), vec![r(0, 10)]);
    }

    #[test]
    fn page_sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("2M", 2 << 20),
            ("2MB", 2 << 20),
            ("1g", 1 << 30),
            ("64kB", 65536),
            ("2097152", 2 << 20),
            ("2MiB", 2 << 20),
        ] {
            assert_eq!(text.parse::<PageSize>().unwrap().bytes(), bytes, "{text}");
        }
        for bad in ["", "3M", "2X", "-2M", "1k", "2Mbb", "99999999999999999999G"] {
            assert!(bad.parse::<PageSize>().is_err(), "{bad}");
        }
    }

    #[test]
    fn bytes_for_people() {
        assert_eq!(human_bytes(2 << 20), "2 MB");
        assert_eq!(human_bytes(1536), "1.5 kB");
        assert_eq!(human_bytes(17), "17 B");
        assert_eq!(human_bytes((2 << 20) - 1), "1.9 MB");
        assert_eq!(human_bytes((2 << 20) + 1), "2.0 MB");
    }
}
