// SPDX-License-Identifier: Apache-2.0
//! What an axis shows. One value far from all others would flatten them: it is beyond the axis then, and a mark
//! at its end says so.

use crate::html::axis::Axis;

/// Values this many times the distance of the quartiles away from them are far. A normal distribution has one such
/// value in a million.
const FAR: f64 = 3.0;
/// Far values are beyond the axis if it would be this many times as long with them.
const FLATTENED: f64 = 2.5;
/// The shortest axis: logarithms, or a share of the largest value.
const SHORTEST: f64 = 0.01;
/// The margin at each end, as a share of the axis.
const MARGIN: f64 = 0.06;
/// Fewer values have no quartiles that say which of them is far.
const FEWEST: usize = 5;

/// The ends of an axis.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Shown {
    low: f64,
    high: f64,
    logarithmic: bool,
}

/// Where a value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Below the low end of the axis.
    Below,
    /// On the axis.
    On,
    /// Above its high end.
    Above,
}

impl Shown {
    /// Chooses the ends. `fixed` is always on the axis; `values` are, unless they are far; `wanted` is, if it
    /// flattens nothing. All must be finite. The axis is logarithmic if all are positive.
    pub fn new(fixed: &[f64], values: &[f64], wanted: &[f64]) -> Shown {
        let logarithmic = fixed.iter().chain(values).chain(wanted).all(|v| *v >= 1e-100);
        let scaled =
            |all: &[f64]| -> Vec<f64> { all.iter().map(|v| if logarithmic { v.ln() } else { *v }).collect() };
        let (fixed, mut values, wanted) = (scaled(fixed), scaled(values), scaled(wanted));
        values.sort_by(f64::total_cmp);
        let largest = values.iter().chain(&fixed).fold(0.0, |most: f64, v| most.max(v.abs()));
        let shortest = if logarithmic { SHORTEST } else { (SHORTEST * largest).max(1e-300) };
        let near = near(&values, shortest);

        let core = ends(fixed.iter().chain(near).copied());
        let with_wanted = wanted.iter().copied().chain([core.0, core.1]);
        let with_wanted = ends(with_wanted);
        let all = ends(values.iter().copied().chain([with_wanted.0, with_wanted.1]));
        let long = |(low, high): (f64, f64)| high - low;
        let most = FLATTENED * long(core).max(shortest);
        let (low, high) = [all, with_wanted].into_iter().find(|ends| long(*ends) <= most).unwrap_or(core);
        let missing = (shortest - (high - low)).max(0.0) / 2.0;
        let margin = (high - low).max(shortest) * MARGIN + missing;
        let (low, high) = (low - margin, high + margin);
        if logarithmic {
            Shown { low: low.exp(), high: high.exp(), logarithmic }
        } else {
            Shown { low, high, logarithmic }
        }
    }

    /// Returns where a value is.
    pub fn place(&self, value: f64) -> Place {
        match value {
            v if v < self.low => Place::Below,
            v if v > self.high => Place::Above,
            _ => Place::On,
        }
    }

    /// Returns the axis from the pixel `from` to the pixel `to`. `scale` is the number of the axis's units in one
    /// of the values'.
    pub fn axis(&self, from: f64, to: f64, scale: f64) -> Axis {
        let make = if self.logarithmic { Axis::logarithmic } else { Axis::new };
        make(self.low * scale, self.high * scale, from, to)
    }

    /// Returns the nearest value that is on the axis.
    pub fn clamp(&self, value: f64) -> f64 {
        value.clamp(self.low, self.high)
    }

