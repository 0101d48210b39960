// SPDX-License-Identifier: Apache-2.0
//! What huge pages save at each size of code and of data.

use crate::knees::{SWEEPS, at};
use crate::memory::Pages;
use crate::tlb::access::Access;
use crate::tlb::curve::Curve;
use crate::tlb::naming::curve_of;
use crate::tlb::program::Sizes;
use crate::tlb::summary;

/// Sizes of code and of data that are shown if the user names no program.
const USUAL_TEXT: [u64; 3] = [8 << 20, 32 << 20, 128 << 20];
const USUAL_HEAP: [u64; 3] = [64 << 20, 512 << 20, 2 << 30];

/// The share that every sweep must save, in percent, before huge pages certainly save time, and must lose
/// before they certainly do not. The kernel and the host place memory differently in each run, which moves
/// such a share by several percent; what is between the bounds is never called sure.
const MARGIN: f64 = 10.0;

/// The time that huge pages save at one working set.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Saved {
    pub(super) what: String,
    pub(super) access: Access,
    pub(super) bytes: u64,
    pub(super) small: f64,
    /// The fastest kind of huge pages, and its time.
    pub(super) best: (Pages, f64),
    /// The share that it saves, in percent, in each sweep.
    pub(super) percent: Vec<f64>,
    /// The same for working sets half a doubling smaller and larger.
    nearby: Vec<f64>,
}

impl Saved {
    /// Returns the least and the largest share of a sweep.
    pub(super) fn range(&self) -> (f64, f64) {
        summary::range(&self.percent).unwrap_or((f64::NAN, f64::NAN))
    }

    /// Returns the share of the medians.
    pub(super) fn middle(&self) -> f64 {
        100.0 * (1.0 - self.best.1 / self.small)
    }

    /// Returns `yes` or `no` if all sweeps agree by a margin, and nearby working sets do not contradict them. Other programs
    /// can hit one working set in all sweeps, but hardly its neighbours as well.
    pub(super) fn word(&self) -> Option<&'static str> {
        let (low, high) = self.range();
        let nearby = |agrees: fn(f64) -> bool| self.nearby.iter().all(|share| agrees(*share));
        match self.percent.len() >= SWEEPS {
            true if low >= MARGIN && nearby(|share| share > 0.0) => Some("yes"),
            true if high <= -MARGIN && nearby(|share| share < 0.0) => Some("no"),
            _ => None,
        }
    }
}

pub(super) fn saved(curves: &[Curve], sizes: Option<&Sizes>) -> Vec<Saved> {
    let wanted: Vec<(Access, String, u64)> = match sizes {
        Some(sizes) => {
            let heap = sizes.heap.map(|heap| (Access::Load, format!("heap of {}", sizes.name), heap));
            let text = (Access::Jump, format!("text of {}", sizes.name), sizes.text);
            std::iter::once(text).chain(heap).collect()
        }
        None => {
            let usual = |access, what: &str, usual: [u64; 3]| -> Vec<(Access, String, u64)> {
                let most = curve_of(curves, access, Some(Pages::Small)).map_or(0.0, Curve::last) as u64;
                let mut sizes: Vec<u64> = usual.into_iter().filter(|&bytes| bytes <= most).collect();
                if sizes.is_empty() {
                    sizes.push(most);
                }
                sizes.into_iter().map(|bytes| (access, what.to_string(), bytes)).collect()
            };
            [usual(Access::Jump, "text", USUAL_TEXT), usual(Access::Load, "heap", USUAL_HEAP)].concat()
        }
    };
    let one = |(access, what, bytes): (Access, String, u64)| {
        // Nothing is claimed beyond what was measured.
        let time = |curve: &Curve| {
            (bytes as f64 <= curve.last()).then(|| at(&curve.medians(), bytes as f64)).flatten()
        };
        let curve = curve_of(curves, access, Some(Pages::Small))?;
        let small = time(curve)?;
        let best = huge(curves, access).filter_map(|c| Some((c, time(c)?)));
        let (fastest, best) = best.min_by(|a, b| a.1.total_cmp(&b.1))?;
        let shares = |bytes: f64| {
            let sweeps = curve.sweeps.iter().zip(&fastest.sweeps);
            sweeps.filter_map(move |(small, best)| Some(100.0 * (1.0 - at(best, bytes)? / at(small, bytes)?)))
        };
        let step = std::f64::consts::SQRT_2;
        let nearby = [bytes as f64 / step, bytes as f64 * step].into_iter().flat_map(shares).collect();
        let (best, percent) = ((fastest.pages?, best), shares(bytes as f64).collect());
        Some(Saved { what, access, bytes, small, best, percent, nearby })
    };
    wanted.into_iter().filter_map(one).collect()
}

/// Returns the curves of huge pages.
fn huge(curves: &[Curve], access: Access) -> impl Iterator<Item = &Curve> {
    curves.iter().filter(move |c| c.access == access && !matches!(c.pages, None | Some(Pages::Small)))
}
