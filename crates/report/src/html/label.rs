// SPDX-License-Identifier: Apache-2.0
//! The size and the place of labels, so that none covers another or leaves its picture.

use crate::html::page::is_replaced;
use unicode_width::UnicodeWidthChar;

/// The font size of the ticks of an axis and of small labels, in pixels.
pub const SMALL: f64 = 11.0;
/// The font size of names, in pixels.
pub const NORMAL: f64 = 12.0;

/// Returns the width that a text may take in a font of `size` pixels. The font is the reader's, so this is
/// the width in a wide one.
pub fn width(text: &str, size: f64) -> f64 {
    text.chars().map(|c| share(c) * size).sum()
}

/// Returns the width of a character, as a share of the font size.
fn share(c: char) -> f64 {
    match c {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' | ' ' | '[' | ']' | '(' | ')' => {
            0.42
        }
        'm' | 'w' | 'M' | 'W' | '%' | '@' | '…' | '▲' | '▼' | '▶' | '◀' => 1.02,
        'A'..='Z' => 0.8,
        '!'..='~' => 0.66,
        // The replacement character, and emoji, are wide in each font.
        '\u{fffd}' | '\u{1f000}'.. => 1.4,
        c if is_replaced(c) => 1.4,
        // Wide characters take two columns. What takes none may still be drawn as a box.
        c => c.width().unwrap_or(1).max(1) as f64 * 0.85,
    }
}

/// Cuts a text that is wider than `room` pixels, and ends it with an ellipsis.
pub fn cut(text: &str, room: f64, size: f64) -> String {
    if width(text, size) <= room {
        return text.to_string();
    }
    let mut left = room - width("…", size);
    let fits = |c: &char| {
        left -= share(*c) * size;
        left >= 0.0
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

/// Moves positions, which ascend, so that neighbours are at least `gap` apart, and all are in `low..=high`. Each
/// group that is too close stays centred on where it was. If there is no room for that gap, it is smaller.
pub fn spread(at: &[f64], gap: f64, low: f64, high: f64) -> Vec<f64> {
    let gaps = at.len().saturating_sub(1) as f64;
    let gap = gap.min((high - low) / gaps.max(1.0));
    // Without its gaps, a row of labels only has to ascend: groups that do not become their mean.
    let mut groups: Vec<(f64, usize)> = Vec::new();
    for (i, at) in at.iter().enumerate() {
        let mut group = (at - i as f64 * gap, 1);
        while let Some(before) = groups.pop_if(|before| before.0 > group.0) {
            let count = before.1 + group.1;
            group = ((before.0 * before.1 as f64 + group.0 * group.1 as f64) / count as f64, count);
        }
        groups.push(group);
    }
    let places = groups.into_iter().flat_map(|(mean, count)| std::iter::repeat_n(mean, count));
    places.enumerate().map(|(i, place)| place.min(high - gaps * gap).max(low) + i as f64 * gap).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_too_close_is_moved_evenly() {
        assert_eq!(spread(&[10.0, 50.0], 12.0, 0.0, 100.0), [10.0, 50.0]);
        assert_eq!(spread(&[50.0, 50.0, 50.0], 10.0, 0.0, 100.0), [40.0, 50.0, 60.0]);
        assert_eq!(spread(&[99.0, 100.0], 10.0, 0.0, 100.0), [90.0, 100.0]);
        assert_eq!(spread(&[], 10.0, 0.0, 100.0), [0.0; 0]);
    }

    #[test]
    fn long_texts_are_cut() {
        assert_eq!(cut("short", 100.0, NORMAL), "short");
        assert_eq!(cut("", 0.0, NORMAL), "");
        let long = cut(&"long ".repeat(50), 100.0, NORMAL);
        assert!(long.ends_with('…') && width(&long, NORMAL) <= 100.0 && long.len() > 10, "{long}");
    }

    proptest! {
        #[test]
        fn no_two_places_are_too_close(mut at in prop::collection::vec(-50.0..500.0f64, 0..40)) {
            at.sort_by(f64::total_cmp);
            let places = spread(&at, 12.0, 10.0, 390.0);
            prop_assert_eq!(places.len(), at.len());
            let gap = 12.0f64.min(380.0 / at.len().max(2).saturating_sub(1) as f64);
            prop_assert!(places.windows(2).all(|two| two[1] - two[0] > gap - 1e-6), "{:?}", places);
            prop_assert!(places.iter().all(|p| (9.99..390.01).contains(p)), "{:?}", places);
        }

        #[test]
        fn a_cut_text_fits(text in ".{0,60}", room in 12.0..200.0f64) {
            prop_assert!(width(&cut(&text, room, SMALL), SMALL) <= room.max(0.0) + 1e-9);
        }
    }
}