    /// Divides the axis, from the smallest to the largest of `values` on it, into `count` bins of one length on
    /// the axis. Returns the ends of each, and how many values it has.
    pub fn bins(&self, values: &[f64], count: usize) -> Vec<((f64, f64), usize)> {
        let to = |v: f64| if self.logarithmic { v.ln() } else { v };
        let back = |v: f64| if self.logarithmic { v.exp() } else { v };
        let on: Vec<f64> = values.iter().filter(|v| self.place(**v) == Place::On).map(|v| to(*v)).collect();
        if on.is_empty() {
            return Vec::new();
        }
        let (low, high) = ends(on.iter().copied());
        let length = ((high - low) / count.max(1) as f64).max(1e-12);
        let mut bins = vec![0; count.max(1)];
        for value in on {
            let bin = ((value - low) / length) as usize;
            bins[bin.min(count.max(1) - 1)] += 1;
        }
        let ends = |bin: usize| (back(low + bin as f64 * length), back(low + (bin + 1) as f64 * length));
        bins.into_iter().enumerate().map(|(bin, n)| (ends(bin), n)).collect()
    }
}

/// Returns the values, which ascend, without those that are far from the others.
fn near(values: &[f64], shortest: f64) -> &[f64] {
    if values.len() < FEWEST {
        return values;
    }
    let last = values.len() - 1;
    let (low, high) = (values[last / 4], values[last - last / 4]);
    let far = FAR * (high - low).max(shortest);
    let from = values.partition_point(|v| *v < low - far);
    let to = values.partition_point(|v| *v <= high + far);
    &values[from..to]
}

fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn many(around: f64, count: usize) -> Vec<f64> {
        (0..count).map(|i| around * (1.0 + 0.01 * ((i * 7 % 11) as f64 - 5.0))).collect()
    }

    #[test]
    fn an_outlier_does_not_flatten_the_rest() {
        let mut values = many(0.8, 20);
        let usual = Shown::new(&[1.0], &values, &[]);
        values.push(50.0);
        values.push(0.01);
        let shown = Shown::new(&[1.0], &values, &[0.7, 50.0]);
        assert!(shown.low > usual.low * 0.8 && shown.high < usual.high * 1.2, "{shown:?} {usual:?}");
        assert_eq!([50.0, 0.01, 0.8, 1.0].map(|v| shown.place(v)), {
            [Place::Above, Place::Below, Place::On, Place::On]
        });
    }

    #[test]
    fn what_flattens_nothing_is_shown() {
        let mut values = many(0.8, 20);
        values.push(1.1);
        let shown = Shown::new(&[1.0], &values, &[0.7]);
        assert!([1.1, 0.7].iter().all(|v| shown.place(*v) == Place::On), "{shown:?}");
        // Of two values none is the usual one.
        let two = Shown::new(&[1.0], &[0.01, 50.0], &[]);
        assert!([0.01, 50.0].iter().all(|v| two.place(*v) == Place::On), "{two:?}");
    }

    #[test]
    fn values_that_are_not_positive_have_a_linear_axis() {
        let shown = Shown::new(&[], &[0.0, 1.0, 2.0, 1.5, 0.5], &[]);
        assert!(!shown.logarithmic && shown.low < 0.0 && shown.high > 2.0, "{shown:?}");
    }

    #[test]
    fn each_value_on_the_axis_is_in_one_bin() {
        let mut values = many(0.8, 300);
        values.push(90.0);
        let bins = Shown::new(&[1.0], &values, &[]).bins(&values, 20);
        assert_eq!(bins.iter().map(|(_, n)| n).sum::<usize>(), 300);
        assert!(bins.windows(2).all(|two| (two[0].0.1 - two[1].0.0).abs() < 1e-9), "{bins:?}");
    }

    proptest! {
        #[test]
        fn most_values_are_shown(values in prop::collection::vec(1e-6..1e6f64, 1..300), one in 1e-3..1e3f64) {
            let shown = Shown::new(&[one], &values, &[]);
            let on = values.iter().filter(|v| shown.place(**v) == Place::On).count();
            prop_assert!(2 * on >= values.len() && shown.place(one) == Place::On);
            prop_assert!(shown.low > 0.0 && shown.low < shown.high && shown.high.is_finite());
        }
    }
}
