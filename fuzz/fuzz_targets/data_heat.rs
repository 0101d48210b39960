// SPDX-License-Identifier: Apache-2.0
//! What the kernel says of the data in use: files of DAMON's sysfs folder, entries of `/proc/PID/pagemap` and
//! `/proc/kpageflags`.
#![no_main]

use hugelift_core::addr::{Addr, Range};
use hugelift_core::heat::data::areas::Piece;
use hugelift_core::heat::data::damon::{Checks, Region, has_word, number};
use hugelift_core::heat::data::idle::{Flags, State, frame, frames_of, head, seen, words};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut lines = data.split(|byte| *byte == b'\n');
    let mut line = || lines.next().unwrap_or_default();
    let _ = has_word(data, "fvaddr");
    let piece = |i: u64| Piece { range: Range { start: Addr(i << 21), end: Addr((i + 1) << 21) }, place: 0 };
    let mut checks = Checks::new((0..16).map(piece).collect());
    for _ in 0..32 {
        let text = [line(), line(), line()];
        let Some(region) = Region::parse(text[0], text[1], text[2]) else { continue };
        assert_eq!(number(text[0]), Some(region.range.start.0));
        assert!(!region.range.is_empty());
        checks.add(&[region], 5);
    }
    for (piece, seen) in checks.seen(|_| 1 << 20) {
        assert!(seen.touched <= seen.watched && seen.watched <= seen.resident && seen.resident <= piece.range.len());
    }

    let (entries, _) = data.as_chunks::<8>();
    let entries: Vec<u64> = entries.iter().map(|entry| u64::from_le_bytes(*entry)).collect();
    let (before, after) = entries.split_at(entries.len() / 2);
    let state = |frame: u64| if frame.is_multiple_of(2) { State::Idle } else { State::Touched };
    let found = seen(before, after, 4096, state);
    assert!(found.touched <= found.watched && found.watched <= found.resident);
    assert!(found.resident <= after.len() as u64 * 4096);
    let mut frames: Vec<u64> = entries.iter().filter_map(|entry| frame(*entry)).collect();
    frames.sort_unstable();
    frames.dedup();
    let back: Vec<u64> = words(&frames).into_iter().flat_map(|(word, bits)| frames_of(word, bits)).collect();
    assert_eq!(back, frames);
    for frame in frames {
        let flags = |at: u64| entries.get(usize::try_from(at).ok()?).map(|flags| Flags(*flags));
        assert!(head(frame, flags).is_none_or(|head| head <= frame));
    }
});
