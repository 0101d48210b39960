// SPDX-License-Identifier: Apache-2.0
//! Finds where a curve of latencies leaves one plateau for the next: the reach of a TLB or a cache.
//!
//! First the measured curve is replaced by the nearest one that never falls (isotonic regression by
//! pooling adjacent violators, Barlow et al. 1972): more memory never makes an access faster, so a fall is
//! noise. A knee is then the start of a ramp: a range in which the latency grows faster than on a plateau.
//!
//! Another program can make a ramp of its own in one curve. So the whole curve is measured several times,
//! and a knee counts only if most of these sweeps have it.

/// The largest growth per doubling of the working set that still counts as a plateau.
const FLAT: f64 = 0.12;

/// The least growth over a whole ramp that counts as a knee. Less is noise.
pub const LEAST: f64 = 0.25;

/// The least rise over a whole ramp, in the unit of the curve, that counts as a knee.
pub const LEAST_RISE: f64 = 0.4;

/// The fewest sweeps that can agree on a knee.
pub const SWEEPS: usize = 3;

/// How far apart, in doublings, two sweeps may see one knee: half a doubling, the distance of two points of
/// the coarsest curve, and room for rounding.
const RESOLUTION: f64 = 0.55;

/// The start of a ramp.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Knee {
    /// The last x of the plateau before the ramp: what still fits.
    pub at: f64,
    /// The first x on the ramp.
    pub next: f64,
    /// The first x of the plateau behind the ramp.
    pub until: f64,
    /// The value at `at`.
    pub before: f64,
    /// The value at `until`.
    pub after: f64,
}

impl Knee {
    /// Returns where the reach ends: in the middle between the last point of the plateau and the first of
    /// the ramp, since it ends somewhere between them.
    pub fn reach(&self) -> f64 {
        (self.at * self.next).sqrt()
    }
}

/// A knee that most sweeps have.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Repeated {
    /// The knee of the medians of all sweeps.
    pub knee: Knee,
    /// How many sweeps have it.
    pub seen: usize,
    /// The number of sweeps.
    pub sweeps: usize,
}

/// Returns the knees of the medians that most of the sweeps have too. Fewer than [`SWEEPS`] sweeps cannot
/// agree on any.
pub fn repeated(medians: &[(f64, f64)], sweeps: &[Vec<(f64, f64)>]) -> Vec<Repeated> {
    if sweeps.len() < SWEEPS {
        return Vec::new();
    }
    let each: Vec<Vec<Knee>> = sweeps.iter().map(|sweep| knees(sweep)).collect();
    let near = |a: &Knee, b: &Knee| (a.at / b.at).log2().abs() <= RESOLUTION;
    knees(medians)
        .into_iter()
        .map(|knee| {
            let seen = each.iter().filter(|found| found.iter().any(|other| near(&knee, other))).count();
            Repeated { knee, seen, sweeps: sweeps.len() }
        })
        .filter(|found| 2 * found.seen > found.sweeps)
        .collect()
}

/// Returns the knees of a curve. Points whose x or value is not positive, and points whose x does not
/// ascend, are skipped.
pub fn knees(points: &[(f64, f64)]) -> Vec<Knee> {
    let mut sound: Vec<(f64, f64)> = Vec::new();
    for &(x, y) in points {
        let ascends = sound.last().is_none_or(|&(before, _)| x > before);
        if x > 0.0 && y > 0.0 && x.is_finite() && y.is_finite() && ascends {
            sound.push((x, y));
        }
    }
    let rising = isotonic(&sound.iter().map(|p| p.1).collect::<Vec<f64>>());
    let curve: Vec<(f64, f64)> = sound.iter().zip(rising).map(|(p, y)| (p.0, y)).collect();
    // Values below the least rise are noise; raising them to it avoids an infinite growth from 0.
    let level = |y: f64| y.max(LEAST_RISE);
    let steep = |pair: &[(f64, f64)]| {
        let octaves = (pair[1].0 / pair[0].0).log2();
        (level(pair[1].1) / level(pair[0].1)).log2() / octaves > (1.0 + FLAT).log2()
    };
    let mut found: Vec<Knee> = Vec::new();
    let mut ramp: Option<(usize, usize)> = None;
    for (i, pair) in curve.windows(2).enumerate() {
        if steep(pair) {
            ramp = Some((ramp.map_or(i, |(from, _)| from), i + 1));
            if i + 2 < curve.len() {
                continue;
            }
        }
        if let Some((from, to)) = ramp.take() {
            let ((at, before), (until, after), next) = (curve[from], curve[to], curve[from + 1].0);
            if after - before >= LEAST_RISE && level(after) / level(before) >= 1.0 + LEAST {
                found.push(Knee { at, next, until, before, after });
            }
        }
    }
    found
}

