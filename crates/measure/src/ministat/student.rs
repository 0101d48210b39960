// SPDX-License-Identifier: Apache-2.0
//! Points of Student's t distribution, rounded to three decimals as in printed tables.

use std::f64::consts::PI;

/// The tables end at this number of degrees of freedom; beyond, the normal distribution is used.
const TABLED: usize = 100;

/// A level of confidence that ministat(1) knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Confidence {
    /// Tenths of a percent.
    permille: u16,
}

/// Level in permille, level of the t distribution in permille, point of the normal distribution. For
/// 99.5 % the original uses its table of 99.8 % (99.9 % on one side), and so does this.
const LEVELS: [(u16, u16, f64); 6] = [
    (800, 800, 1.282),
    (900, 900, 1.645),
    (950, 950, 1.960),
    (980, 980, 2.326),
    (990, 990, 2.576),
    (995, 998, 3.090),
];

/// Where the table of the original, which is NIST's, is wrong by up to 0.003: degrees of freedom, and
/// the value in the table for 99.8 %.
const AS_PRINTED: [(usize, f64); 6] =
    [(7, 4.782), (8, 4.499), (9, 4.296), (10, 4.143), (11, 4.024), (12, 3.929)];

impl Confidence {
    /// 95 %
    pub const DEFAULT: Confidence = Confidence { permille: 950 };

    /// Makes one from `80`, `90`, `95`, `98`, `99` or `99.5`; `None` for anything else.
    pub fn from_percent(percent: f64) -> Option<Confidence> {
        let level = LEVELS.iter().find(|(permille, ..)| f64::from(*permille) == percent * 10.0)?;
        Some(Confidence { permille: level.0 })
    }

    /// Returns the level in percent.
    pub fn percent(self) -> f64 {
        f64::from(self.permille) / 10.0
    }

    /// Returns the t that has this share of the distribution between -t and t.
    pub fn t(self, freedom: usize) -> f64 {
        let level = LEVELS.iter().find(|(permille, ..)| *permille == self.permille);
        let &(_, share, normal) = level.expect("one of the levels: there is no other way to make one");
        if freedom > TABLED {
            return normal;
        }
        match AS_PRINTED.iter().find(|(printed, _)| share == 998 && *printed == freedom) {
            Some((_, t)) => *t,
            None => (quantile(f64::from(share) / 1000.0, freedom) * 1000.0).round() / 1000.0,
        }
    }
}

/// Returns the share of the distribution between -t and t, by the finite series for whole degrees of
/// freedom (Abramowitz & Stegun, "Handbook of Mathematical Functions", 26.7.3 and 26.7.4).
fn share(t: f64, freedom: usize) -> f64 {
    let angle = (t / (freedom as f64).sqrt()).atan();
    let (sine, square) = (angle.sin(), angle.cos().powi(2));
    let odd = freedom % 2 == 1;
    let (mut term, mut sum) = (if odd { angle.cos() } else { 1.0 }, 0.0);
    for k in 1..=freedom / 2 {
        sum += term;
        let k = k as f64;
        term *= square * if odd { 2.0 * k / (2.0 * k + 1.0) } else { (2.0 * k - 1.0) / (2.0 * k) };
    }
    if odd { 2.0 / PI * (angle + sine * sum) } else { sine * sum }
}

/// Returns the t with the share `wanted` between -t and t, by bisection.
fn quantile(wanted: f64, freedom: usize) -> f64 {
    let (mut low, mut high) = (0.0, 1000.0);
    // 1000 / 2^64 is below the distance of neighbouring floating-point numbers.
    for _ in 0..64 {
        let middle = (low + high) / 2.0;
        if share(middle, freedom) < wanted { low = middle } else { high = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2.
    #[test]
    fn points_are_those_of_the_tables() {
        for (percent, points) in [
            (
                80.0,
                [(1, 3.078), (2, 1.886), (4, 1.533), (10, 1.372), (30, 1.310), (100, 1.290), (101, 1.282)],
            ),
            (
                90.0,
                [(1, 6.314), (2, 2.920), (4, 2.132), (10, 1.812), (30, 1.697), (100, 1.660), (101, 1.645)],
            ),
            (
                95.0,
                [(1, 12.706), (2, 4.303), (4, 2.776), (10, 2.228), (30, 2.042), (100, 1.984), (500, 1.960)],
            ),
            (
                98.0,
                [(1, 31.821), (2, 6.965), (4, 3.747), (10, 2.764), (30, 2.457), (100, 2.364), (500, 2.326)],
            ),
            (
                99.0,
                [(1, 63.657), (2, 9.925), (4, 4.604), (10, 3.169), (30, 2.750), (100, 2.626), (500, 2.576)],
            ),
            (
                99.5,
                [(3, 10.215), (4, 7.173), (7, 4.782), (10, 4.143), (30, 3.385), (100, 3.174), (500, 3.090)],
            ),
        ] {
            let confidence = Confidence::from_percent(percent).unwrap();
            assert_eq!(confidence.percent(), percent);
            for (freedom, t) in points {
                assert_eq!(confidence.t(freedom), t, "{percent} %, {freedom}");
            }
        }
        for percent in [0.0, 70.0, 95.1, 100.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Confidence::from_percent(percent), None, "{percent}");
        }
    }
}
