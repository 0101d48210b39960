// SPDX-License-Identifier: Apache-2.0
//! Divides a part of the report into tiles: ranges of one appearance.
//!
//! ```text
//!   stretches (plan)    |·edge·|========= span =========|·edge·|
//!   fragments (smaps)   |----------------|---------------------|
//!   tiles               |·edge·|= thp ===|= could be lifted ===|·edge·|
//! ```

use super::appearance::Appearance;
use hugelift_core::addr::{Addr, PageSize, Range, human_bytes};
use hugelift_core::report::{Fragment, PartReport, Stretch};

/// A range of addresses of one appearance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Tile {
    pub range: Range,
    pub appearance: Appearance,
    /// Its tooltip.
    pub text: String,
}

/// Returns the tiles of a part, by address, without gap or overlap.
pub(super) fn tiles(part: &PartReport, page: PageSize) -> Vec<Tile> {
    let mut out: Vec<Tile> = Vec::new();
    for fragment in with_gaps(part) {
        let from = part.stretches.partition_point(|s| s.range.end <= fragment.range.start);
        for stretch in part.stretches[from..].iter().take_while(|s| s.range.start < fragment.range.end) {
            let Some(range) = stretch.range.intersect(fragment.range) else { continue };
            for (range, state) in states(range, stretch, &fragment, page) {
                let Some((appearance, text)) = describe(part, &fragment, stretch, state) else { continue };
                match out.last_mut() {
                    // Adjacent ranges with the same appearance and text are one tile, even in two mappings.
                    Some(last)
                        if last.range.end == range.start
                            && last.appearance == appearance
                            && last.text == text =>
                    {
                        last.range.end = range.end;
                    }
                    _ => out.push(Tile { range, appearance, text }),
                }
            }
        }
    }
    out
}

/// Returns the fragments of a part, and the ranges that smaps did not show, as not huge.
fn with_gaps(part: &PartReport) -> Vec<Fragment> {
    let mut all = Vec::with_capacity(part.fragments.len() + 1);
    let mut at = Addr(part.start);
    let unknown =
        |start, end| Fragment { range: Range { start, end }, huge: 0, backing: None, advised: false };
    for fragment in &part.fragments {
        if at < fragment.range.start {
            all.push(unknown(at, fragment.range.start));
        }
        all.push(*fragment);
        at = at.max(fragment.range.end);
    }
    if at.0 < part.end {
        all.push(unknown(at, Addr(part.end)));
    }
    all
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Huge,
    Partly,
    Not,
}

/// Cuts `range`, the intersection of `stretch` and `fragment`, by the state of its bytes.
fn states(range: Range, stretch: &Stretch, fragment: &Fragment, page: PageSize) -> Vec<(Range, State)> {
    if fragment.huge == 0 || stretch.huge == 0 {
        return vec![(range, State::Not)];
    }
    if fragment.huge >= fragment.range.len() || stretch.huge >= stretch.range.len() {
        return vec![(range, State::Huge)];
    }
    // The huge bytes equal the bytes of its whole huge pages, so these pages are huge.
    match fragment.range.inner(page) {
        Some(inner) if fragment.huge == inner.len() => {
            let outside = range.minus(inner).into_iter().map(|r| (r, State::Not));
            let inside = range.intersect(inner).map(|r| (r, State::Huge));
            let mut all: Vec<(Range, State)> = outside.chain(inside).collect();
            all.sort_by_key(|(r, _)| r.start);
            all
        }
        _ => vec![(range, State::Partly)],
    }
}