/// Returns the value of the curve at `x`: interpolated linearly over log x between two points, and the
/// value of the last point beyond an end. `None` for a curve without points.
pub fn at(points: &[(f64, f64)], x: f64) -> Option<f64> {
    let (first, last) = (points.first()?, points.last()?);
    if x <= first.0 {
        return Some(first.1);
    }
    let pair = points.windows(2).find(|pair| x <= pair[1].0);
    let Some([(x0, y0), (x1, y1)]) = pair.and_then(|p| <[(f64, f64); 2]>::try_from(p).ok()) else {
        return Some(last.1);
    };
    let share = (x / x0).log2() / (x1 / x0).log2();
    Some(if share.is_finite() { y0 + (y1 - y0) * share } else { y1 })
}

/// Returns the curve that never falls and is nearest by least squares.
fn isotonic(values: &[f64]) -> Vec<f64> {
    // Blocks of a mean and a length; the means rise.
    let mut blocks: Vec<(f64, usize)> = Vec::new();
    for &value in values {
        let mut block = (value, 1);
        while let Some(&(mean, count)) = blocks.last() {
            if mean <= block.0 {
                break;
            }
            let all = count + block.1;
            block = ((mean * count as f64 + block.0 * block.1 as f64) / all as f64, all);
            blocks.pop();
        }
        blocks.push(block);
    }
    blocks.into_iter().flat_map(|(mean, count)| std::iter::repeat_n(mean, count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Four points per doubling, from 256 kB on.
    fn sizes() -> Vec<f64> {
        (0..57).map(|i| 262_144.0 * 2f64.powf(f64::from(i) / 4.0)).collect()
    }

    /// The cost of a random access with levels that hold `reach` bytes and cost `cost` when missed: beyond
    /// the reach the share of misses is 1 - reach / x.
    fn model(x: f64, base: f64, levels: &[(f64, f64)]) -> f64 {
        let missed = |reach: f64| (1.0 - reach / x).max(0.0);
        base + levels.iter().map(|&(reach, cost)| cost * missed(reach)).sum::<f64>()
    }

    #[test]
    fn a_step_is_one_knee_and_a_plateau_none() {
        let step = |x: f64| if x <= 8e6 { 1.2 } else { 9.0 };
        let curve: Vec<(f64, f64)> = sizes().into_iter().map(|x| (x, step(x))).collect();
        let found = knees(&curve);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].at <= 8e6 && found[0].at > 8e6 / 1.2 && found[0].until > 8e6, "{found:?}");
        assert_eq!((found[0].before, found[0].after), (1.2, 9.0));
        let flat: Vec<(f64, f64)> = sizes().into_iter().map(|x| (x, 3.0)).collect();
        assert_eq!(knees(&flat), []);
    }

    #[test]
    fn two_tlbs_are_two_knees() {
        // 64 entries; a miss costs 2 ns. 1536 entries; a miss costs 20 ns.
        let levels = [(64.0 * 4096.0, 2.0), (1536.0 * 4096.0, 20.0)];
        let curve: Vec<(f64, f64)> = sizes().into_iter().map(|x| (x, model(x, 1.0, &levels))).collect();
        let found = knees(&curve);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].at < 300e3, "{found:?}");
        let ratio = found[1].at / (1536.0 * 4096.0);
        assert!((0.8..=1.2).contains(&ratio), "{found:?}");
    }

    #[test]
    fn a_knee_counts_if_most_sweeps_have_it() {
        let step = |place: f64| -> Vec<(f64, f64)> {
            sizes().into_iter().map(|x| (x, if x <= place { 1.0 } else { 4.0 })).collect()
        };
        let found = |places: &[f64]| {
            let sweeps: Vec<Vec<(f64, f64)>> = places.iter().map(|&place| step(place)).collect();
            repeated(&sweeps[0], &sweeps).iter().map(|r| (r.seen, r.sweeps)).collect::<Vec<_>>()
        };
        assert_eq!(found(&[8e6, 8e6, 64e6]), [(2, 3)]);
        // One point of the grid apart.
        assert_eq!(found(&[8e6, 9.5e6, 7.2e6]), [(3, 3)]);
        assert_eq!(found(&[8e6, 64e6, 512e6]), []);
        assert_eq!(found(&[8e6, 8e6]), []);
        let knee = knees(&step(8e6))[0];
        assert!(knee.at < 8e6 && 8e6 < knee.next && (knee.at..knee.next).contains(&knee.reach()), "{knee:?}");
    }

    #[test]
    fn values_between_points() {
        let curve = [(1.0, 10.0), (4.0, 30.0)];
        assert_eq!(at(&curve, 2.0), Some(20.0));
        assert_eq!((at(&curve, 0.1), at(&curve, 9.0)), (Some(10.0), Some(30.0)));
        assert_eq!(at(&[], 1.0), None);
    }

    proptest! {
        #[test]
        fn the_step_is_found_wherever_it_is(place in 4usize..52, base in 0.8f64..5.0, rise in 1.5f64..20.0,
                                            noise in proptest::collection::vec(-0.02f64..0.02, 57)) {
            let xs = sizes();
            let curve: Vec<(f64, f64)> = xs.iter().zip(&noise).enumerate()
                .map(|(i, (&x, n))| (x, base * (1.0 + n) * if i > place { rise } else { 1.0 }))
                .collect();
            let found = knees(&curve);
            // Smaller rises need not be found.
            prop_assume!(base * (rise - 1.0) > 1.0);
            prop_assert_eq!(found.len(), 1, "{:?}", found);
            prop_assert!(found[0].at >= xs[place - 1] && found[0].at <= xs[place], "{:?}", found);
        }

        #[test]
        fn noise_on_a_plateau_is_no_knee(noise in proptest::collection::vec(-0.05f64..0.05, 57)) {
            let curve: Vec<(f64, f64)> = sizes().into_iter().zip(noise).map(|(x, n)| (x, 3.0 + n)).collect();
            prop_assert_eq!(knees(&curve), []);
        }

        #[test]
        fn nothing_hurts(points in proptest::collection::vec((any::<f64>(), any::<f64>()), 0..40)) {
            for knee in knees(&points) {
                prop_assert!(knee.at < knee.next && knee.next <= knee.until && knee.before < knee.after);
            }
            let _ = at(&points, 1.0);
        }

        #[test]
        fn isotonic_rises_and_keeps_the_mean(values in proptest::collection::vec(-1e6f64..1e6, 1..60)) {
            let fit = isotonic(&values);
            prop_assert_eq!(fit.len(), values.len());
            prop_assert!(fit.windows(2).all(|w| w[0] <= w[1] + 1e-6));
            let sum = |v: &[f64]| v.iter().sum::<f64>();
            prop_assert!((sum(&fit) - sum(&values)).abs() < 1e-3);
        }
    }
}
