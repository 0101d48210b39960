// SPDX-License-Identifier: Apache-2.0
//! What the threads of a process waited for, from the kernel's `struct taskstats` (include/uapi/linux/taskstats.h and
//! Documentation/accounting/delay-accounting.rst in Linux).
//!
//! Each version of the struct appends fields. Version 15 alone (Linux 6.14) put new ones between the others; version 16
//! took that back.

use serde::Serialize;

/// Waits of one kind.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Wait {
    /// How many there were.
    pub count: u64,
    /// How long they took, all together and in all threads.
    pub nanoseconds: u64,
}

/// What threads waited for. Kinds may overlap, so that their times are not added up, but for compaction and reclaim,
/// which follow each other.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Waits {
    /// Moving pages so that a huge page becomes free; `None` before Linux 5.17.
    pub compaction: Option<Wait>,
    /// Freeing pages, as there were none ("direct reclaim").
    pub reclaim: Wait,
    /// Reading swapped pages.
    pub swap_in: Wait,
    /// Reading pages of files that were dropped a short time before.
    pub thrashing: Wait,
    /// Copying a page at a write, as after fork(2); `None` before Linux 6.0.
    pub copies: Option<Wait>,
    /// Waits of any kind, also for disks and interrupts: none since the start of a thread means that nothing is counted.
    #[serde(skip)]
    pub any: u64,
}

/// Offsets of pairs of a count and a time in nanoseconds.
const BLOCK_IO: usize = 32;
const SWAP_IN: usize = 48;
const RECLAIM: usize = 312;
const THRASHING: usize = 328;
const COMPACTION: usize = 352;
const COPIES: usize = 400;
const INTERRUPTS: usize = 416;

/// The version with fields at other places.
const OTHER_PLACES: u16 = 15;

/// Reads the struct.
///
/// # Errors
/// Returns the version if it is unknown where its fields are: they are too few, or at other places.
pub fn parse(bytes: &[u8]) -> Result<Waits, u16> {
    let version = bytes.get(..2).map_or(0, |word| u16::from_ne_bytes([word[0], word[1]]));
    let word = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let wait = |at| Some(Wait { count: word(at)?, nanoseconds: word(at + 8)? });
    let since = |first: u16, at| if version >= first { wait(at) } else { None };
    let waits = || {
        let (compaction, copies) = (since(11, COMPACTION), since(13, COPIES));
        let (reclaim, swap_in, thrashing) = (wait(RECLAIM)?, wait(SWAP_IN)?, since(9, THRASHING)?);
        let other = [wait(BLOCK_IO), since(14, INTERRUPTS), compaction, copies];
        let all = [reclaim, swap_in, thrashing].into_iter().chain(other.into_iter().flatten());
        let any = all.fold(0_u64, |sum, wait| sum.saturating_add(wait.count));
        Some(Waits { compaction, reclaim, swap_in, thrashing, copies, any })
    };
    if version == OTHER_PLACES { Err(version) } else { waits().ok_or(version) }
}

impl Wait {
    /// Returns what came between `before` and this.
    fn since(self, before: Wait) -> Wait {
        Wait {
            count: self.count.saturating_sub(before.count),
            nanoseconds: self.nanoseconds.saturating_sub(before.nanoseconds),
        }
    }

    fn min(self, other: Wait) -> Wait {
        Wait { count: self.count.min(other.count), nanoseconds: self.nanoseconds.min(other.nanoseconds) }
    }
}

impl Waits {
    /// Returns what came between `before` and this.
    pub fn since(&self, before: &Waits) -> Waits {
        let any = self.any.saturating_sub(before.any);
        Waits { any, ..self.each(before, Wait::since) }
    }

    /// Returns the smaller of each figure. While a thread ends, the kernel counts it twice for a moment.
    #[must_use]
    pub fn min(&self, other: &Waits) -> Waits {
        Waits { any: self.any.min(other.any), ..self.each(other, Wait::min) }
    }

    fn each(&self, other: &Waits, of: impl Fn(Wait, Wait) -> Wait) -> Waits {
        let both = |a: Option<Wait>, b: Option<Wait>| Some(of(a?, b?));
        Waits {
            compaction: both(self.compaction, other.compaction),
            reclaim: of(self.reclaim, other.reclaim),
            swap_in: of(self.swap_in, other.swap_in),
            thrashing: of(self.thrashing, other.thrashing),
            copies: both(self.copies, other.copies),
            any: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A struct of `length` bytes, in which each word is its offset.
    fn bytes(version: u16, length: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..length as u64 / 8).flat_map(|word| (word * 8).to_ne_bytes()).collect();
        bytes[..2].copy_from_slice(&version.to_ne_bytes());
        bytes
    }

    fn at(offset: u64) -> Wait {
        Wait { count: offset, nanoseconds: offset + 8 }
    }

    #[test]
    fn issue_31_9_fields_are_where_each_version_has_them() {
        let new = parse(&bytes(16, 560)).expect("version 16");
        assert_eq!((new.compaction, new.copies), (Some(at(352)), Some(at(400))));
        assert_eq!((new.reclaim, new.swap_in, new.thrashing), (at(312), at(48), at(328)));
        assert_eq!(new.any, 352 + 400 + 312 + 48 + 328 + 32 + 416);
        let old = parse(&bytes(10, 352)).expect("version 10");
        assert_eq!((old.compaction, old.copies, old.reclaim), (None, None, at(312)));
        let middle = parse(&bytes(11, 368)).expect("version 11");
        assert_eq!((middle.compaction, middle.copies), (Some(at(352)), None));
    }

    #[test]
    fn issue_31_9_what_is_at_other_places_or_cut_is_refused() {
        assert_eq!(parse(&bytes(15, 560)), Err(15));
        assert_eq!(parse(&bytes(8, 328)), Err(8));
        assert_eq!(parse(&bytes(16, 336)), Err(16));
        assert_eq!((parse(&[]), parse(&[7])), (Err(0), Err(0)));
    }

    #[test]
    fn issue_31_9_differences() {
        let wait = |count| Wait { count, nanoseconds: count * 1000 };
        let before = Waits { compaction: Some(wait(5)), copies: Some(wait(9)), any: 14, ..Waits::default() };
        let now = Waits { compaction: Some(wait(7)), copies: Some(wait(8)), any: 20, ..Waits::default() };
        let new = now.since(&before);
        assert_eq!((new.compaction, new.copies, new.any), (Some(wait(2)), Some(wait(0)), 6));
        assert_eq!(now.min(&before).copies, Some(wait(8)));
        assert_eq!(now.since(&Waits::default()).compaction, None);
    }

    proptest! {
        #[test]
        fn issue_31_9_no_bytes_hurt(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = parse(&bytes).map(|waits| waits.since(&waits));
        }
    }
}
