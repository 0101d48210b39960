// SPDX-License-Identifier: Apache-2.0
//! The parts into which a process is divided by `--by`.

use super::subject::Copy;
use hugelift_core::addr::Range;
use hugelift_core::heat::hot::HotCode;
use hugelift_core::snapshot::Part;
use hugelift_measure::comparison::by_part::{By, Unit, Warmth};
use hugelift_measure::stats::MOST_TOGETHER;
use std::collections::BTreeMap;

/// A part, and where it lies.
pub struct Divided {
    /// What it is.
    pub unit: Unit,
    /// Its ranges.
    pub ranges: Vec<Range>,
}

/// Divides the copies into at most as many parts as an experiment can tell apart, the largest first. The smallest of more
/// parts become one. `hot` is the code in use, which counts only by heat.
pub fn divide(copies: Vec<Copy>, by: By, hot: &HotCode) -> Vec<Divided> {
    let mut parts: BTreeMap<_, Vec<Range>> = BTreeMap::new();
    for Copy { object, part, range } in copies {
        let pieces = match (by, part) {
            (By::Heat, Part::Text) => by_heat(range, hot),
            _ => vec![(None, range)],
        };
        let part = (by != By::Object || object.is_none()).then_some(part);
        for (warmth, range) in pieces {
            parts.entry((object.clone(), part, warmth)).or_default().push(range);
        }
    }
    let bytes = |ranges: &[Range]| ranges.iter().map(|range| range.len()).sum();
    let divided = |((object, part, warmth), ranges): (_, Vec<Range>)| Divided {
        unit: Unit { object, part, warmth, bytes: bytes(&ranges) },
        ranges,
    };
    let mut all: Vec<Divided> = parts.into_iter().map(divided).collect();
    all.sort_by_key(|part| std::cmp::Reverse(part.unit.bytes));
    if all.len() > MOST_TOGETHER {
        let small: Vec<Range> = all.drain(MOST_TOGETHER - 1..).flat_map(|part| part.ranges).collect();
        all.push(divided(((None, None, None), small)));
    }
    all
}

/// Divides a copy of code into what is in use and the rest.
fn by_heat(copy: Range, hot: &HotCode) -> Vec<(Option<Warmth>, Range)> {
    let mut rest = vec![copy];
    let mut pieces = Vec::new();
    for hot in hot.ranges().iter().filter_map(|hot| hot.intersect(copy)) {
        rest = rest.into_iter().flat_map(|range| range.minus(hot)).collect();
        pieces.push((Some(Warmth::Hot), hot));
    }
    pieces.extend(rest.into_iter().map(|range| (Some(Warmth::Cold), range)));
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::addr::{Addr, PageSize};

    const MB2: u64 = 2 << 20;

    fn copies(objects: u64) -> Vec<Copy> {
        let copy = |object: u64, part: Part, at: u64| Copy {
            object: Some(format!("/lib/{object}").as_bytes().into()),
            part,
            range: Range::sized(Addr(at << 30), (object + 1) << 21).expect("a range"),
        };
        let both =
            |object| [copy(object, Part::Text, 2 * object + 1), copy(object, Part::Rodata, 2 * object + 2)];
        (0..objects).flat_map(both).collect()
    }

    #[test]
    fn issue_31_7_a_process_is_divided_by_object_or_by_part() {
        let names = |by: By, objects: u64| -> Vec<(Option<String>, Option<Part>, u64)> {
            let units = divide(copies(objects), by, &HotCode::default()).into_iter().map(|part| part.unit);
            units.map(|unit| (unit.object.map(|o| o.to_string()), unit.part, unit.bytes >> 20)).collect()
        };
        let object = |name: &str| Some(format!("/lib/{name}"));
        assert_eq!(names(By::Object, 2), [(object("1"), None, 8), (object("0"), None, 4)]);
        let parts = names(By::Part, 2);
        assert_eq!(parts.len(), 4);
        assert_eq!(parts[0], (object("1"), Some(Part::Text), 4));
    }

    #[test]
    fn issue_31_7_of_more_parts_than_can_be_told_apart_the_smallest_are_one() {
        let parts = divide(copies(20), By::Object, &HotCode::default());
        assert_eq!(parts.len(), MOST_TOGETHER);
        let last = parts.last().expect("a part");
        assert_eq!((&last.unit.object, last.ranges.len()), (&None, 10));
        assert_eq!(last.unit.bytes, (1..=5).map(|n| n * (2 << 21)).sum::<u64>());
    }

    #[test]
    fn issue_31_7_code_is_divided_by_heat() {
        // Of eight huge pages of code, the third, the fourth and the last are in use.
        let at = 3 << 30;
        let copy = |part, start: u64, pages: u64| Copy {
            object: Some("/lib/o".as_bytes().into()),
            part,
            range: Range::sized(Addr(start), pages * MB2).expect("a range"),
        };
        let spans = [2, 3, 7, 400].map(|page| (at + page * MB2, 100));
        let hot = HotCode::choose(spans, PageSize::MB2, u64::MAX);
        let parts = divide(vec![copy(Part::Text, at, 8), copy(Part::Rodata, 4 << 30, 1)], By::Heat, &hot);
        let found: Vec<_> = parts
            .iter()
            .map(|one| (one.unit.part, one.unit.warmth, one.unit.bytes / MB2, one.ranges.len()))
            .collect();
        assert_eq!(
            found,
            [
                (Some(Part::Text), Some(Warmth::Cold), 5, 2),
                (Some(Part::Text), Some(Warmth::Hot), 3, 2),
                (Some(Part::Rodata), None, 1, 1),
            ]
        );
    }
}
