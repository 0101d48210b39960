// SPDX-License-Identifier: Apache-2.0
//! The sums of what was seen: by place, and by span where addresses are known.

use super::areas::{Areas, Piece};
use super::{Bytes, DataInUse, Method, PlaceInUse, Spans};
use crate::addr::PageSize;
use crate::heat::HOT_PERCENT;
use std::collections::BTreeMap;

/// What was seen of a piece, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Seen {
    /// What is in memory.
    pub resident: u64,
    /// What of that was watched.
    pub watched: u64,
    /// What of that was touched.
    pub touched: u64,
    /// How often it was touched, where that is counted.
    pub samples: Option<u64>,
}

impl Seen {
    /// Returns what it counts for among the spans: how often it was touched or, where that is unknown, how much of it.
    fn weight(&self) -> u64 {
        self.samples.unwrap_or(self.touched)
    }
}

/// Sums up what was seen of each piece. `span` is the size that the pieces were cut at; `None` if they are whole mappings.
pub fn count<'a>(
    areas: &Areas,
    method: Method,
    span: Option<PageSize>,
    seen: impl IntoIterator<Item = (&'a Piece, Seen)>,
) -> DataInUse {
    let mapped = areas.mapped();
    let mut bytes: Vec<Bytes> =
        mapped.iter().map(|mapped| Bytes { mapped: *mapped, ..Bytes::default() }).collect();
    let mut of_places: Vec<Vec<Seen>> = vec![Vec::new(); bytes.len()];
    let mut of_all: BTreeMap<u64, Seen> = BTreeMap::new();
    let mut samples: Option<u64> = None;
    for (piece, seen) in seen {
        let Some(sum) = bytes.get_mut(piece.place) else { continue };
        let resident = seen.resident.min(piece.range.len());
        let watched = seen.watched.min(resident);
        let seen = Seen { resident, watched, touched: seen.touched.min(watched), samples: seen.samples };
        sum.resident += seen.resident;
        sum.watched += seen.watched;
        sum.touched += seen.touched;
        samples = seen.samples.map(|n| samples.unwrap_or(0).saturating_add(n)).or(samples);
        if let Some(span) = span {
            of_places[piece.place].push(seen);
            let block = of_all.entry(piece.range.start.align_down(span).0).or_default();
            block.resident += seen.resident;
            block.touched += seen.touched;
            block.samples = seen.samples.map(|n| block.samples.unwrap_or(0).saturating_add(n));
        }
    }
    let spans = |seen: Vec<Seen>| span.map(|_| spans(seen));
    let all = bytes.iter().fold(Bytes::default(), |all, one| Bytes {
        mapped: all.mapped + one.mapped,
        resident: all.resident + one.resident,
        watched: all.watched + one.watched,
        touched: all.touched + one.touched,
    });
    let found = areas.places().iter().zip(bytes).zip(of_places);
    let mut places: Vec<PlaceInUse> = found
        .map(|((place, bytes), seen)| PlaceInUse {
            kind: place.kind,
            path: place.path.clone(),
            bytes,
            spans: spans(seen),
        })
        .filter(|place| place.bytes.resident > 0)
        .collect();
    places.sort_by_key(|place| std::cmp::Reverse((place.bytes.touched, place.bytes.resident)));
    DataInUse {
        method: Some(method),
        cannot_see: method.cannot_see().to_vec(),
        samples,
        bytes: all,
        span_size: span.map(PageSize::bytes),
        spans: spans(of_all.into_values().collect()),
        places,
        ..DataInUse::unseen(Vec::new())
    }
}

