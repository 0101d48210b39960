// SPDX-License-Identifier: Apache-2.0
//! Page frames, and which of them were used since they were marked idle
//! (Documentation/admin-guide/mm/{pagemap,idle_page_tracking}.rst in Linux).
//!
//! The bitmap has a bit for each frame. Those of a folio of several pages are one: the bit of its first frame.

use super::count::Seen;

/// Frames of a word of the bitmap.
const FRAMES: u64 = 64;

/// Returns the frame of an entry of `/proc/PID/pagemap`; `None` if no page is present. The frame is 0 where the kernel
/// hides it.
pub fn frame(entry: u64) -> Option<u64> {
    const PRESENT: u64 = 1 << 63;
    const FRAME: u64 = (1 << 55) - 1;
    (entry & PRESENT != 0).then_some(entry & FRAME)
}

/// What `/proc/kpageflags` says of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flags(pub u64);

impl Flags {
    /// Returns whether the kernel can reclaim it: only such frames can be marked.
    pub fn is_markable(self) -> bool {
        self.0 & 1 << 5 != 0
    }

    /// Returns whether it is the first frame of a folio of several.
    pub fn is_head(self) -> bool {
        self.0 & 1 << 15 != 0
    }

    /// Returns whether it is a further frame of a folio.
    pub fn is_tail(self) -> bool {
        self.0 & 1 << 16 != 0
    }
}

/// Returns the first frame of the folio that a frame is in. Folios are aligned to their size, so that it is the first one
/// below that is a head, at the multiples of 2, 4, 8 and so on. `None` if there is none, because the folio was split
/// meanwhile.
pub fn head(frame: u64, flags: impl Fn(u64) -> Option<Flags>) -> Option<u64> {
    if !flags(frame)?.is_tail() {
        return Some(frame);
    }
    // The largest folios have 1 GB.
    (1..=18).map(|order| frame >> order << order).find(|below| flags(*below).is_some_and(Flags::is_head))
}

/// Returns the words of the bitmap that these frames are in, with their bits. The frames are sorted.
pub fn words(frames: &[u64]) -> Vec<(u64, u64)> {
    let mut words: Vec<(u64, u64)> = Vec::new();
    for frame in frames {
        let (word, bit) = (frame / FRAMES, 1 << (frame % FRAMES));
        match words.last_mut() {
            Some((last, bits)) if *last == word => *bits |= bit,
            _ => words.push((word, bit)),
        }
    }
    words
}

/// Returns the frames of `bits` of the word `word`.
pub fn frames_of(word: u64, bits: u64) -> impl Iterator<Item = u64> {
    (0..FRAMES).filter(move |bit| bits & 1 << bit != 0).map(move |bit| word.saturating_mul(FRAMES) + bit)
}

/// What became of a frame that was marked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It is still marked.
    Idle,
    /// It was touched.
    Touched,
    /// It could not be marked.
    Unknown,
}

/// Returns what is seen of a piece, from its entries at the beginning and at the end. `state` knows the frames of the
/// beginning. A page that was not there before was touched: the kernel made it present for that. What has another frame was
/// moved or written to, which nothing tells apart, so it is unknown.
pub fn seen(before: &[u64], after: &[u64], page: u64, state: impl Fn(u64) -> State) -> Seen {
    let mut seen = Seen::default();
    for (i, now) in after.iter().enumerate() {
        let Some(now) = frame(*now) else { continue };
        let state = match before.get(i).copied().and_then(frame) {
            None => State::Touched,
            Some(then) if then == now => state(now),
            Some(_) => State::Unknown,
        };
        seen.resident += page;
        seen.watched += if state == State::Unknown { 0 } else { page };
        seen.touched += if state == State::Touched { page } else { 0 };
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HERE: u64 = 1 << 63;

    #[test]
    fn issue_31_2_pages_that_are_new_were_touched() {
        let before = [HERE | 7, 0, HERE | 8, HERE | 9, HERE | 3];
        let after = [HERE | 7, HERE | 5, HERE | 6, HERE | 9, 0, HERE | 1];
        let state = |frame| if frame == 7 { State::Idle } else { State::Touched };
        let seen = seen(&before, &after, 4096, state);
        assert_eq!(seen, Seen { resident: 5 << 12, watched: 4 << 12, touched: 3 << 12, samples: None });
        assert_eq!((frame(HERE | 1 << 61), frame(42)), (Some(0), None));
    }

    #[test]
    fn issue_31_2_the_head_of_a_folio() {
        let (head_flag, tail) = (Flags(1 << 15 | 1 << 5), Flags(1 << 16));
        // 512..1024 is one folio, 1024..1028 another one.
        let flags = |frame: u64| match frame {
            512 | 1024 => Some(head_flag),
            513..=1023 | 1025..=1027 => Some(tail),
            _ => Some(Flags(0)),
        };
        for (frame, want) in [(512, 512), (513, 512), (1023, 512), (1024, 1024), (1027, 1024), (3, 3)] {
            assert_eq!(head(frame, flags), Some(want), "{frame}");
        }
        assert_eq!(head(5, |_| None), None);
        assert_eq!(head(5, |_| Some(tail)), None);
    }

    proptest! {
        #[test]
        fn issue_31_2_words_hold_their_frames(frames in prop::collection::btree_set(0u64..10_000, 0..200)) {
            let frames: Vec<u64> = frames.into_iter().collect();
            let words = words(&frames);
            prop_assert!(words.windows(2).all(|pair| pair[0].0 < pair[1].0));
            let back: Vec<u64> = words.into_iter().flat_map(|(word, bits)| frames_of(word, bits)).collect();
            prop_assert_eq!(back, frames);
        }

        #[test]
        fn issue_31_2_no_entries_are_too_much(before in prop::collection::vec(any::<u64>(), 0..40), after in prop::collection::vec(any::<u64>(), 0..40)) {
            let seen = seen(&before, &after, 4096, |frame| if frame % 2 == 0 { State::Idle } else { State::Unknown });
            prop_assert!(seen.touched <= seen.watched && seen.watched <= seen.resident);
            prop_assert!(seen.resident <= after.len() as u64 * 4096);
        }
    }
}