/// Returns appearance and tooltip of a range; `None` if no counter shows its backing.
fn describe(
    part: &PartReport,
    fragment: &Fragment,
    stretch: &Stretch,
    state: State,
) -> Option<(Appearance, String)> {
    let backing = fragment.backing.or(part.backing);
    let skip = stretch.skip.and_then(|i| part.skips.get(i));
    Some(match (state, skip) {
        (State::Partly, _) => {
            let (huge, all) = (human_bytes(fragment.huge), human_bytes(fragment.range.len()));
            let text = format!("partly huge: {huge} of the {all} of its mapping; smaps does not show which");
            (Appearance::huge(backing?, false), text)
        }
        (State::Not, Some(skip)) => {
            let hint = skip.hint.as_ref().map(|h| format!("\nhint: {h}")).unwrap_or_default();
            (Appearance::skipped(skip), format!("not huge: {}{hint}", skip.detail))
        }
        (State::Huge, _) | (State::Not, None) => (Appearance::huge(backing?, true), "huge".to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::policy::Backing;
    use hugelift_core::report::SkipReport;
    use hugelift_core::skip::Reason;
    use hugelift_core::snapshot::Part;

    const MB: u64 = 1 << 20;

    fn range(start: u64, end: u64) -> Range {
        Range { start: Addr(start * MB), end: Addr(end * MB) }
    }

    /// 9 MB from 1 MB on, of which the four huge pages inside are to be lifted.
    fn part(fragments: &[(u64, u64, u64)], huge: u64) -> PartReport {
        let skip = |why: Reason, bytes| SkipReport {
            reason: why.key(),
            bytes: bytes * MB,
            hint: why.hint_for(&hugelift_core::advice::About::program("/bin/x".as_ref())),
            detail: why.to_string(),
            why,
        };
        let fragments: Vec<Fragment> = fragments
            .iter()
            .map(|&(a, b, huge)| Fragment {
                range: range(a, b),
                huge: huge * MB,
                backing: (huge > 0).then_some(Backing::Thp),
                advised: false,
            })
            .collect();
        PartReport {
            part: Part::Text,
            start: MB,
            bytes: 9 * MB,
            liftable_bytes: 8 * MB,
            huge_bytes: huge * MB,
            backing: (huge > 0).then_some(Backing::Thp),
            skips: vec![skip(Reason::NotAligned(PageSize::MB2), 1), skip(Reason::NotLifted, 8 - huge)],
            end: 10 * MB,
            fragments,
            stretches: vec![
                Stretch { range: range(1, 2), huge: 0, skip: Some(0) },
                Stretch { range: range(2, 10), huge: huge * MB, skip: (huge < 8).then_some(1) },
            ],
        }
    }

    fn shown(part: &PartReport) -> Vec<(u64, u64, String)> {
        let tiles = tiles(part, PageSize::MB2);
        tiles.iter().map(|t| (t.range.start.0 / MB, t.range.end.0 / MB, t.appearance.label.clone())).collect()
    }

    fn tile(start: u64, end: u64, label: &str) -> (u64, u64, String) {
        (start, end, label.to_string())
    }

    #[test]
    fn without_smaps_only_the_reasons() {
        assert_eq!(shown(&part(&[], 0)), [tile(1, 2, "not aligned"), tile(2, 10, "not lifted")]);
    }

    #[test]
    fn one_mapping_wholly_huge_inside() {
        let want = [tile(1, 2, "not aligned"), tile(2, 10, "huge: thp")];
        assert_eq!(shown(&part(&[(1, 10, 8)], 8)), want);
        assert_eq!(shown(&part(&[(1, 2, 0), (2, 10, 8)], 8)), want);
    }

    #[test]
    fn one_mapping_partly_huge_and_one_not() {
        let part = part(&[(1, 8, 2), (8, 10, 0)], 2);
        let want = [tile(1, 2, "not aligned"), tile(2, 8, "partly huge: thp"), tile(8, 10, "not lifted")];
        assert_eq!(shown(&part), want);
        let tiles = tiles(&part, PageSize::MB2);
        assert!(tiles[1].text.contains("2 MB of the 7 MB"), "{}", tiles[1].text);
        assert!(tiles[2].text.contains("hint: hugelift run /bin/x"), "{}", tiles[2].text);
    }

    #[test]
    fn what_smaps_did_not_show_is_not_huge() {
        let want = [
            tile(1, 2, "not aligned"),
            tile(2, 4, "huge: thp"),
            tile(4, 6, "not lifted"),
            tile(6, 8, "huge: thp"),
            tile(8, 10, "not lifted"),
        ];
        assert_eq!(shown(&part(&[(2, 4, 2), (6, 8, 2)], 4)), want);
    }
}
