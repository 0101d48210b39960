// SPDX-License-Identifier: Apache-2.0
//! A day of one machine: when its huge pages are lost, and when they are back.

use super::inputs::Inputs;
use super::random::Random;

/// How long memory pressure lasts, in seconds.
const PRESSURE: f64 = 1800.0;

/// A loss of huge pages.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Loss {
    /// When they are lost, in seconds.
    pub from: f64,
    /// When they can be had again.
    pub until: f64,
}

/// What happens to a machine.
#[derive(Clone, PartialEq, Debug)]
pub struct Day {
    /// The start of the service, the upgrade and the pressure, in order.
    pub losses: Vec<Loss>,
    /// The end of the machine's upgrade; `None` if it is not upgraded.
    pub upgraded: Option<f64>,
}

impl Day {
    /// Draws the day of a machine. `place` is its place in the order of the upgrade.
    pub fn draw(inputs: &Inputs, machine: usize, place: usize) -> Day {
        let begins = inputs.get("upgrade-at") * 3600.0;
        let batch = (place / inputs.get("at-a-time").max(1.0) as usize) as f64;
        let from = begins + batch * inputs.get("upgrade-s");
        let upgrade = Loss { from, until: from + inputs.get("upgrade-s") };
        let upgrade = Some(upgrade).filter(|loss| loss.until < inputs.seconds());
        let mut losses = vec![Loss { from: 0.0, until: 0.0 }];
        losses.extend(upgrade);
        losses.extend(pressure(inputs, machine));
        losses.sort_by(|a, b| a.from.total_cmp(&b.from));
        Day { losses, upgraded: upgrade.map(|loss| loss.until) }
    }

    /// Returns the seconds in which the machine has huge pages, if it takes `recovery` seconds to have them again, and
    /// how often it makes them.
    pub fn huge(&self, recovery: f64, end: f64) -> (f64, usize) {
        let (mut huge, mut made, mut ready) = (0.0, 0, 0.0_f64);
        for (index, loss) in self.losses.iter().enumerate() {
            ready = ready.max(loss.until);
            let next = self.losses.get(index + 1).map_or(end, |next| next.from.min(end));
            if ready < next {
                made += 1;
                huge += (next - ready - recovery).max(0.0);
            }
        }
        (huge, made)
    }
}

/// Returns the pressure of a machine, if it is one of those that have any.
fn pressure(inputs: &Inputs, machine: usize) -> Option<Loss> {
    let mut random = Random::of(inputs.get("seed") as u64, machine as u64, 1);
    let (drawn, at) = (random.share(), random.share());
    let from = at * (inputs.seconds() - PRESSURE).max(0.0);
    let until = (from + PRESSURE).min(inputs.seconds());
    (100.0 * drawn < inputs.get("pressure")).then_some(Loss { from, until })
}
