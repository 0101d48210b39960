// SPDX-License-Identifier: Apache-2.0
//! Puts sweeps together: medians, ranges, differences.

use crate::knees::at;

/// A curve: working sets in bytes, ascending, and nanoseconds per access.
pub(super) type Points = Vec<(f64, f64)>;

/// One working set in all sweeps.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Point {
    pub bytes: f64,
    pub median: f64,
    /// The lowest and the highest value of a sweep.
    pub range: (f64, f64),
}

/// Returns a summary of each working set that a sweep has, ascending.
pub fn points(sweeps: &[Points]) -> Vec<Point> {
    let mut sizes: Vec<f64> = sweeps.iter().flatten().map(|p| p.0).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let one = |bytes: f64| {
        let values = sweeps.iter().filter_map(|sweep| sweep.iter().find(|p| p.0 == bytes)).map(|p| p.1);
        let values: Vec<f64> = values.collect();
        let median = hugelift_measure::stats::median(&values).ok()?;
        Some(Point { bytes, median, range: range(&values)? })
    };
    sizes.into_iter().filter_map(one).collect()
}

/// Returns the curve of the medians.
pub fn medians(sweeps: &[Points]) -> Points {
    points(sweeps).iter().map(|p| (p.bytes, p.median)).collect()
}

/// Returns the lowest and the highest value; `None` if there is none.
pub fn range(values: &[f64]) -> Option<(f64, f64)> {
    let low = values.iter().copied().reduce(f64::min)?;
    Some((low, values.iter().copied().fold(low, f64::max)))
}

/// Drops the sweeps that the end of the time has cut short. If all of them are short, the longest stays.
pub fn keep_complete(sweeps: &mut Vec<Points>) {
    let most = sweeps.iter().map(Vec::len).max().unwrap_or(0);
    sweeps.retain(|sweep| sweep.len() == most && most > 0);
}

/// Returns the time of `curve` above that of the caches alone, plus the first value of these, so that growth
/// can be measured as a ratio.
pub fn above(curve: &Points, alone: &Points) -> Points {
    let base = alone.first().map_or(0.0, |p| p.1);
    curve.iter().map(|&(x, y)| (x, (y - at(alone, x).unwrap_or(0.0)).max(0.0) + base)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_in_one_curve() {
        let mut sweeps = vec![vec![(1.0, 3.0), (2.0, 4.0)], vec![(1.0, 5.0), (2.0, 9.0)], vec![(1.0, 1.0)]];
        let found = points(&sweeps);
        assert_eq!((found[0].median, found[0].range), (3.0, (1.0, 5.0)));
        assert_eq!((found[1].median, found[1].range, found.len()), (6.5, (4.0, 9.0), 2));
        keep_complete(&mut sweeps);
        assert_eq!((sweeps.len(), medians(&sweeps)), (2, vec![(1.0, 4.0), (2.0, 6.5)]));
        let mut none = vec![Points::new(), Points::new()];
        keep_complete(&mut none);
        assert!(none.is_empty() && points(&[]).is_empty() && range(&[]).is_none());
    }

    #[test]
    fn what_is_above_the_caches() {
        let alone = vec![(1.0, 2.0), (2.0, 3.0)];
        assert_eq!(above(&vec![(1.0, 2.0), (2.0, 10.0)], &alone), [(1.0, 2.0), (2.0, 9.0)]);
        assert_eq!(above(&vec![(2.0, 1.0)], &alone), [(2.0, 2.0)]);
    }
}