fn spans(seen: Vec<Seen>) -> Spans {
    let count = |is: fn(&&Seen) -> bool| seen.iter().filter(is).count() as u64;
    let (resident, touched) = (count(|seen| seen.resident > 0), count(|seen| seen.touched > 0));
    let mut weights: Vec<u64> = seen.iter().map(Seen::weight).filter(|weight| *weight > 0).collect();
    weights.sort_unstable_by_key(|weight| std::cmp::Reverse(*weight));
    let all: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    let mut held = 0_u128;
    let is_short = |weight: &&u64| {
        let is_short = held * 100 < all * u128::from(HOT_PERCENT);
        held += u128::from(**weight);
        is_short
    };
    Spans { resident, touched, hot: weights.iter().take_while(is_short).count() as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Addr, Range};
    use crate::plan::tests::program;
    use crate::smaps::parse_smaps;
    use proptest::prelude::*;

    const MB: u64 = 1 << 20;

    fn areas(megabytes: u64) -> Areas {
        let (start, end) = (0x7f00_0000_0000_u64, 0x7f00_0000_0000 + megabytes * MB);
        let line = format!("{start:x}-{end:x} rw-p 00000000 00:00 0 \nRss: {} kB\n", megabytes << 10);
        let usage = parse_smaps(line.as_bytes()).expect("smaps");
        let mut snapshot = program(Range { start: Addr(0x40_0000), end: Addr(0xc0_0000) });
        snapshot.mappings.push(usage[0].mapping.clone());
        Areas::new(&snapshot, &usage)
    }

    #[test]
    fn issue_31_2_few_spans_hold_nearly_all() {
        let areas = areas(64);
        let pieces: Vec<Piece> = areas.pieces(PageSize::MB2, u64::MAX).collect();
        assert_eq!(pieces.len(), 32);
        let touched = |i: usize| [2 * MB, MB, 4096].get(i).copied().unwrap_or(0);
        let seen = |(i, piece)| {
            (piece, Seen { resident: 2 * MB, watched: 2 * MB, touched: touched(i), samples: None })
        };
        let data = count(&areas, Method::Damon, Some(PageSize::MB2), pieces.iter().enumerate().map(seen));
        let want = Spans { resident: 32, touched: 3, hot: 2 };
        assert_eq!((data.spans, data.places.len(), data.places[0].spans), (Some(want), 1, Some(want)));
        assert_eq!((data.bytes.touched, data.bytes.resident), (3 * MB + 4096, 64 * MB));
        let whole = count(&areas, Method::Referenced, None, pieces.iter().enumerate().map(seen));
        assert_eq!((whole.spans, whole.span_size, whole.places[0].spans), (None, None, None));
    }

    /// A span with one busy page comes before one of which all pages were met once.
    #[test]
    fn issue_31_2_spans_are_ranked_by_samples_where_there_are_any() {
        let areas = areas(64);
        let pieces: Vec<Piece> = areas.pieces(PageSize::MB2, u64::MAX).collect();
        let given = [(4096, 9_990), (2 * MB, 10), (0, 0)];
        let seen = pieces.iter().zip(given).map(|(piece, (touched, samples))| {
            (piece, Seen { resident: 2 * MB, watched: 2 * MB, touched, samples: Some(samples) })
        });
        let data = count(&areas, Method::PreciseAddresses, Some(PageSize::MB2), seen);
        let want = Spans { resident: 3, touched: 2, hot: 1 };
        assert_eq!((data.spans, data.places[0].spans, data.samples), (Some(want), Some(want), Some(10_000)));
        let none = count(&areas, Method::Damon, Some(PageSize::MB2), []);
        assert_eq!(none.samples, None);
    }

    proptest! {
        #[test]
        fn issue_31_2_sums_agree(
            given in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 0..40), megabytes in 1u64..80,
        ) {
            let areas = areas(megabytes);
            let pieces: Vec<Piece> = areas.pieces(PageSize::MB2, u64::MAX).collect();
            let seen = pieces.iter().zip(given).map(|(piece, (resident, watched, touched))| (piece, Seen { resident, watched, touched, samples: None }));
            let data = count(&areas, Method::IdlePageTracking, Some(PageSize::MB2), seen);
            let Bytes { mapped, resident, watched, touched } = data.bytes;
            prop_assert!(touched <= watched && watched <= resident && resident <= mapped);
            prop_assert_eq!(data.places.iter().map(|place| place.bytes.touched).sum::<u64>(), touched);
            let spans = data.spans.expect("spans");
            prop_assert!(spans.hot <= spans.touched && spans.touched <= spans.resident);
            prop_assert_eq!(spans.hot == 0, touched == 0);
        }
    }
}
